package weirgrpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
)

// stream is a [grpc.StreamClientInterceptor].
func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o, cancel := c.begin(ctx, method, conn)
	s := &clientStream{outgoing: o, desc: desc, cancel: cancel, done: func(weir.Outcome) {}}
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
	*outgoing      // for the goroutine that receives
	ended     bool // for it, too: there is no further attempt
	desc      *grpc.StreamDesc
	open      func(context.Context, ...grpc.CallOption) (grpc.ClientStream, error)
	cancel    context.CancelFunc
	sending   atomic.Bool // a message, so that an error may be this process's

	mu      sync.Mutex // guards what follows
	current grpc.ClientStream
	permit  weir.Permit        // of the present attempt
	done    func(weir.Outcome) // gives permit back
	request any                // of a call that streams only answers; kept until the first answer
	sent    bool               // request is set
	opened  bool               // the present attempt has reached a server
	shown   bool               // the application has seen a part of the answer
}

// begin makes attempts until one is open.
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
			done := s.hold(p)
			var server peer.Peer
			unsent := false
			if unsent, err = s.attempt(done, &server); err == nil {
				opened = true
				return nil
			}
			answer, again := s.answer(err, nil, &server, !unsent), false
			done(answer.Outcome) // mostly the permit is done already
			if again, err = s.again(answer, err); again {
				continue
			}
		}
		return err
	}
}

// hold keeps the permit of an attempt, and returns how to give it back. The end of the call's context gives it
// back, too: the application need not receive after that.
func (s *clientStream) hold(p weir.Permit) (done func(weir.Outcome)) {
	ctx := s.ctx
	unwatch := context.AfterFunc(ctx, func() { p.Done(s.outcomeOf(ctx.Err(), true)) })
	done = func(o weir.Outcome) {
		unwatch()
		p.Done(o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permit, s.done, s.opened = p, done, false
	return done
}

// outcomeOf is the outcome of a stream that has ended with err before all of it was received. A stream of answers that
// has reached its deadline may have waited for events. opened is false only if it is certain that no stream to a server was opened.
func (s *clientStream) outcomeOf(err error, opened bool) weir.Outcome {
	if s.waitedOut(err) {
		return weir.NoSample
	}
	var trailer metadata.MD
	if !s.sending.Load() { // what ends while nothing is sent was ended by the server
		trailer = metadata.MD{"content-type": nil} // as each server's has
	}
	return answerTo(err, trailer, opened).Outcome
}

// deadlineSlack is how much earlier than here a server may see the deadline pass that it was told.
const deadlineSlack = 20 * time.Millisecond

// waitedOut reports whether a stream of answers was open until the deadline of its call.
func (s *clientStream) waitedOut(err error) bool {
	by, ok := s.ctx.Deadline()
	if s.ctx.Err() != context.DeadlineExceeded && !(ok && time.Until(by) < deadlineSlack) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.desc.ServerStreams && s.opened && (status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded))
}

// attempt opens a stream. done gives its permit back. With an error, unsent says that nothing was sent to a
// server. An interceptor further in may have opened the stream before it failed, or dropped these options: that
// is no proof.
func (s *clientStream) attempt(done func(weir.Outcome), server *peer.Peer) (unsent bool, err error) {
	s.call.Sent()
	var at peer.Peer
	var finished atomic.Bool
	var reached atomic.Pointer[peer.Peer]
	stream, err := s.open(s.attemptContext(), grpc.Peer(&at), grpc.OnFinish(func(err error) {
		if at.Addr != nil {
			reached.Store(&peer.Peer{Addr: at.Addr})
		}
		finished.Store(true)
		done(s.outcomeOf(err, at.Addr != nil || s.isOpen()))
	}))
	if err != nil {
		if p := reached.Load(); p != nil {
			*server = *p
			return false, err
		}
		return finished.Load(), err
	}
	s.mu.Lock()
	s.current, s.opened = stream, true
	request, sent := s.request, s.sent
	s.mu.Unlock()
	if sent {
		_ = stream.SendMsg(request) // the receiving side gets the error of the stream
		_ = stream.CloseSend()
	}
	return false, nil
}

// isOpen reports whether the present attempt has reached a server.
func (s *clientStream) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// end ends the call.
func (s *clientStream) end() {
	s.ended = true
	s.call.End()
	s.mu.Lock()
	done := s.done
	s.request, s.shown = nil, true // so there is no further attempt
	s.mu.Unlock()
	done(weir.NoSample) // the permit is done already, if the stream is one of grpc-go
	s.cancel()
}

// present returns the stream of the present attempt, and how to give its permit back.
func (s *clientStream) present() (stream grpc.ClientStream, done func(weir.Outcome)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.done
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
	stream, done := s.current, s.done
	s.mu.Unlock()
	s.sending.Store(true)
	defer s.sending.Store(false)
	err := stream.SendMsg(m)
	if err != nil && err != io.EOF { // then grpc-go has aborted the stream
		done(s.outcomeOf(err, true))
	}
	return err
}

// RecvMsg implements [grpc.ClientStream].
func (s *clientStream) RecvMsg(m any) error {
	for {
		stream, done := s.present()
		err := stream.RecvMsg(m)
		if err == nil || err == io.EOF {
			s.sampleAnswer(err == io.EOF)
			return err
		}
		if s.ended { // its answer was told of already
			return passedOn(err)
		}
		server, ok := peer.FromContext(stream.Context())
		if !ok {
			server = &peer.Peer{}
		}
		answer, again := s.answer(err, stream.Trailer(), server, true), false
		if s.waitedOut(err) {
			answer.Outcome = weir.NoSample
		}
		done(answer.Outcome) // the permit is done already, if the stream is one of grpc-go
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
