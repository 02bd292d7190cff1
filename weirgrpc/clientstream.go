package weirgrpc

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/weir"
)

// stream is a [grpc.StreamClientInterceptor].
func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o, cancel := c.begin(ctx, method, conn)
	s := &clientStream{outgoing: o, desc: desc, cancel: cancel}
	s.open = func(ctx context.Context, more ...grpc.CallOption) (grpc.ClientStream, error) {
		return open(ctx, desc, conn, method, append(opts[:len(opts):len(opts)], more...)...)
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	return s, nil
}

// clientStream is a streaming call for the application. Each of its attempts is a stream of grpc-go.
type clientStream struct {
	*outgoing // for the goroutine that receives
	desc      *grpc.StreamDesc
	open      func(context.Context, ...grpc.CallOption) (grpc.ClientStream, error)
	cancel    context.CancelFunc

	mu      sync.Mutex // guards what follows
	current grpc.ClientStream
	permit  weir.Permit // of the present attempt
	request any         // of a call that streams only answers; kept until the first answer
	sent    bool        // request is set
	shown   bool        // the application has seen a part of the answer
}

// begin makes attempts until one is open. An attempt that could not be opened has sent nothing.
func (s *clientStream) begin() error {
	opened := false
	defer func() {
		if !opened { // the call is given up, or something panicked
			s.end()
		}
	}()
	for {
		p, err := s.admit()
		if err == nil {
			s.mu.Lock()
			s.permit = p
			s.mu.Unlock()
			if err = s.attempt(p); err == nil {
				opened = true
				return nil
			}
			answer, again := s.answer(err, nil, &peer.Peer{}, false), false
			p.Done(answer.Outcome) // mostly the permit is done already
			if again, err = s.again(answer, err); again {
				continue
			}
		}
		return err
	}
}

// attempt opens a stream.
func (s *clientStream) attempt(p weir.Permit) error {
	s.call.Sent()
	stream, err := s.open(s.attemptContext(), grpc.OnFinish(func(err error) { p.Done(answerTo(err, nil, true).Outcome) }))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.current = stream
	request, sent := s.request, s.sent
	s.mu.Unlock()
	if sent {
		_ = stream.SendMsg(request) // the receiving side gets the error of the stream
		_ = stream.CloseSend()
	}
	return nil
}

// end ends the call.
func (s *clientStream) end() {
	s.call.End()
	s.cancel()
	s.mu.Lock()
	p := s.permit
	s.request, s.shown = nil, true // so there is no further attempt
	s.mu.Unlock()
	p.Done(weir.NoSample) // the permit is done already, if the stream is one of grpc-go
}

// present returns the stream of the present attempt and its permit.
func (s *clientStream) present() (grpc.ClientStream, weir.Permit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.permit
}

func (s *clientStream) stream() grpc.ClientStream {
	stream, _ := s.present()
	return stream
}

// show notes that the application sees a part of the answer now. It returns the stream and its permit.
func (s *clientStream) show() (grpc.ClientStream, weir.Permit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = true // the request stays, for an attempt that is decided already
	return s.current, s.permit
}

// Header implements [grpc.ClientStream].
func (s *clientStream) Header() (metadata.MD, error) {
	stream, _ := s.show()
	return stream.Header()
}

// Trailer implements [grpc.ClientStream].
func (s *clientStream) Trailer() metadata.MD { return s.stream().Trailer() }

// CloseSend implements [grpc.ClientStream].
func (s *clientStream) CloseSend() error { return s.stream().CloseSend() }

// Context implements [grpc.ClientStream].
func (s *clientStream) Context() context.Context { return s.stream().Context() }

// SendMsg implements [grpc.ClientStream].
func (s *clientStream) SendMsg(m any) error {
	s.mu.Lock()
	if !s.desc.ClientStreams && !s.shown {
		s.request, s.sent = m, true
	}
	stream := s.current
	s.mu.Unlock()
	return stream.SendMsg(m)
}

// RecvMsg implements [grpc.ClientStream].
func (s *clientStream) RecvMsg(m any) error {
	for {
		stream, p := s.present()
		err := stream.RecvMsg(m)
		if err == nil || err == io.EOF {
			s.sampleAnswer(err == io.EOF)
			return err
		}
		server, ok := peer.FromContext(stream.Context())
		if !ok {
			server = &peer.Peer{}
		}
		answer, again := s.answer(err, stream.Trailer(), server, true), false
		p.Done(answer.Outcome) // the permit is done already, if the stream is one of grpc-go
		if s.repeatable() {
			again, err = s.again(answer, err)
		}
		if !again {
			s.end()
			return passedOn(err)
		}
		if err := s.begin(); err != nil {
			return err
		}
	}
}

// repeatable reports whether everything that the call has sent can be sent again.
func (s *clientStream) repeatable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.desc.ClientStreams && !s.shown
}

// sampleAnswer takes the sample with the first answer, and ends the call with the last.
func (s *clientStream) sampleAnswer(last bool) {
	_, p := s.show()
	p.Sample(weir.OK)
	if last || !s.desc.ServerStreams {
		s.end()
	}
}
