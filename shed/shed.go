// Package shed is load shedding by priority: the more loaded the service is, the more
// important work must be. Nothing waits in a [Shedder], and work holds no slot of it. It
// answers in some tens of nanoseconds, so it stands first in a chain, before the gate
// with a limit.
//
//	pressure := shed.WaitOf(database, 100*time.Millisecond) // a *limit.Limiter
//	front := weir.Must(shed.New(shed.Config{Name: "front", Pressure: pressure}))
//	defer front.Close()
//	gate := weir.All(front, database)
//
// It goes by a pressure, where 1 is the most that is wanted. That is the load of another
// gate ([LoadOf]) or the wait before it ([WaitOf]). It can also be a signal of the
// process or the machine (package signal), or any function. It is read apart from the
// requests, every 10 ms. So a function that hangs, panics or returns nonsense delays
// nobody. After a second without a pressure everything is let through, or the level
// stays; see Config.Blind.
//
// # Levels
//
// Work has a level: its priority, and within that one of 128, a hash of its user. The gate
// has a level, too, and lets through all work that is not below. So a class is refused only
// when every lower class is. Two requests of one user get the same answer, so a page of ten
// calls loads or fails at once. Every hour users get new levels (Config.Resalt). Work
// without a user goes by its tenant. Work without either gets another level each time, so
// that a share of it passes.
//
// User must be the caller as authenticated, not the name that the caller gives. A caller
// that chooses its name chooses its level.
//
// # Thresholds
//
// Fixed pressures from which classes are refused, by default:
//
//	below 0.75   everything passes
//	0.75         background is refused
//	0.90         normal too
//	0.95         high too
//	1            everything: the hard cap, without which critical work has no bound
//
// This is simple, has no memory, and reacts at the next reading. But a class is refused
// as a whole. Where background is most of the load, it comes and goes in turns. A burst
// between two readings is admitted.
//
// # Cursor
//
// With Config.Cursor set, the gate finds the level itself, as DAGOR does (Zhou et al.,
// SoCC 2018). For a window it counts arrivals by level. Then it decides how much to admit
// if as much arrives again. It sets the level from which that much arrived. So it gets
// there in one step, and can cut through the middle of a class. A 128th of the highest
// class always passes, or the gate would not see the pressure go down.
//
// After a window with too much pressure it cuts by 5 % of what was admitted. After any
// other window it grows by 1 % of what arrived. That is the paper's rule, which takes
// dozens of windows to follow a step of the load. Here the gate also remembers the most
// that was admitted without overload. Beyond that, it cuts by as much as the pressure is
// too high. Below, it goes back to it at once. If a window is overloaded at less than
// that, a queue is draining or capacity was lost.
//
// A server may tell its callers its [Shedder.Level]. With a common Config.Salt they know by
// [Shedder.LevelOf] what would be refused, and need not send it.
//
// # When not to use it
//
// Where work can wait, a wait room in strict order of priority (package limit) is better.
// It refuses nothing that there is time for, and is never idle while lower work waits.
// Use a Shedder where waiting is of no use, because the queue is elsewhere. Examples are
// the scheduler, a disk, another service. Use it where concurrency is not the bottleneck
// (memory, lag), or in front of a room that low work would fill. With a pressure that
// comes late, all of this swings: use one that moves within a window. Below some tens of
// requests in a window the counts say little. Use thresholds there.
//
// Each piece of work counts as one, whatever its Cost. Work that a later gate of the chain
// refuses still counts as admitted here.
package shed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/signal"
)

// Shedder is a gate that lets work through by its priority: the higher the pressure, the
// more important work must be. Work never waits in it, and its permit is the zero Permit.
// A decision takes no lock and allocates nothing.
type Shedder struct {
	name    string
	clock   func() time.Duration
	virtual bool          // the clock is Config.Now
	draw    func() uint64 // a level for work that names nobody

	counters counters
	verdict  atomic.Pointer[verdict]

	mu     sync.Mutex // guards what follows
	core   core
	salter salter
	feed   *feed         // nil once closed
	ticked time.Duration // the last tick
	due    time.Duration // when to step, on virtual time
	closed bool
}

// verdict is the answer to newcomers until the next one. It never changes once it is
// published.
type verdict struct {
	level   Level
	closed  bool
	salt    uint64
	refusal [classes]*weir.Rejection // only of classes that are refused
	hooks   weir.Hooks

	pressure float64
	known    bool
	signal   string
}

// New makes a Shedder and starts to read the pressure. Close ends that. The
// error names every setting out of range.
func New(cfg Config) (*Shedder, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Shedder{name: cfg.Name, clock: cfg.Now, virtual: cfg.Now != nil, draw: rand.Uint64}
	s.salter = salter{secret: cfg.Salt, period: cfg.Resalt}
	if s.virtual {
		s.draw = counted()
	} else {
		epoch := time.Now()
		s.clock = func() time.Duration { return time.Since(epoch) }
		if cfg.Salt == 0 {
			s.salter.secret = rand.Uint64()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	s.core.configure(now, cfg, &s.counters)
	if err := s.start(cfg); err != nil {
		return nil, err
	}
	s.publish(now)
	return s, nil
}

// counted returns numbers that are the same in every run.
func counted() func() uint64 {
	var n atomic.Uint64
	return func() uint64 { return mix(n.Add(1)*golden, odd) }
}

// Admit implements [weir.Gate]. It never waits.
func (s *Shedder) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, s); ok {
		return p, nil // it is part of work that was let through
	}
	w.Inherit(ctx)
	return weir.Permit{}, s.decide(&w)
}

