package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/slot"
)

// Throttle is a gate in a client: it refuses locally what the server would refuse anyway. Nothing
// waits in it.
//
// Let n be the requests in the window, and a those that the server has accepted. The part refused is (n - K*a)
// / (n + Padding), if that is above 0. The throttle's own refusals count as requests. Even if the server
// accepts nothing, a few requests are sent, so the client notices when the server accepts work again. With a
// healthy server nothing is refused. Once the server has accepted half of Padding in a row, the newest tenth of
// the window decides, if it refuses less. So an outage is soon forgotten.
//
// A result counts when work is sampled, or else when it ends. [weir.Overload] counts as refused. [weir.OK] and
// [weir.Failed] count as accepted, because a server that answers with an error has taken the work.
// [weir.Abandoned] and [weir.NoSample] say nothing about the server and do not count, and neither does work that
// was cancelled. Nor does work whose own deadline ends it, if it had less time than work takes that succeeds, in
// the median: else one caller with a short deadline would throttle the others. Where a few calls take much longer
// than most, give them a target of their own. Work that never ends never counts, so give each call a time-out.
//
// Each class of priority has counts of its own, and the lower class is refused first. Exempt work is
// never refused, and its results do not count.
type Throttle struct {
	front  gate.Front
	random func() float64

	mu      sync.Mutex // guards what follows
	usual   usual      // beside the lock: it changes as often
	core    core
	permits gate.Pool[use]
	counters
}

// use is the gate's record of a permit.
type use struct {
	start time.Duration
	until time.Duration // the deadline, far away if there is none
	era   uint32        // of a Breaker
	class int8          // -1: exempt
}

// usual is how long work takes that succeeds: the median, found step by step.
type usual struct {
	median time.Duration // 0: unknown
	last   time.Duration // when work succeeded last
	failed float64       // the share of the latest results that count as refusals
}

const (
	// usualStep bounds a step of the median, as a part of it. With steps of all sizes alike it has as many results
	// above it as below.
	usualStep = 1.0 / 32
	// usualPace bounds all steps together: in this time the median grows by the factor e at most. However many
	// results come, a server that gets slow is noticed first.
	usualPace = 5 * time.Second
	// usualHolds is how long the median holds after the last success.
	usualHolds = 30 * time.Second
	// usualFailed is the share of refusals above which the median does not grow: what still succeeds with a server
	// that refuses much is not usual. It is below that at which a throttle or a breaker begins to refuse.
	usualFailed = 0.3
)

// succeeded learns from the time that a piece of work took.
func (m *usual) succeeded(now, took time.Duration) {
	m.failed -= m.failed / 16
	since := max(0, now-m.last)
	if m.last = now; m.median == 0 {
		m.median = max(1, took)
		return
	}
	step := time.Duration(float64(m.median)*min(usualStep, float64(since)/float64(usualPace))) + 1
	switch {
	case took <= m.median:
		m.median = max(1, m.median-step)
	case m.failed < usualFailed:
		m.median += step
	}
}

// tooShort reports whether work that ended now was ended by a deadline of its own that most work would miss. A
// server that is told the deadline may see it pass a moment earlier.
func (m *usual) tooShort(u *use, now time.Duration) bool {
	if now-m.last > usualHolds {
		m.median = 0
	}
	allowed := u.until - u.start
	return allowed > 0 && allowed < m.median && now-u.start >= allowed-allowed/8
}

// means returns what an outcome says about the server, and learns from it.
func (m *usual) means(u *use, now time.Duration, o weir.Outcome) weir.Outcome {
	switch {
	case o == weir.OK:
		m.succeeded(now, now-u.start)
	case o != weir.Overload:
	case m.tooShort(u, now):
		return weir.NoSample
	default:
		m.failed += (1 - m.failed) / 16
	}
	return o
}

// counters are the counts of permits in a snapshot.
type counters struct {
	inFlight, exempt         int64
	admitted, exemptAdmitted uint64
	outcomes                 [weir.Abandoned + 1]uint64
}

// New makes a Throttle. The error names every setting out of range.
func New(cfg Config) (*Throttle, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return newThrottle(&cfg), nil
}

// newThrottle makes a throttle from complete settings.
func newThrottle(cfg *Config) *Throttle {
	t := &Throttle{random: cfg.Random, core: newCore(cfg, bins)}
	if t.random == nil {
		t.random = rand.Float64
	}
	t.front.Init(cfg.Name, cfg.Now)
	hooks := cfg.Hooks
	t.front.SetHooks(&hooks)
	t.permits.Init(t, 0, 0)
	return t
}

// Admit implements [weir.Gate]. It never waits.
func (t *Throttle) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	return admit(ctx, t, &t.front, w)
}

// TryAdmit implements [weir.TryAdmitter].
func (t *Throttle) TryAdmit(w weir.Work) (weir.Permit, error) {
	now := t.front.Now()
	until, r := fit(&t.front, &w, now)
	if r != nil {
		return weir.Permit{}, t.front.Refuse(&w, r)
	}
	p, share := t.decide(&w, now, until)
	if share > 0 {
		return weir.Permit{}, t.front.Refuse(&w, &weir.Rejection{
			Gate: t.front.Name(), Rule: weir.PriorityOf(w.Priority.Class()).String(), Reason: weir.ReasonThrottled, Value: share,
		})
	}
	t.front.Admitted(&w, 0)
	return p, nil
}

// Arrive implements [weir.Arriver]. It never calls wake.
func (t *Throttle) Arrive(w weir.Work, _ func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, err := t.TryAdmit(w)
	return p, nil, err
}

