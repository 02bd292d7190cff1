package weirgrpc

import (
	"context"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/yield"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/throttle"
	"github.com/weir-go/weir/weirhttp"
)

// Guard admits the calls of a gRPC server. Its interceptors and its tap work together, so give a server the
// interceptors and the tap of the same Guard. It is safe for concurrent use.
type Guard struct {
	gate       weir.Gate
	policy     func() *policy.Policy
	work       func(context.Context, string, *weir.Work)
	selectGate func(context.Context, string) (weir.Gate, weir.Work)
	reject     func(context.Context, string, *weir.Rejection) error
	attempts   *throttle.Attempts // nil: not counted
	trusted    func(context.Context) bool
	messages   weir.Gate
	statuses   Statuses
	streams    *weirhttp.Streams
	watches    *weirhttp.Streams // places for healthWatch
	streamsSet bool
	yield      bool
	yielder    *yield.Yielder

	draining   atomic.Bool
	tapping    atomic.Bool
	longestTap time.Duration
	methods    knownMethods
	tapped     tapCounters
	untended   untended
}

// New returns a guard that admits each call through g before its handler runs. A refusal is
// answered with the status of [Status] and the trailer [PushbackHeader].
//
// A nil g with neither [WithPolicy] nor [WithSelect] admits everything.
func New(g weir.Gate, opts ...Option) *Guard {
	guard := &Guard{gate: g, yield: true, yielder: yield.New(), longestTap: defaultLongestTap, watches: weirhttp.NewStreams(weirhttp.StreamsConfig{})}
	for _, o := range opts {
		o(guard)
	}
	if !guard.streamsSet {
		guard.streams = weirhttp.NewStreams(weirhttp.StreamsConfig{})
	}
	return guard
}

// ServerOptions returns the interceptors as options of a server, chained after earlier ones.
// The tap is not among them; see [Guard.Tap].
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(g.Unary()), grpc.ChainStreamInterceptor(g.Stream())}
}

// Unary returns the interceptor of calls with one message in each direction. The call waits in the
// gate's room under its own context, so it leaves the room when its client leaves.
func (g *Guard) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		c, err := g.admit(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		if c == nil {
			resp, err = handler(ctx, req)
			return resp, g.handed(ctx, err)
		}
		returned := false
		defer func() { c.end(c.outcome(returned, err)) }()
		if g.yield && g.yielder.Yield() {
			began := time.Now()
			resp, err = handler(c.handler, req)
			g.yielder.HandlerTook(time.Since(began))
		} else {
			resp, err = handler(c.handler, req)
		}
		returned = true
		return resp, g.handed(ctx, err)
	}
}

// admit asks the gate for a call's permit. It returns nil for a call without a gate. If the gate refuses, it
// returns the error for the client.
func (g *Guard) admit(ctx context.Context, method string) (*Call, error) {
	if g.tapping.Load() {
		if c := FromContext(ctx); c != nil && c.guard == g && c.tap.claim() {
			return g.resume(ctx, c)
		}
		g.methods.add(method)
	}
	c := &Call{incoming: ctx, guard: g, method: method}
	c.handler = (*callContext)(c)
	var w weir.Work
	gate := g.choose(c, &w)
	if gate == nil {
		return nil, nil
	}
	if rej := g.closed(&w); rej != nil {
		return nil, g.writeRejection(ctx, method, rej)
	}
	p, err := gate.Admit(ctx, w)
	if err != nil {
		return nil, c.answerRefusal(ctx, &w, err)
	}
	c.start(gate, &w, p)
	return c, nil
}

// choose returns the gate for a call, and sets w to the call as work.
func (g *Guard) choose(c *Call, w *weir.Work) (gate weir.Gate) {
	ctx := c.incoming
	switch {
	case g.policy != nil:
		v := c.view()
		c.policy = g.policy()
		c.route, *w = c.policy.MatchView(&v)
		gate = c.route.Gate()
	case g.selectGate != nil:
		gate, *w = g.selectGate(ctx, c.method)
	default:
		gate, w.Op = g.gate, c.method
	}
	if g.policy == nil {
		if g.attempts != nil {
			w.Attempt = max(w.Attempt, c.attempt())
		}
		if at, ok := ctx.Deadline(); ok && (w.Deadline.IsZero() || at.Before(w.Deadline)) {
			w.Deadline = at
		}
	}
	if isHousekeeping(c.method) {
		w.Exempt = true
	}
	if g.work != nil {
		*w = g.described(ctx, c.method, *w)
	}
	return gate
}

