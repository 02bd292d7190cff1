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
// / (n + Padding), if that is above 0. The throttle's own refusals count as requests, but less
// often where fewer than one in K of what is sent has a result. Even if the server accepts nothing, a few requests are sent, so the client notices when the server
// accepts work again. With a healthy server nothing is refused. Once the server has accepted half of Padding in a row, the newest tenth of
// the window decides, if it refuses less. So an outage is soon forgotten.
//
// A result counts when work is sampled, or else when it ends. [weir.Overload] counts as refused. [weir.OK] and
// [weir.Failed] count as accepted, because a server that answers with an error has taken the work.
// [weir.Abandoned] and [weir.NoSample] say nothing about the server and do not count, and neither does work that
// was cancelled. Work that never ends never counts, so give each call a time-out.
//
// A time-out counts as refused, however short it is. So callers with deadlines that the server cannot meet throttle
// the others. Where strangers bring deadlines along, set MinTimeout.
//
// Each class of priority has counts of its own, and the lower class is refused first. Exempt work is
// never refused, and its results do not count.
type Throttle struct {
	front  gate.Front
	random func() float64
	least  time.Duration // MinTimeout

	mu      sync.Mutex // guards what follows
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

// hurried reports whether work has less time than a deadline must leave to count.
func hurried(start, until, least time.Duration) bool {
	return least > 0 && until-least < start // and not until-start, which may overflow
}

// ranOut reports whether hurried work that ends now was ended by its own deadline. A server that is told the
// deadline may see it pass a moment earlier.
func (u *use) ranOut(now, least time.Duration) bool {
	allowed := u.until - u.start
	return hurried(u.start, u.until, least) && now-u.start >= allowed-allowed/8
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
	t := &Throttle{random: cfg.Random, least: cfg.MinTimeout, core: newCore(cfg, bins)}
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
	if share, sent := t.core.decide(now, class, random, !hurried(now, until, t.least)); !sent {
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
	silent := 0.0
	switch {
	case o == weir.OK, o == weir.Failed:
		t.core.record(now, int(u.class), accepted)
	case o == weir.Overload && !u.ranOut(now, t.least):
		t.core.record(now, int(u.class), refused)
	default:
		silent = 1
	}
	if !hurried(u.start, u.until, t.least) { // refusals of other work do not count
		t.core.hear(int(u.class), silent)
	}
}

// Status is what a throttle decides by: the requests in its window.
type Status struct {
	// Classes are the classes of priority, weir.Background first.
	Classes [weir.Classes]ClassStatus
}

// ClassStatus is one class of priority.
type ClassStatus struct {
	// Requests are the requests in the window. The throttle's own refusals are among them, as far as they count. Accepted are the requests
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
// refused. Outcomes has all results, also of deadlines below MinTimeout.
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
			parts = append(parts, fmt.Sprintf("%.0f %% of %v work (%d of %d requests were accepted)",
				100*c.Share, weir.PriorityOf(i), c.Accepted, c.Requests))
		}
	}
	if parts == nil {
		return "everything is sent"
	}
	return "refused here: " + strings.Join(parts, ", ")
}
