package weirgrpc

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/internal/carried"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// Call is an admitted call while its handler runs. Most handlers never need it. A handler uses it to report an
// outcome or a cost that only the handler knows.
//
// All methods are safe for concurrent use and do nothing on a nil *Call, so the result of
// [FromContext] needs no check.
type Call struct {
	incoming context.Context // as the transport has made it
	guard    *Guard
	method   string
	md       metadata.MD    // from the tap; otherwise read when a policy first asks
	policy   *policy.Policy // the one that has matched the call, or nil
	route    *policy.Route
	tap      *tap // nil if no tap has decided about the call

	handler  context.Context // of the handler
	gate     weir.Gate       // nil before the call is admitted
	permit   weir.Permit
	work     *weir.Work // for messages; nil if there is no gate for messages
	deadline time.Time  // of the work
	priority weir.Priority
	user     string

	carry   sync.Once
	carrier context.Context // see callContext

	mu      sync.Mutex // guards what follows
	rest    *rest      // the call has a place among the streams instead of its permit; nil before
	crowded bool       // the call found no place there
	ended   bool
}

// rest is what a stream keeps of its permit: the charge of quotas.
type rest struct {
	released bool // permit is set
	permit   weir.Permit
	late     []lateCost // set before released
}

// lateCost is a cost that was set while the permit was being released.
type lateCost struct {
	gate  string
	units int64
}

// FromContext returns the admitted call that ctx belongs to, nil if there is none.
func FromContext(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Sample reports the backend's answer before the handler returns; see [weir.Permit.Sample]. The
// first call decides.
func (c *Call) Sample(o weir.Outcome) {
	if c != nil {
		c.permit.Sample(o)
	}
}

// SetCost says what the call has really cost; see [weir.Permit.SetCost]. A stream has no slot any more, so only
// the charges of its quotas change. gate names the gate to charge; the empty name means every gate.
func (c *Call) SetCost(gate string, units int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	before, p := c.rest, c.permit
	if before != nil {
		if !before.released {
			before.late = append(before.late, lateCost{gate, units})
			c.mu.Unlock()
			return
		}
		p = before.permit
	}
	c.mu.Unlock()
	p.SetCost(gate, units)
	c.mu.Lock()
	moved := c.rest != before // then the permit may have ended before it got the cost
	c.mu.Unlock()
	if moved {
		c.SetCost(gate, units)
	}
}

// ReleaseForStream gives the call's slot back, as NoSample if there was no sample before. Until its end the
// call has a place in the pool of streams instead. ReleaseForStream reports whether the call has no slot any
// more. If the pool is full, the call keeps its slot. Long streams are found without it.
func (c *Call) ReleaseForStream() bool { return c != nil && c.move() }

// start is called with the permit of an admitted call, before its handler runs.
func (c *Call) start(gate weir.Gate, w *weir.Work, p weir.Permit) {
	c.gate, c.permit, c.priority, c.deadline, c.user = gate, p, w.Priority, w.Deadline, w.User
	if p != (weir.Permit{}) {
		carrying.Do(func() { weir.WithPermit(c.incoming, gate, p) })
	}
	if c.priority != weir.Normal || !c.deadline.IsZero() {
		telling.Do(func() { weir.WithReceived(c.incoming, c.received()) })
	}
	if c.guard.messages != nil {
		c.work = new(*w)
	}
}

// received is the priority and deadline of the call, for nested calls and for the handler's calls to others.
func (c *Call) received() weir.Work {
	return weir.Work{Priority: c.priority, Deadline: c.deadline}
}

// carrying calls [weir.WithPermit] with the first call that has a permit. telling calls [weir.WithReceived]
// with the first call that has a priority or a deadline to pass on. A gate searches contexts for these only
// after the function was called once in the process. The context of a call would call them only when a gate
// asks it for a value, and then no gate would ask.
var carrying, telling sync.Once

// outcome is the outcome of a call whose handler has ended. The handler has returned err, or it has panicked.
func (c *Call) outcome(returned bool, err error) weir.Outcome {
	switch c.incoming.Err() {
	case context.Canceled:
		return weir.Abandoned
	case context.DeadlineExceeded:
		return weir.Overload
	}
	if !returned {
		return weir.Failed
	}
	return Classify(err)
}

// end releases what the call still has.
func (c *Call) end(o weir.Outcome) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	moved, p := c.rest != nil, c.permit
	if moved {
		p = c.rest.permit // the zero permit while it is being released: move ends it then
	}
	c.mu.Unlock()
	if moved {
		c.pool().Leave(c.user)
	}
	p.Done(o)
}

// pool is where the call has its place as a stream, nil if it keeps its permit. Watches have places of their own. No
// gate limits them, and they would take those of the service's streams.
func (c *Call) pool() *weirhttp.Streams {
	if c.method == healthWatch && c.guard.streams != nil {
		return c.guard.watches
	}
	return c.guard.streams
}