// described is a function of its own because its work escapes to the heap.
func (g *Guard) described(ctx context.Context, method string, w weir.Work) weir.Work {
	g.work(ctx, method, &w)
	return w
}

// answerRefusal answers a call that a gate has refused. The Attempts of the guard or of the policy's route may
// make the refusal final.
func (c *Call) answerRefusal(ctx context.Context, w *weir.Work, err error) error {
	rej := rejectionOf(err)
	switch g := c.guard; {
	case c.policy != nil:
		v := c.view()
		rej = c.route.Told(w, c.policy.TrustedView(&v), rej)
	case g.attempts != nil:
		rej = g.attempts.Told(w, g.trusted != nil && g.trusted(ctx), rej)
	}
	return c.guard.writeRejection(ctx, c.method, rej)
}

// writeRejection returns the error for a call that is refused, and sets its trailer.
func (g *Guard) writeRejection(ctx context.Context, method string, rej *weir.Rejection) error {
	g.yielder.Refused()
	setPushback(ctx, rej)
	if g.reject != nil {
		return g.reject(ctx, method, rej)
	}
	return g.statuses.Of(rej).Err()
}

// setPushback sets the trailer of a call that is refused.
func setPushback(ctx context.Context, rej *weir.Rejection) {
	if ms, ok := Pushback(rej); ok {
		// A trailer commits nothing. A header would, and then clients do not retry. In the tap there is no
		// stream for a trailer yet, so SetTrailer fails.
		_ = grpc.SetTrailer(ctx, metadata.MD{PushbackHeader: {ms}})
	}
}

// handed returns the error of a handler for its client. If a gate further in has refused, the error has no status,
// and to gRPC it would be UNKNOWN. So it gets the status of the refusal, and the call its trailer.
func (g *Guard) handed(ctx context.Context, err error) error {
	if rej, _ := leading(err); rej != nil {
		setPushback(ctx, rej)
		err = &passed{g.statuses.Of(rej), err}
	}
	return passedOn(err)
}