// TryAdmit implements [weir.TryAdmitter].
func (s *Shedder) TryAdmit(w weir.Work) (weir.Permit, error) {
	return weir.Permit{}, s.decide(&w)
}

// Arrive implements [weir.Arriver]. It never calls wake.
func (s *Shedder) Arrive(w weir.Work, _ func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	return weir.Permit{}, nil, s.decide(&w)
}

// decide lets w through, or says why not.
func (s *Shedder) decide(w *weir.Work) error {
	v := s.verdict.Load()
	if v.closed {
		return s.refuse(v, w, v.refusal[0])
	}
	if w.Exempt {
		s.counters.exempt.Add(1)
	} else {
		l := s.levelOf(v.salt, w)
		if l < v.level {
			s.counters.refused[l].Add(1)
			return s.refuse(v, w, v.refusal[l.Class()])
		}
		s.counters.admitted[l].Add(1)
	}
	if v.hooks.Admitted != nil {
		v.hooks.Admitted(s.name, *w, 0)
	}
	return nil
}

func (s *Shedder) refuse(v *verdict, w *weir.Work, r *weir.Rejection) error {
	if v.closed {
		s.counters.closed.Add(1)
	}
	if v.hooks.Rejected != nil {
		v.hooks.Rejected(*w, r)
	}
	return r
}

func (s *Shedder) levelOf(salt uint64, w *weir.Work) Level {
	h, ok := named(salt, w)
	if !ok {
		h = s.draw()
	}
	return level(w.Priority.Class(), h)
}

// Level returns the lowest level that is let through now. A server may tell its callers,
// so that they do not send what would be refused; see LevelOf.
func (s *Shedder) Level() Level { return s.verdict.Load().level }

// LevelOf returns the level of w now, by its priority and its User, or its Tenant if it has
// no User. Work without either gets another level each time. Instances with the same Salt
// agree on it, so a caller that knows another's Level can refuse what is below.
func (s *Shedder) LevelOf(w weir.Work) Level { return s.levelOf(s.verdict.Load().salt, &w) }

// Reconfigure changes the settings while the gate runs. The level stays until the next
// reading, and the counts continue. Name and Now cannot change, and a Salt of 0 keeps the
// present one. It returns an error and changes nothing if the gate is closed or a setting
// is out of range.
func (s *Shedder) Reconfigure(cfg Config) error {
	cfg, err := cfg.complete()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("shed: gate %q: %w", s.name, weir.ErrClosed)
	}
	before := s.feed
	if err := s.start(cfg); err != nil {
		return err
	}
	before.end()
	if cfg.Salt != 0 {
		s.salter.secret = cfg.Salt
	}
	s.salter.period = cfg.Resalt
	now := s.clock()
	s.core.configure(now, cfg, &s.counters)
	s.publish(now)
	return nil
}

// Close refuses all work from now on with [weir.ReasonDraining], and ends the
// readings without waiting for one that hangs. Closing twice does nothing.
func (s *Shedder) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.feed.end()
	s.feed = nil
	s.publish(s.clock())
}

// Next returns when [Shedder.Step] is due, on the clock of Config.Now, and false if the
// gate is closed.
func (s *Shedder) Next() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due, !s.closed
}

// Step reads the pressure and decides, if that is due. A gate on the real clock does so by
// itself.
func (s *Shedder) Step() {
	s.mu.Lock()
	now, f := s.clock(), s.feed
	if !s.virtual || s.closed || now < s.due {
		s.mu.Unlock()
		return
	}
	s.due = now + s.core.rules.Interval
	hooks := s.core.rules.Hooks
	s.mu.Unlock()
	if _, err := f.poll(s.clock); err != nil && hooks.Faulty != nil {
		hooks.Faulty(s.name, err.Error())
	}
	s.tick(f)
}

// start begins to read, with s.mu locked. Readings run in a goroutine of the poller, which
// handles panics and readings that hang. The ticker decides while no reading arrives.
func (s *Shedder) start(cfg Config) error {
	f := newFeed(&cfg)
	if !s.virtual {
		read := func(context.Context) (float64, error) {
			v, err := f.next(s.clock)
			s.tick(f)
			return v, err
		}
		hooks := signal.Hooks{}
		if h := cfg.Hooks.Faulty; h != nil {
			hooks.Trouble = func(_ string, err error) { h(s.name, err.Error()) }
		}
		poller, err := signal.NewPoller(signal.Config{Hooks: hooks, Watches: []signal.Watch{{
			Signal: signal.Func("pressure", read), Interval: cfg.Interval, Hold: cfg.Hold, Timeout: cfg.Hold,
		}}})
		if err != nil {
			return fmt.Errorf("shed: gate %q: %w", s.name, err)
		}
		f.poller, f.stop = poller, make(chan struct{})
		go s.run(f, cfg.Interval)
	}
	s.feed = f
	return nil
}

