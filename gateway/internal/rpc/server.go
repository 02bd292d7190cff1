// Package rpc serves gRPC on listeners of the gateway: the services for an Envoy, and grpc.health.v1.
//
// It is grpc-go's own server over the connections that package accept has admitted. Everything that a peer can
// make the process keep is bounded. Services are registered as on any server of gRPC:
//
//	server := rpc.New(rpc.Options{Conns: conns, Config: cfg, ...})
//	healthgrpc.RegisterHealthServer(server, checks)
//	err := server.Serve(conns)
package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
)

// Options are what a [Server] needs. All are required.
type Options struct {
	// Conns are the connections of the listener, and Config its settings.
	Conns  *accept.Listener
	Config config.Listener
	// Crowded is called for each call above the bound, with its full method.
	Crowded func(method string)
	// Logger gets a line for a panic in a service.
	Logger *slog.Logger
}

// Server serves gRPC on one listener. It is safe for concurrent use once its services are
// registered.
type Server struct {
	opts   Options
	server *grpc.Server
	// lasting are the methods whose calls may last; other calls have a deadline for their message.
	lasting map[string]bool
	reading chan struct{} // the places that mostReading bounds

	calls, checks, watches atomic.Int64

	leaving context.Context // ended by Shutdown and Close
	leave   context.CancelFunc
}

const (
	// MaxMessage bounds a message in bytes. The largest messages of ext_proc are the headers of a request, for
	// which Envoy's default limit is 60 KiB.
	MaxMessage = 256 << 10
	// maxRateLimitMessage bounds a message on a listener that serves ratelimit. It is larger, because a header
	// may be in many descriptors. If a message is refused here, most Envoys admit the request uncounted.
	maxRateLimitMessage = 1 << 20
	// mostReading bounds the calls of one message whose message is being read, or is larger than MaxMessage.
	// Further calls wait. So their messages take 256 MiB at most.
	mostReading = 256
	// streamWindow is how many bytes a call may send before they are read: the minimum of gRPC.
	streamWindow = 64 << 10
	// connWindow is the same for one connection.
	connWindow = 1 << 20
	// mostChecks bounds the health checks in progress, and in the same way the watches, which last. Checks,
	// watches and other calls have separate bounds, so that none can lock another out.
	mostChecks = 256
	// pingTimeout is how long the answer to a ping may take.
	pingTimeout = 15 * time.Second
	// leastPingInterval is how often a peer may ping. Envoy's keepalive is in seconds.
	leastPingInterval = 500 * time.Millisecond
	// workers are the goroutines that are kept for the next call. The stack of a new goroutine has to grow
	// several times in a call, which took a seventh of the processor's time. Calls beyond them start new
	// goroutines.
	workers = 64
)

// New returns a server. Register its services before [Server.Serve].
func New(o Options) *Server {
	s := &Server{opts: o, lasting: make(map[string]bool), reading: make(chan struct{}, mostReading)}
	s.leaving, s.leave = context.WithCancel(context.Background())
	c := &o.Config
	maxMessage := MaxMessage
	if slices.Contains(c.Serve, config.ServeRateLimit) {
		maxMessage = maxRateLimitMessage
	}
	s.server = grpc.NewServer(
		grpc.Creds(s.credentials()),
		grpc.ForceServerCodec(codec{}),
		grpc.ConnectionTimeout(time.Duration(c.ReadHeaderTimeout)),
		grpc.MaxConcurrentStreams(uint32(c.MaxConcurrentStreams)),
		grpc.MaxHeaderListSize(uint32(c.MaxHeaderBytes)),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: time.Duration(c.IdleTimeout), Time: time.Duration(c.IdleTimeout), Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingInterval, PermitWithoutStream: true}),
		grpc.InTapHandle(s.arrived),
		grpc.NumStreamWorkers(workers),
	)
	return s
}

// RegisterService implements [grpc.ServiceRegistrar]. Each method becomes a stream for grpc-go, so
// that a call is counted before its message is read, and not after.
func (s *Server) RegisterService(d *grpc.ServiceDesc, impl any) {
	prefix := "/" + d.ServiceName + "/"
	all := *d
	all.Methods, all.Streams = nil, nil
	for _, stream := range d.Streams {
		s.lasting[prefix+stream.StreamName] = true
		handle := stream.Handler
		stream.Handler = s.bound(prefix+stream.StreamName, func(impl any, stream grpc.ServerStream) error { return handle(impl, shorter{stream}) })
		all.Streams = append(all.Streams, stream)
	}
	for _, method := range d.Methods {
		all.Streams = append(all.Streams, grpc.StreamDesc{
			StreamName: method.MethodName,
			Handler: s.bound(prefix+method.MethodName, func(impl any, stream grpc.ServerStream) error {
				one := oneMessage{ServerStream: stream}
				if !strings.HasPrefix(prefix, healthService) { // no other call may delay health checks
					one.places = s.reading
				}
				defer one.leave()
				answer, err := method.Handler(impl, stream.Context(), one.RecvMsg, nil)
				if err != nil {
					return err
				}
				return stream.SendMsg(answer)
			}),
		})
	}
	s.server.RegisterService(&all, impl)
}