// move exchanges the permit for a place among the streams, and reports whether the call has no permit any more.
func (c *Call) move() bool {
	streams := c.pool()
	c.mu.Lock()
	switch {
	case c.rest != nil || c.ended || streams == nil:
		moved := c.rest != nil
		c.mu.Unlock()
		return moved
	case !c.permit.Live(): // or what passes no gate would take the places of what does
		c.mu.Unlock()
		return true
	}
	if !streams.Enter(c.user) {
		if !c.crowded {
			c.crowded = true
			streams.Overflow()
		}
		c.mu.Unlock()
		return false
	}
	rest := new(rest)
	c.rest = rest
	c.mu.Unlock()
	left := c.permit.Release(weir.NoSample)
	c.mu.Lock()
	rest.permit, rest.released = left, true
	late, over := rest.late, c.ended
	c.mu.Unlock()
	for _, cost := range late {
		left.SetCost(cost.gate, cost.units)
	}
	if over {
		left.Done(weir.NoSample)
	}
	return true
}

// moveLater is move for timers.
func (c *Call) moveLater() { c.move() }

// lacksPlace reports whether the call is a stream that found no place.
func (c *Call) lacksPlace() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.crowded && c.rest == nil
}

type callKey struct{}

// callContext is a call as the context of its handler. It has the Call. It also carries the permit, priority
// and deadline, in a context that is made when a gate first asks. Most handlers never need that context.
type callContext Call

// Deadline implements [context.Context].
func (c *callContext) Deadline() (time.Time, bool) { return c.incoming.Deadline() }

// Done implements [context.Context].
func (c *callContext) Done() <-chan struct{} { return c.incoming.Done() }

// Err implements [context.Context].
func (c *callContext) Err() error { return c.incoming.Err() }

// Value implements [context.Context].
func (c *callContext) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return (*Call)(c)
	}
	if !carried.Is(key) || c.tap.open() { // without a handler there are no calls to be nested
		return c.incoming.Value(key)
	}
	c.carry.Do(func() {
		c.carrier = weir.WithReceived(weir.WithPermit(c.incoming, c.gate, c.permit), (*Call)(c).received())
	})
	return c.carrier.Value(key)
}

// header is a call as a policy reads its metadata.
type header Call

// Values implements [policy.Header].
func (h *header) Values(name policy.HeaderName) []string {
	if name == timeoutHeader {
		return nil // gRPC does not pass it on: it is the deadline of the context
	}
	if h.md == nil {
		if h.md = incomingMetadata(h.incoming); h.md == nil {
			return metadata.ValueFromIncomingContext(h.incoming, name.Lower)
		}
	}
	return h.md[name.Lower]
}

// attempt returns the number of the attempt by the call's metadata.
func (c *Call) attempt() int {
	return attempt.Of(func(h attempt.Header) []string {
		return (*header)(c).Values(policy.HeaderName{Canonical: h.Name, Lower: h.Lower})
	})
}

// incomingMetadata returns the metadata in ctx without a copy, or nil. Nobody may change them. The functions that
// grpc-go exports make a copy, and search through all keys for a key that is missing. A policy asks for half a
// dozen keys that most calls do not have. Transports write keys in lower case.
func incomingMetadata(ctx context.Context) metadata.MD {
	if receivedKey == nil {
		return nil
	}
	md, _ := ctx.Value(receivedKey).(metadata.MD)
	return md
}

// receivedKey is the context key of grpc-go's metadata, or nil if it does not work.
var receivedKey = func() any {
	asked := &asked{Context: context.Background()}
	metadata.FromIncomingContext(asked)
	if _, ok := metadata.NewIncomingContext(context.Background(), metadata.MD{}).Value(asked.key).(metadata.MD); !ok {
		return nil
	}
	return asked.key
}()

// asked is a context that notes the last key it was asked for.
type asked struct {
	context.Context
	key any
}

// Value implements [context.Context].
func (a *asked) Value(key any) any {
	a.key = key
	return nil
}

// Host implements [policy.Header].
func (h *header) Host() string {
	if values := h.Values(authority); len(values) > 0 {
		return values[0]
	}
	return ""
}

var (
	authority     = policy.HeaderName{Lower: ":authority"}
	timeoutHeader = policy.NewHeaderName("grpc-timeout")
)

// view is the call as a policy sees it.
func (c *Call) view() policy.View {
	v := policy.View{Method: "POST", Path: c.method, Fixed: true, Header: (*header)(c)}
	v.Deadline, _ = c.incoming.Deadline()
	p, ok := peer.FromContext(c.incoming)
	if !ok {
		return v
	}
	v.Peer = addressOf(p.Addr)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		if chains := info.State.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 {
			v.Certificate = chains[0][0]
		}
	}
	return v
}

// addressOf returns the address of a peer, the zero Addr if it has none.
func addressOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return policy.ParsePeer(a.String())
}

// timeLeft returns how long until a deadline, false if there is none.
func timeLeft(ctx context.Context) (time.Duration, bool) {
	at, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	return time.Until(at), true
}
