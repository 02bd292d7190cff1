// Package envoy admits the requests of an Envoy before this process. It is the server of Envoy's
// external processing filter, envoy.service.ext_proc.v3. Package rpc serves it on a listener.
//
// Envoy opens a stream for each request, and sends it the headers of the request, those of the
// answer, and the trailers. The first message is answered when the gates have decided. The permit
// lasts until the stream ends:
//
//	request headers     admitted, waits, or is refused by an ImmediateResponse
//	response headers    the outcome, a sample
//	end of the stream   the slot is free
//
// Envoy answers clients and sends requests on; this package sees no body.
package envoy

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/hold"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// Options are what a [Service] needs. All are required.
type Options struct {
	// Match returns what the configuration in force says of a request.
	Match func(*policy.View) Matched
	// Ended is called once for each request that a stream has brought, when the stream has ended.
	Ended func(Report)
	// Refused is called for a request that is refused because there are too many streams. No gate
	// has refused it, so none tells of it.
	Refused func(*weir.Rejection)
	// Streams is the pool for answers that last.
	Streams *weirhttp.Streams
	// Logger is where a mode that cannot work is reported.
	Logger *slog.Logger
}

// Matched is what the configuration says of a request.
type Matched struct {
	// Policy has matched the request. Route is nil if no route does; such a request passes.
	Policy *policy.Policy
	Route  *policy.Route
	Work   weir.Work
	Quotas proxy.Quotas
	// Release gives the slot back when the client leaves. Otherwise it is held for the time that
	// the answer is expected to take, Longest at most. 0 means no bound, and 30 s before the route's
	// first answer.
	Release bool
	Longest time.Duration
}

// Report is how a request has ended.
type Report struct {
	Matched
	// Status is that of the answer in HTTP, 0 if Envoy has not told of one. By is who gave it.
	Status int
	By     proxy.Answerer
	// Took is the time from the first message to the end of the stream.
	Took time.Duration
}

// End is how a stream has ended.
type End uint8

// The ends of streams.
const (
	Complete End = iota // after the answer, or with the client's leaving meanwhile
	Refused             // with an ImmediateResponse
	Early               // admitted, before the headers of the answer
	GaveUp              // while the request waited
	Silent              // without a request
	Invalid             // messages that make no sense, or a mode that cannot work
	Drained             // by this process, which ends; Envoy goes on without it
	Crowded             // too many streams
	NumEnds
)

var endNames = [NumEnds]string{"complete", "refused", "early", "gave_up", "silent", "invalid", "drained", "crowded"}

// String returns the word for an end in metrics.
func (e End) String() string { return endNames[e] }

// Service is the external processor. It is safe for concurrent use.
type Service struct {
	opts  Options
	times hold.Times
	held  hold.Keeper

	draining chan struct{} // closed when streams are to end
	drain    sync.Once

	open     atomic.Int64
	ended    [NumEnds]atomic.Uint64
	earlyRow atomic.Int64 // streams in a row that ended early
	unfit    sync.Map     // the reasons of [exchange.unfit] that have been logged
	blind    atomic.Bool  // it has been said that no address comes
	asked    atomic.Bool  // a stream has brought a request, so modes are right somewhere
}

// Name is the service's name in gRPC.
const Name = "envoy.service.ext_proc.v3.ExternalProcessor"

// New returns a service that serves nothing before [Service.Register].
func New(o Options) *Service {
	return &Service{opts: o, draining: make(chan struct{})}
}

// Bounds are those of a listener.
type Bounds struct {
	// MaxStreams returns how many streams may be open.
	MaxStreams func() int64
	// FirstMessage is how long a stream may take to say which request it is for.
	FirstMessage time.Duration
	// MaxHeaders is how many headers a request may have after its admission, those of HTTP/2 that begin with a
	// colon included. Envoy fails requests beyond its max_headers_count. 0 means 100, as there.
	MaxHeaders int
}

// Register has a listener's server of gRPC serve it. Each listener has bounds of its own.
func (s *Service) Register(r grpc.ServiceRegistrar, b Bounds) {
	var open atomic.Int64
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: Name,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Process", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				defer open.Add(-1)
				return s.process(stream, b, open.Add(1) > b.MaxStreams())
			},
		}},
	}, s)
}

// Crowded counts a stream that its server did not let in: too many calls are open.
func (s *Service) Crowded() { s.count(Crowded) }

// Drain ends the streams of admitted requests, with the status OK: Envoy goes on with such a
// request, whatever its failure mode. Requests that wait are not ended so, because Envoy would let
// them in. Close the gates before, which refuses them.
func (s *Service) Drain() { s.drain.Do(func() { close(s.draining) }) }

// Snapshot is a service at one moment.
type Snapshot struct {
	// Open are the streams now. Held are the slots of requests whose client has left.
	Open, Held int64
	// Ended counts streams by how they ended.
	Ended [NumEnds]uint64
}

// Snapshot returns the levels and counters.
func (s *Service) Snapshot() Snapshot {
	n := Snapshot{Open: s.open.Load(), Held: s.held.Held()}
	for end := range s.ended {
		n.Ended[end] = s.ended[end].Load()
	}
	return n
}

// earlyInRow is how many streams in a row end before their answer if a mode is meant.
const earlyInRow = 10

// count counts the end of a stream. It says so if none gets as far as its answer.
func (s *Service) count(end End) {
	s.ended[end].Add(1)
	switch end {
	case Complete:
		s.earlyRow.Store(0)
	case Early:
		if s.earlyRow.Add(1) == earlyInRow {
			s.opts.Logger.Warn("Envoy ends ext_proc streams before the answer, so slots are given back by a guess. "+
				"Set response_header_mode and response_trailer_mode of its processing_mode to SEND, and give its streams no time-out, unless all of these clients have left",
				"in_a_row", earlyInRow)
		}
	}
}
