package policy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/signal"
)

// Options are what a policy needs besides its Spec. The zero value is fine.
type Options struct {
	// Previous is the policy in force. Its live gates are adopted by name: work in flight or
	// waiting stays, and so does what the gates have learned.
	Previous *Policy
	// Hooks are called for what the gates do. Rejected is called for refusals that are carried out.
	Hooks weir.Hooks
	// Observed, if set, is called for work that a gate in observe mode would have refused. The same
	// rules hold as for Hooks.
	Observed func(w weir.Work, r *weir.Rejection)
	// Signals are readings of yours for gates, by name. One goroutine at a time asks each of them,
	// except for a moment around a change of the policy. The poller stays over a change only if the
	// signals are the same. Pointers can be compared for that, functions cannot.
	Signals map[string]signal.Signal
	// SignalHooks are called when a signal cannot be read, and when it can again. A poller that
	// stays over a change keeps its hooks.
	SignalHooks signal.Hooks
	// Readings, if set, returns the readings of all signals, and none is polled. It is for virtual
	// time, on which no signal can be read, or for a poller of your own.
	Readings control.Source
	// Stores keep the buckets of quotas, by the names in QuotaSpec.Store. Close them yourself,
	// after the policies that use them.
	Stores map[string]quota.Store
	// QuotaRules, if set, returns the rules of a gate with a quota, given those of the Spec. It is
	// for rules that change at run time. Compile calls it once or twice for each gate with a quota.
	QuotaRules func(gate string, base []quota.Rule) []quota.Rule
	// Now replaces the clock of the gates, for virtual time; see
	// limit.Config.Now. Gates of a Previous are not adopted then.
	Now func() time.Duration
	// FindLeaks makes gates look for permits that were dropped without Done,
	// at some cost; see limit.Config.FindLeaks.
	FindLeaks bool
}

// Policy is a compiled policy. It does not change, so it can be shared and
// swapped through an atomic pointer; the gates it leads to are live. It is safe
// for concurrent use.
type Policy struct {
	identity identity
	timeouts []timeoutHeader
	edf      bool // some gate serves the earliest deadline first
	// admissions is the header that counts the admissions of an operation; zero for none.
	admissions HeaderName
	matcher    *matcher
	routes     []*Route
	byName     map[string]*Route
	gates      map[string]*Gate
	names      []string             // of gates, sorted
	costed     []string             // those that count what work costs; nil if all do
	now        func() time.Duration // nil outside virtual time
	polled     *polled              // nil if no gate uses signals

	mu       sync.Mutex
	replaced bool
	timers   []*time.Timer
	gone     []*Gate // after Replace: what the next policy did not adopt
	handed   bool    // the next policy goes on with the poller
}

// Match finds the route of a request and builds its work: Op, identity, priority, cost, deadline
// and longest wait, and whether it is exempt. If no pattern matches, the route is nil. Its Gate
// admits everything, and the work has identity, priority and deadline only. The request is not
// changed. See [Ambiguous] for paths that another server may read otherwise.
func (p *Policy) Match(r *http.Request) (*Route, weir.Work) {
	v := ViewHTTP(r)
	return p.MatchView(&v)
}

// MatchView is [Policy.Match] for a request of any protocol.
func (p *Policy) MatchView(v *View) (rt *Route, w weir.Work) {
	rt, m := p.matcher.find(v)
	w = rt.orNone().work
	w.Write = rt.writes(v.Method)
	trusted := p.identity.readInto(&w, v, m)
	m.free()
	if rt != nil && trusted {
		rt.charging.readCost(&w, v.Header)
	}
	p.demote(rt, &w, v.Header, trusted)
	countAttempt(&w, v.Header)
	p.bound(&w, v, rt.Timeout(), trusted)
	return rt, w
}

// countAttempt sets the attempt of w to the largest number that the request brings.
func countAttempt(w *weir.Work, h Header) {
	for _, said := range attempt.Headers {
		w.Attempt = max(w.Attempt, said.In(h.Values(HeaderName{said.Name, said.Lower})))
	}
}