// run ticks while no reading does, until f is replaced.
func (s *Shedder) run(f *feed, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-ticker.C:
			if s.overdue(interval) {
				s.tick(f)
			}
		}
	}
}

// overdue reports whether a tick is missing.
func (s *Shedder) overdue(interval time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock()-s.ticked >= 2*interval
}

// tick decides and publishes the verdict until the next one.
func (s *Shedder) tick(f *feed) {
	s.mu.Lock()
	if s.feed != f { // f has been replaced
		s.mu.Unlock()
		return
	}
	now := s.clock()
	s.ticked = now
	from := s.core.level
	s.core.step(now, f.latest.Load(), &s.counters)
	to := s.core.level
	v := s.publish(now)
	s.mu.Unlock()
	if h := v.hooks.LimitChanged; h != nil && from != to {
		h(s.name, Levels-int64(from), Levels-int64(to), v.why())
	}
}

// publish makes a verdict of what the core has decided, with s.mu locked.
func (s *Shedder) publish(now time.Duration) *verdict {
	c := &s.core
	v := &verdict{level: c.level, closed: s.closed, salt: s.salter.at(s.timeOfDay(now)), hooks: c.rules.Hooks, known: c.known}
	if c.last != nil {
		v.pressure, v.signal = c.last.value, c.last.signal
	}
	if s.closed {
		v.refusal[0] = &weir.Rejection{Gate: s.name, Reason: weir.ReasonDraining, Retryable: true}
		s.verdict.Store(v)
		return v
	}
	rule := "below " + c.level.String()
	if c.level >= Levels {
		rule = "everything"
	}
	for class := range classes {
		if Level(class*users) >= c.level {
			break
		}
		v.refusal[class] = &weir.Rejection{
			Gate: s.name, Rule: rule, Reason: weir.ReasonShed, Signal: v.signal,
			Value: v.pressure, Limit: c.limit(class), RetryAfter: c.retry(now), Retryable: true,
		}
	}
	s.verdict.Store(v)
	return v
}

// timeOfDay is the time since 1970, in which instances agree. The gate's own clock does not go on while a machine is suspended.
func (s *Shedder) timeOfDay(now time.Duration) time.Duration {
	if s.virtual {
		return now
	}
	return time.Duration(time.Now().UnixNano())
}

// Status is a gate at one moment, in more detail than a [weir.Snapshot] has. The
// counts only grow.
type Status struct {
	// Level is the lowest that is let through: 0 everything, [Levels] nothing.
	Level Level
	// Pressure is the last good reading, Signal its name where it has one.
	// Known reports whether the reading is young enough to go by.
	Pressure float64
	Known    bool
	Signal   string
	// Classes counts work by class, weir.Background first.
	Classes [classes]Count
	// Exempt counts the exempt work that has passed.
	Exempt uint64
}

// Count is what became of the work of a class.
type Count struct{ Admitted, Refused uint64 }

// Status returns the gate's present state.
func (s *Shedder) Status() Status {
	v := s.verdict.Load()
	st := Status{
		Level: v.level, Pressure: v.pressure, Known: v.known, Signal: v.signal,
		Exempt: s.counters.exempt.Load(),
	}
	admitted, refused := sum(&s.counters.admitted), sum(&s.counters.refused)
	a, r := admitted.classes(), refused.classes()
	for class := range st.Classes {
		st.Classes[class] = Count{a[class], r[class]}
	}
	return st
}

// Snapshot implements [weir.Snapshotter]. Limit is how many of the 512 levels are let
// through, LimitReason says at which pressure. Admitted counts what this gate has let
// through, exempt work included, even if a later gate refused it.
func (s *Shedder) Snapshot() weir.Snapshot {
	v, st := s.verdict.Load(), s.Status()
	snap := weir.Snapshot{
		Name: s.name, Kind: "shed", Mode: "enforce",
		Limit: Levels - int64(v.level), LimitReason: v.why(), Signal: v.signal,
		Admitted: st.Exempt, Rejected: map[weir.Reason]uint64{},
	}
	shed := uint64(0)
	for _, c := range st.Classes {
		snap.Admitted += c.Admitted
		shed += c.Refused
	}
	for reason, n := range map[weir.Reason]uint64{weir.ReasonShed: shed, weir.ReasonDraining: s.counters.closed.Load()} {
		if n > 0 {
			snap.Rejected[reason] = n
		}
	}
	if len(snap.Rejected) == 0 {
		snap.Rejected = nil
	}
	return snap
}

// why describes the level and its reason.
func (v *verdict) why() string {
	what := "everything is let through"
	switch {
	case v.level >= Levels:
		what = "nothing is let through"
	case v.level > 0:
		what = v.level.String() + " and above is let through"
	}
	if !v.known {
		return what + ": the pressure is unknown"
	}
	return fmt.Sprintf("%s: pressure %.3g", what, v.pressure)
}