// admit implements Admit for a gate in which nothing waits.
func admit(ctx context.Context, g guard, f *gate.Front, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, g); ok {
		return p, nil // this work is part of work that was sent
	}
	w.Inherit(ctx)
	if r := f.Unfit(ctx, &w); r != nil {
		return weir.Permit{}, f.Refuse(&w, r)
	}
	return g.TryAdmit(w)
}

// fit refuses work that must not be sent, whatever the state of the server. Otherwise it returns the deadline.
func fit(f *gate.Front, w *weir.Work, now time.Duration) (until time.Duration, r *weir.Rejection) {
	if w.Cost < 0 {
		return 0, f.Unfit(context.Background(), w)
	}
	b, r := f.Bounds(w, now, false, 0)
	return b.Deadline, r
}

// decide returns a permit, or the share of work of this class that is refused now.
func (t *Throttle) decide(w *weir.Work, now, until time.Duration) (weir.Permit, float64) {
	random := 2.0 // above every share
	class := w.Priority.Class()
	if !w.Exempt {
		random = t.random()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if share, sent := t.core.decide(now, class, random); !sent {
		return weir.Permit{}, share
	}
	u := use{start: now, until: until, class: int8(class)}
	t.issued(w, &u)
	return weir.NewPermit(t.permits.Issue(&u)), 0
}

// issued counts a permit. Exempt work has no class.
func (c *counters) issued(w *weir.Work, u *use) {
	if w.Exempt {
		u.class = -1
		c.exempt++
		c.exemptAdmitted++
		return
	}
	c.inFlight++
	c.admitted++
}

// returned counts a permit that came back.
func (c *counters) returned(u *use) {
	if u.class < 0 {
		c.exempt--
		return
	}
	c.inFlight--
}

// sampled counts an outcome.
func (c *counters) sampled(u *use, o weir.Outcome) {
	if u.class >= 0 && int(o) < len(c.outcomes) {
		c.outcomes[o]++
	}
}

// unsent takes back the admission of work that was not sent.
func (c *counters) unsent(u *use) {
	if u.class >= 0 {
		c.admitted--
		return
	}
	c.exemptAdmitted--
}

// Done implements [slot.Holder].
func (t *Throttle) Done(ticket slot.Ticket, outcome uint8) {
	now, o := t.front.Now(), weir.Outcome(outcome)
	t.mu.Lock()
	var u use
	sampled, ok := t.permits.Recall(ticket, &u)
	if ok {
		t.returned(&u)
	}
	if ok && !sampled {
		t.record(&u, now, o)
	}
	t.mu.Unlock()
	if ok && !sampled {
		t.front.Finished(o, now-u.start)
	}
}

// Sample implements [slot.Holder].
func (t *Throttle) Sample(ticket slot.Ticket, outcome uint8) {
	now, o := t.front.Now(), weir.Outcome(outcome)
	t.mu.Lock()
	ok := ticket.MarkSampled()
	var u use
	if ok {
		u = t.permits.At(ticket).Use
		t.record(&u, now, o)
	}
	t.mu.Unlock()
	if ok {
		t.front.Finished(o, now-u.start)
	}
}

// Cancel implements [slot.Holder]: the work was not sent, so it is no request.
func (t *Throttle) Cancel(ticket slot.Ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var u use
	if _, ok := t.permits.Recall(ticket, &u); ok {
		t.returned(&u)
		t.unsent(&u)
	}
}

// SetCost implements [slot.Holder]. Every piece of work counts as one request.
func (t *Throttle) SetCost(slot.Ticket, string, int64) {}

// record counts a result. t.mu is locked.
func (t *Throttle) record(u *use, now time.Duration, o weir.Outcome) {
	t.sampled(u, o)
	if u.class < 0 {
		return
	}
	switch t.usual.means(u, now, o) {
	case weir.OK, weir.Failed:
		t.core.record(now, int(u.class), accepted)
	case weir.Overload:
		t.core.record(now, int(u.class), refused)
	}
}

// Status is what a throttle decides by: the requests in its window.
type Status struct {
	// Classes are the classes of priority, weir.Background first.
	Classes [weir.Classes]ClassStatus
}

// ClassStatus is one class of priority.
type ClassStatus struct {
	// Requests are the requests in the window, the throttle's own refusals included. Accepted are the requests
	// that the server accepted.
	Requests, Accepted uint64
	// Share is the probability that the next request is refused here.
	Share float64
}

// Status returns the throttle's present state.
func (t *Throttle) Status() Status {
	now := t.front.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.core.advance(now)
	var s Status
	for i := range s.Classes {
		requests, accepts := t.core.window.count(i)
		s.Classes[i] = ClassStatus{uint64(requests), uint64(accepts), t.core.share(i)}
	}
	return s
}

// Snapshot implements [weir.Snapshotter]. It has no Limit. LimitReason says which share of each class is
// refused.
func (t *Throttle) Snapshot() weir.Snapshot {
	status := t.Status()
	s := weir.Snapshot{Name: t.front.Name(), Kind: "throttle", Mode: "enforce", LimitReason: status.why(), Rejected: t.front.Rejected()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addTo(&s)
	return s
}

func (c *counters) addTo(s *weir.Snapshot) {
	s.InFlight, s.Admitted = c.inFlight, c.admitted
	s.Exempt, s.ExemptAdmitted = c.exempt, c.exemptAdmitted
	s.Outcomes = gate.ByOutcome(c.outcomes[:])
}

// why says what is refused, in words.
func (s *Status) why() string {
	var parts []string
	for i, c := range s.Classes {
		if c.Share > 0 && c.Requests > 0 {
			parts = append(parts, fmt.Sprintf("%.3g of %v work (%d of %d requests were accepted)",
				c.Share, weir.PriorityOf(i), c.Accepted, c.Requests))
		}
	}
	if parts == nil {
		return "everything is sent"
	}
	return "refused here: " + strings.Join(parts, ", ")
}