// bound gives w the earlier of two deadlines: the route's, and the request's. If a gate serves the
// earliest deadline first, the deadline of an untrusted peer only bounds the wait.
func (p *Policy) bound(w *weir.Work, v *View, timeout time.Duration, trusted bool) {
	sent, found, bad := timeoutOf(p.timeouts, v.Header)
	if bad > 0 {
		p.identity.ignored.timeouts.Add(1)
	}
	if !found && timeout <= 0 && (v.Deadline.IsZero() || trusted || !p.edf) {
		w.Deadline = v.Deadline // as nearly always for calls of gRPC, and nobody needs the clock
		return
	}
	now := p.time()
	if !v.Deadline.IsZero() {
		left := max(v.Deadline.Sub(now), 1) // 0 is no time-out at all
		if !found || left < sent {
			sent, found = left, true
		}
	}
	if found && sent > 0 && p.edf && !trusted {
		if w.MaxWait == 0 || w.MaxWait > sent {
			w.MaxWait = sent
		}
		found = false
	}
	switch {
	case found && (timeout <= 0 || sent < timeout):
		w.Deadline = now.Add(sent)
	case timeout > 0:
		w.Deadline = now.Add(timeout)
	}
}

// time returns the time of day that deadlines are compared with.
func (p *Policy) time() time.Time {
	if p.now != nil {
		return weir.VirtualEpoch.Add(p.now())
	}
	return time.Now()
}

// Trusted reports whether the headers of the peer are believed. Its network or its verified
// certificate must be trusted.
func (p *Policy) Trusted(r *http.Request) bool { v := ViewHTTP(r); return p.TrustedView(&v) }

// TrustedView is [Policy.Trusted] for a request of any protocol.
func (p *Policy) TrustedView(v *View) bool { return p.identity.trustsPeer(v) }