// Serve accepts connections until the listener ends, and returns its error.
func (s *Server) Serve(l net.Listener) error { return s.server.Serve(l) }

// Shutdown tells the peers to open no more calls, and waits for the calls in progress. If ctx ends before, it
// returns the error of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.leave()
	s.opts.Conns.CloseNew() // grpc-go would wait for their first bytes
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.server.GracefulStop()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends all connections at once.
func (s *Server) Close() error {
	s.leave()
	s.server.Stop()
	return nil
}

// arrived sets a deadline for the message of a call with one message. grpc-go calls arrived under the lock of
// the connection.
func (s *Server) arrived(ctx context.Context, info *tap.Info) (context.Context, error) {
	if s.lasting[info.FullMethodName] {
		return ctx, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.opts.Config.ReadTimeout))
	_ = cancel // the parent context ends with the call, and stops the timer
	return ctx, nil
}

const (
	healthService = "/grpc.health.v1.Health/"
	healthWatch   = healthService + "Watch"
)

// bound returns a handler that bounds the calls in progress, checks the peer's certificate, and survives a
// panic.
func (s *Server) bound(method string, handle grpc.StreamHandler) grpc.StreamHandler {
	open, most := &s.calls, func() int64 { return 2 * s.opts.Conns.MaxRequests() }
	if strings.HasPrefix(method, healthService) {
		open, most = &s.checks, func() int64 { return mostChecks }
	}
	if method == healthWatch {
		open = &s.watches
	}
	return func(impl any, stream grpc.ServerStream) (err error) {
		defer open.Add(-1)
		if n, most := open.Add(1), most(); n > most {
			s.opts.Crowded(method)
			return status.Errorf(codes.ResourceExhausted, "%d calls are open, and the most is %d; see max_connections of the listener", n-1, most)
		}
		defer func() {
			if v := recover(); v != nil {
				s.opts.Logger.Error("the gateway panicked in a call of gRPC; this is a bug, please report it", "method", method, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				err = status.Error(codes.Internal, "the gateway panicked")
			}
		}()
		if !s.trusts(stream.Context()) {
			return status.Error(codes.Unauthenticated, "the certificate of this connection is no longer trusted; connect again")
		}
		if method == healthWatch { // a watch never ends by itself
			ctx, end := context.WithCancel(stream.Context())
			defer end()
			defer context.AfterFunc(s.leaving, end)()
			stream = watching{stream, ctx}
		}
		return handle(impl, stream)
	}
}

// oneMessage is a call of one message. It has a place while its message is read. If the message is large, it
// keeps the place until leave.
type oneMessage struct {
	grpc.ServerStream
	places chan struct{} // nil if no place is needed
	placed bool
}

// RecvMsg implements [grpc.ServerStream].
func (o *oneMessage) RecvMsg(m any) error {
	if o.places != nil {
		select {
		case o.places <- struct{}{}:
			o.placed = true
		case <-o.Context().Done():
			return status.FromContextError(o.Context().Err()).Err()
		}
	}
	in := sized{message: m}
	err := o.ServerStream.RecvMsg(&in)
	if in.size <= MaxMessage {
		o.leave()
	}
	return err
}

func (o *oneMessage) leave() {
	if o.placed {
		o.placed = false
		<-o.places
	}
}

// shorter is a stream whose messages have at most MaxMessage bytes, even if messages of other methods may be
// larger.
type shorter struct{ grpc.ServerStream }

// RecvMsg implements [grpc.ServerStream].
func (s shorter) RecvMsg(m any) error {
	in := sized{message: m}
	if err := s.ServerStream.RecvMsg(&in); err != nil {
		return err
	}
	if in.size > MaxMessage {
		return status.Errorf(codes.ResourceExhausted, "the message has %d bytes, and the most is %d", in.size, MaxMessage)
	}
	return nil
}

// sized is a message that knows how many bytes it was read from.
type sized struct {
	message any
	size    int
}

// ReadWire implements [Reader].
func (s *sized) ReadWire(b []byte) error {
	s.size = len(b)
	return codec{}.Unmarshal(b, s.message)
}

// watching is a stream that ends when the server does.
type watching struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (w watching) Context() context.Context { return w.ctx }