// leading searches an error for a refusal or a status, in the order of [errors.As], and returns what comes first: a
// nil rej is a status. What a refusal wraps is its Cause. Clients are told nothing of that, so not its status either.
func leading(err error) (rej *weir.Rejection, found bool) {
	switch e := err.(type) {
	case *weir.Rejection:
		return e, true
	case interface{ GRPCStatus() *status.Status }:
		if e.GRPCStatus() != nil {
			return nil, true
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return leading(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if rej, found = leading(part); found {
				return rej, true
			}
		}
	}
	return nil, false
}

// Drain refuses new calls from now on, as draining. If health is not nil, it first calls health.Shutdown. So
// clients that watch the server's health learn of the drain before any call is refused. Pass the server's
// *health.Server. Calls in progress go on, and so does housekeeping. Call GracefulStop of grpc.Server next: it
// waits for the calls in progress.
func (g *Guard) Drain(health interface{ Shutdown() }) {
	if health != nil {
		health.Shutdown()
	}
	g.draining.Store(true)
}

// closed is the refusal of work while the guard drains, and nil before.
func (g *Guard) closed(w *weir.Work) *weir.Rejection {
	if !g.draining.Load() || w.Exempt {
		return nil
	}
	return &weir.Rejection{Gate: "server", Reason: weir.ReasonDraining, Retryable: true}
}

// housekeeping are the services that operators and load balancers call. All their methods are short, except
// healthWatch.
var housekeeping = []string{
	"/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/",
	"/grpc.reflection.v1alpha.ServerReflection/", "/grpc.channelz.v1.Channelz/",
}

// healthWatch never ends.
const healthWatch = "/grpc.health.v1.Health/Watch"

func isHousekeeping(method string) bool {
	if !strings.HasPrefix(method, "/grpc.") {
		return false
	}
	for _, service := range housekeeping {
		if strings.HasPrefix(method, service) {
			return true
		}
	}
	return false
}

// mostMethods bounds how many methods a guard knows, and longestMethod the bytes of their names. A server has
// fewer, unless its handler for unknown services accepts any name.
const (
	mostMethods   = 1024
	longestMethod = 256
)

// knownMethods are the methods that interceptors have seen, so handlers for them exist. The map is never
// changed; a new method makes a new map.
type knownMethods struct {
	mu   sync.Mutex
	seen atomic.Pointer[map[string]bool]
}

func (k *knownMethods) add(method string) {
	if k.has(method) || len(method) > longestMethod {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := map[string]bool{}
	if old := k.seen.Load(); old != nil {
		if len(*old) >= mostMethods {
			return
		}
		seen = maps.Clone(*old)
	}
	seen[strings.Clone(method)] = true
	k.seen.Store(&seen)
}

func (k *knownMethods) has(method string) bool {
	seen := k.seen.Load()
	return seen != nil && (*seen)[method]
}

// Option adjusts a [Guard].
type Option func(*Guard)

// WithPolicy takes the gate and the work of each call from a compiled policy, in place of the gate given to
// [New]. Routes match the method as a path, as in "POST /shop.Cart/Get", and the call's authority as a host.
// current is called for each call, so a policy can be replaced while the server runs.
func WithPolicy(current func() *policy.Policy) Option {
	return func(g *Guard) { g.policy = current }
}

// WithWork lets fn describe the work: tenant, user, priority, cost. Op is already set to the method, or to the
// route of a policy. The deadline is set, too. fn runs for each call, before the gate decides. So it must be
// quick, and must not trust metadata that any client can send. With a tap it must not block.
func WithWork(fn func(ctx context.Context, method string, w *weir.Work)) Option {
	return func(g *Guard) { g.work = fn }
}

// WithSelect chooses the gate and the work call by call, in place of the gate given to [New]. With a nil gate
// the call is served as it is. A refusal that its handler returns is marked as relayed all the same. [WithWork],
// if given too, runs afterwards. [WithPolicy], if given too, has precedence.
func WithSelect(fn func(ctx context.Context, method string) (weir.Gate, weir.Work)) Option {
	return func(g *Guard) { g.selectGate = fn }
}

// WithStreams shares a pool of streams between guards, and with the middleware of HTTP. By default each Guard
// has a pool of its own with the default settings. With nil, no call becomes a stream: each keeps its permit
// until its handler returns.
func WithStreams(s *weirhttp.Streams) Option {
	return func(g *Guard) { g.streams, g.streamsSet = s, true }
}

// WithMessages makes each message that a client streams a piece of work. When a message has arrived, the gate
// messages is asked, with the work of the call. The permit lasts until the handler asks for the next message,
// or returns. If messages refuses, the stream ends with that refusal, whatever the handler returns. A call with
// only one message from the client is admitted only as a whole.
func WithMessages(messages weir.Gate) Option {
	return func(g *Guard) { g.messages = messages }
}

// WithRejection sets the function that answers refused calls. For instance, fn can log or count them. It
// returns the error for the client, usually Status(rej).Err(). The trailer is set already. fn is called for
// refusals of the tap, too. It is not called for a refusal that a handler returns: the handler may return another error.
func WithRejection(fn func(ctx context.Context, method string, rej *weir.Rejection) error) Option {
	return func(g *Guard) { g.reject = fn }
}

// WithAttempts tells clients not to come back while retries are common among the refusals for overload: see
// [throttle.Attempts]. The number of the attempt comes from the metadata, under the names of
// [weirhttp.WithAttempts], and becomes Attempt of the work. trusted says whether the peer's number is trusted.
// With a tap it must not block. The number of a stranger counts only against the stranger. So with a nil
// trusted, retries are never common. Only the third attempt of a client is told not to come back.
//
// Share a between guards. With nil, the option makes its own. With [WithPolicy] each route counts for itself,
// and WithAttempts has no effect.
func WithAttempts(a *throttle.Attempts, trusted func(ctx context.Context) bool) Option {
	if a == nil {
		a, _ = throttle.NewAttempts(throttle.AttemptsConfig{}, nil) // the defaults are valid
	}
	return func(g *Guard) { g.attempts, g.trusted = a, trusted }
}

// WithOverloadCode sets [Statuses].Overload: the code of refusals for overload. The default is Unavailable.
func WithOverloadCode(code codes.Code) Option {
	return func(g *Guard) { g.statuses.Overload = code }
}

// WithYield says whether an admitted unary call lets others go first before its handler starts. Default true.
// Without it, if handlers compute rather than wait, calls queue in the scheduler, where no gate sees them.
// [weirhttp.WithYield] says what it costs.
func WithYield(on bool) Option {
	return func(g *Guard) { g.yield = on }
}