// IdentityHeaders returns the headers for identities, costs and admissions, in canonical form,
// sorted. A proxy removes them from requests of untrusted peers, so that no server behind it
// believes them; see also [Policy.Forward].
func (p *Policy) IdentityHeaders() []string {
	names := append(p.identity.headers(), p.costHeaders()...)
	if p.countsAdmissions() {
		names = append(names, p.admissions.Canonical)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Route returns the route with the given name, nil if there is none.
func (p *Policy) Route(name string) *Route { return p.byName[name] }

// Routes returns all routes in the order of the Spec.
func (p *Policy) Routes() iter.Seq[*Route] { return slices.Values(p.routes) }

// Gate returns the live gate with the given name, nil if there is none.
func (p *Policy) Gate(name string) *Gate { return p.gates[name] }

// Gates returns the live gates, sorted by name.
func (p *Policy) Gates() iter.Seq2[string, *Gate] {
	return func(yield func(string, *Gate) bool) {
		for _, name := range p.names {
			if !yield(name, p.gates[name]) {
				return
			}
		}
	}
}

// Signals returns the state of the signals that gates use, sorted by name. It is nil if there are
// none, or if the policy does not poll them.
func (p *Policy) Signals() []signal.Status {
	if p.polled == nil {
		return nil
	}
	return p.polled.Snapshot()
}

// Replace says that next has taken over. Gates that next has adopted live on. The others close when
// no work can be waiting in them: after their longest wait, 30 s at most. Until then they serve
// work that was on its way to them, so a reload refuses nothing. On virtual time they close at
// once. A nil next means that nothing takes over.
func (p *Policy) Replace(next *Policy) {
	if p.replace(next); p.now != nil {
		p.Close()
	}
}

// replace finds out which gates are gone, and starts the timers that close them.
// On virtual time there are none.
func (p *Policy) replace(next *Policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.replaced {
		return
	}
	p.replaced = true
	p.handed = next != nil && next.polled == p.polled
	for _, name := range p.names {
		g := p.gates[name]
		if next != nil && next.gates[name] == g {
			continue
		}
		p.gone = append(p.gone, g)
		if p.now == nil {
			p.timers = append(p.timers, g.closeLater())
		}
	}
	switch {
	case p.polled == nil || p.handed:
	case len(p.timers) == 0:
		p.polled.Close()
	default:
		p.timers = append(p.timers, time.AfterFunc(ClosesWithin, p.polled.Close))
	}
}

// Close closes the gates at once: new and waiting work is refused as draining,
// permits in flight stay valid. After Replace it leaves alone what the next
// policy has adopted.
func (p *Policy) Close() { closeAll(p.own()) }

// closeAll closes gates. Those that tell a store elsewhere what they have charged do so at the same time. Otherwise some would be charged, and have
// more to tell, while one waits for its answer.
func closeAll(gates []*Gate) {
	var distant sync.WaitGroup
	for _, g := range gates {
		if d, ok := g.mechanism.(weir.Distant); ok && d.IsDistant() {
			distant.Go(g.close)
		} else {
			g.close()
		}
	}
	distant.Wait()
}

// Drain closes the gates and waits until nothing is in flight in them. If ctx ends first, the error
// says how much is in flight in which gates.
func (p *Policy) Drain(ctx context.Context) error {
	own := p.own()
	closeAll(own)
	var errs []error
	for _, g := range own {
		m, ok := g.mechanism.(drainer)
		if !ok {
			continue
		}
		if err := m.Drain(ctx); err != nil {
			errs = append(errs, fmt.Errorf("policy: gate %q still has %d in flight: %w",
				g.name, g.mechanism.Snapshot().InFlight, err))
		}
	}
	return errors.Join(errs...)
}

// own ends the polling, unless the next policy continues it. It returns the gates that this policy
// may close: all of them, or after Replace those that were not adopted.
func (p *Policy) own() []*Gate {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.timers {
		t.Stop()
	}
	p.timers = nil
	if p.polled != nil && !p.handed {
		p.polled.Close()
	}
	if p.replaced {
		return p.gone
	}
	return slices.Collect(maps.Values(p.gates))
}

// Next returns when the next Step is due, on virtual time; false means that no
// gate has anything to do by itself.
func (p *Policy) Next() (time.Duration, bool) {
	var soonest time.Duration
	found := false
	for _, name := range p.names {
		if t, ok := p.gates[name].mechanism.Next(); ok && (!found || t < soonest) {
			soonest, found = t, true
		}
	}
	return soonest, found
}

// Step lets every gate do what is due at the present virtual time: expire
// waiting work, close measuring windows.
func (p *Policy) Step() {
	for _, name := range p.names {
		p.gates[name].mechanism.Step()
	}
}

// Saved is what the gates of a policy have learned, to be kept over a restart.
// It survives a JSON round trip.
type Saved struct {
	// At is when it was saved.
	At time.Time `json:"saved_at"`
	// Gates holds what each gate has learned, by name. Gates that learn
	// nothing are left out.
	Gates map[string]SavedGate `json:"gates"`
}

// SavedGate is what one gate has learned.
type SavedGate struct {
	// Controller is the name of the controller that learned it. Another one
	// does not take it up.
	Controller string `json:"controller"`
	control.State
}

// maxClockStep is how far ahead of the clock a saved time may lie.
const maxClockStep = time.Minute

// Save returns what the gates have learned so far.
func (p *Policy) Save() Saved {
	s := Saved{At: time.Now().UTC(), Gates: map[string]SavedGate{}}
	for name, g := range p.Gates() {
		m, ok := g.mechanism.(learner)
		if !ok {
			continue
		}
		if state, ok := m.Save(); ok {
			s.Gates[name] = SavedGate{g.mechanism.Snapshot().Controller, state}
		}
	}
	return s
}

// Restore gives gates what a gate of the same name and controller had learned, and returns the
// names, sorted. If s is older than maxAge, Restore changes nothing and returns an error, because
// the backend may have changed since. 0 means any age. The same holds if s is more than a minute in
// the future. Values outside a gate's bounds are clamped.
func (p *Policy) Restore(s Saved, maxAge time.Duration) ([]string, error) {
	age := time.Since(s.At)
	switch {
	case maxAge > 0 && age > maxAge:
		return nil, fmt.Errorf("policy: learned limits are %v old, more than the %v allowed; starting from the configured ones",
			age.Round(time.Second), maxAge)
	case age < -maxClockStep:
		return nil, fmt.Errorf("policy: learned limits were saved %v in the future; check the clock; starting from the configured ones",
			(-age).Round(time.Second))
	}
	var restored []string
	for name, g := range p.Gates() {
		saved, ok := s.Gates[name]
		m, learns := g.mechanism.(learner)
		if !ok || !learns || saved.Controller != g.mechanism.Snapshot().Controller {
			continue
		}
		m.Restore(saved.State)
		restored = append(restored, name)
	}
	return restored, nil
}
