package weirgrpc

import (
	"context"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-go/weir"
)

// Stream returns the interceptor of calls that stream their requests, their answers, or both.
func (g *Guard) Stream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		c, err := g.admit(ss.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		if c == nil {
			return g.handed(ss.Context(), handler(srv, ss))
		}
		s := &stream{ServerStream: ss, call: c, answers: info.IsServerStream && !info.IsClientStream}
		if info.IsClientStream {
			s.messages = g.messages
		}
		returned := false
		defer func() { s.end(returned, err) }()
		s.begin()
		err = handler(srv, s)
		returned = true
		if refused := s.refusal(); refused != nil { // whatever the handler returns; it has its trailer already
			return passedOn(refused)
		}
		return g.handed(ss.Context(), err)
	}
}

// stream is a streaming call for its handler.
type stream struct {
	grpc.ServerStream
	call     *Call
	answers  bool      // only the server streams
	messages weir.Gate // asked for each message of the client; nil if there is no such gate

	mu       sync.Mutex // guards what follows
	grace    *time.Timer
	answered bool        // the first answer has been sent
	message  weir.Permit // of the message that the handler works on
	refused  error       // why a message was refused
	over     bool        // the handler has ended
}

// Context implements [grpc.ServerStream].
func (s *stream) Context() context.Context { return s.call.handler }

// begin starts the grace time of calls that stream requests.
func (s *stream) begin() {
	switch {
	case s.call.method == healthWatch:
		s.call.move()
	case !s.answers:
		s.startGrace()
	}
}

// startGrace makes the call give up its slot after the grace time.
func (s *stream) startGrace() {
	streams := s.call.guard.streams
	if streams == nil || streams.Grace() == math.MaxInt64 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grace == nil {
		s.grace = time.AfterFunc(streams.Grace(), s.call.moveLater)
	}
}

// SendHeader implements [grpc.ServerStream].
func (s *stream) SendHeader(md metadata.MD) error {
	if s.answers {
		s.startGrace()
	}
	return s.ServerStream.SendHeader(md)
}

// SendMsg implements [grpc.ServerStream].
func (s *stream) SendMsg(m any) error {
	if s.answers && s.markAnswered() {
		s.call.Sample(weir.OK)
		s.startGrace()
	}
	if s.call.lacksPlace() {
		s.call.move()
	}
	return s.ServerStream.SendMsg(m)
}

// markAnswered notes an answer, and reports whether it is the first.
func (s *stream) markAnswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.answered
	s.answered = true
	return first
}

// RecvMsg implements [grpc.ServerStream]. A handler works on a message until it asks for the
// next one.
func (s *stream) RecvMsg(m any) error {
	if s.messages == nil {
		return s.ServerStream.RecvMsg(m)
	}
	if err := s.done(weir.OK); err != nil {
		return err
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	p, err := s.messages.Admit(s.Context(), *s.call.work)
	if err != nil {
		err = s.call.guard.writeRejection(s.ServerStream.Context(), s.call.method, rejectionOf(err))
	}
	s.mu.Lock()
	over := s.over
	if !over {
		s.message, s.refused = p, err
	}
	s.mu.Unlock()
	if over { // the handler has returned, and a goroutine of it has received the message
		p.Cancel()
	}
	return err
}

// done ends the work on a message. It returns the refusal of a message, if there was one.
func (s *stream) done(o weir.Outcome) error {
	s.mu.Lock()
	p, refused := s.message, s.refused
	s.message = weir.Permit{}
	s.mu.Unlock()
	p.Done(o)
	return refused
}

// refusal returns the refusal of a message, if there was one.
func (s *stream) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// end runs when the handler has returned, panicked or called runtime.Goexit.
func (s *stream) end(returned bool, err error) {
	s.mu.Lock()
	if s.grace != nil {
		s.grace.Stop()
	}
	answered := s.answered
	s.over = true
	s.mu.Unlock()
	o := s.call.outcome(returned, err)
	_ = s.done(o) // err has the refusal already
	if !s.answers || o == weir.OK && !answered {
		o = weir.NoSample
	}
	s.call.end(o)
}
