package keyed

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// sizing is what sets the limit of all pools. Its lock is taken before those of
// the shards; the controller and the signals are asked under it and under no
// other, hooks and callbacks run under none.
type sizing struct {
	control    sync.Mutex
	controller control.Controller
	signals    control.Source
	window     control.Window
	since      time.Duration // when the window began
	before     totals        // what the shards had counted then
	timer      *time.Timer

	tickAt atomic.Int64 // when the window closes; room.Never: not at all
	about  atomic.Pointer[about]
}

// about says who set the limit and why.
type about struct {
	controller, reason string
	faults             uint64
}

// totals are the counts of all shards, and levels at one moment.
type totals struct {
	tally
	refused                         uint64 // for want of a slot
	inFlight, exempt, waiting, peak int64
	keys, busy                      int64 // known, and holding something
	bytes                           int64
	median                          time.Duration
	byClass                         [room.Classes]int
}

func (z *sizing) init(g *Pools, cfg Config, first control.Decision) {
	z.about.Store(&about{controller: z.controller.Name(), reason: first.Reason})
	z.since = g.now()
	g.schedule(z.since, first.Next)
}

// schedule sets the end of the present window: never for a length of 0.
func (g *Pools) schedule(now, length time.Duration) {
	at := room.Never
	if length > 0 {
		at = after(now, max(length, time.Millisecond))
	}
	g.tickAt.Store(int64(at))
	switch {
	case g.clock != nil:
	case at == room.Never:
		if g.timer != nil {
			g.timer.Stop()
		}
	case g.timer == nil:
		g.timer = time.AfterFunc(at-now, g.tick)
	default:
		g.timer.Reset(at - now)
	}
}

// tick closes the window if it is over: measure, decide, apply.
func (g *Pools) tick() {
	changed, answered, problem := g.ticked()
	answered.Deliver()
	changed.tell(g)
	if h := &g.settings.Load().hooks; problem != "" && h.Faulty != nil {
		h.Faulty(g.name, problem)
	}
}

func (g *Pools) ticked() (c change, out answers, problem string) {
	g.control.Lock()
	defer g.control.Unlock()
	now, at := g.now(), time.Duration(g.tickAt.Load())
	if g.closed() || at == room.Never {
		return change{}, answers{}, ""
	}
	if now < at { // Step came early, or the timer was set for an earlier window
		if g.timer != nil {
			g.timer.Reset(at - now)
		}
		return change{}, answers{}, ""
	}
	set := g.settings.Load()
	sum := g.read(set, now)
	d, problem := g.ask(set)
	was := g.about.Load()
	is := &about{controller: was.controller, reason: was.reason, faults: was.faults}
	if problem != "" {
		if is.faults++; is.faults > 1 {
			problem = "" // told once
		}
	}
	if !d.Extend {
		g.restart(now, sum)
	}
	next := *set
	next.limit, next.signal = clampLimit(d.Limit), d.Signal
	if next.limit != set.limit || next.signal != set.signal {
		is.reason = d.Reason
		c = change{set.limit, next.limit, d.Reason}
		out = g.apply(&next, false, now)
	}
	g.about.Store(is)
	g.schedule(now, d.Next)
	return c, out, problem
}

// apply puts new settings into force, and lets in whom they let in.
func (g *Pools) apply(next *settings, overrides bool, now time.Duration) (out answers) {
	was := g.settings.Swap(next)
	if !overrides && next.limit <= was.limit {
		return out
	}
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		s.resized(next, overrides, now, &out)
		s.arm(now)
		s.mu.Unlock()
	}
	return out
}

// restart begins a window.
func (g *Pools) restart(now time.Duration, sum totals) {
	g.since, g.before = now, sum
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		s.peak = 0
		s.mu.Unlock()
	}
}

// read fills in the window. It is that of the mean key in use: counts and levels
// are divided by the number of keys that hold something, rounded up, so that they
// compare with Limit, which is a key's too. MaxInFlight is the busiest key's, of
// those that admitted something in the window.
func (g *Pools) read(set *settings, now time.Duration) totals {
	sum := g.total()
	n := max(1, sum.busy)
	each := func(count int64) int64 { return (max(0, count) + n - 1) / n }
	since := func(is, was uint64) int64 { return each(int64(is - was)) }
	was, w := &g.before, &g.window
	*w = control.Window{Now: now, Elapsed: max(0, now-g.since), Readings: w.Readings[:0],
		Limit: set.limit, InFlight: each(sum.inFlight), Waiting: each(sum.waiting), MaxInFlight: max(sum.peak, each(sum.inFlight)),
		MeanInFlight: float64(sum.inFlight) / float64(n),
		Admitted:     since(sum.admitted, was.admitted), Refused: since(sum.refused, was.refused),
		OK: since(sum.outcomes[weir.OK], was.outcomes[weir.OK]), Failed: since(sum.outcomes[weir.Failed], was.outcomes[weir.Failed]),
		Overload:   since(sum.outcomes[weir.Overload], was.outcomes[weir.Overload]),
		Abandoned:  since(sum.outcomes[weir.Abandoned], was.outcomes[weir.Abandoned]),
		LatencySum: time.Duration(each(int64(sum.latency - was.latency))), Timed: each(sum.timed - was.timed),
	}
	return sum
}

// ask has the controller decide, and takes its word only where that makes sense.
func (g *Pools) ask(set *settings) (d control.Decision, problem string) {
	by := g.about.Load().controller
	kept := control.Decision{Limit: set.limit, Signal: set.signal, Next: time.Second}
	defer func() {
		if r := recover(); r != nil {
			d, problem = kept, fmt.Sprintf("controller %q panicked: %v", by, r)
		}
	}()
	if g.signals != nil {
		g.window.Readings = g.signals.Readings(g.window.Readings)
	}
	d = g.controller.Update(&g.window)
	switch {
	case d.Limit < 1 || d.Limit > limit.MaxLimit:
		return kept, fmt.Sprintf("controller %q wants a limit of %d: it must be from 1 to %d", by, d.Limit, int64(limit.MaxLimit))
	case d.Next < 0:
		return kept, fmt.Sprintf("controller %q wants a window of %v: it must not be negative", by, d.Next)
	}
	return d, ""
}

// total adds up the shards.
func (g *Pools) total() (sum totals) {
	for i := range g.shards {
		g.shards[i].addTo(&sum)
	}
	for _, r := range []weir.Reason{weir.ReasonLimit, weir.ReasonQueueFull, weir.ReasonQueueTimeout} {
		sum.refused += g.rejected[r].Load()
	}
	sum.waiting = g.waiting.Load()
	return sum
}

func (s *shard) addTo(sum *totals) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.count
	sum.admitted += c.admitted
	sum.cancelled += c.cancelled
	sum.evicted += c.evicted
	sum.newcomers += c.newcomers
	sum.tally.exempt += c.exempt
	for i, n := range c.outcomes {
		sum.outcomes[i] += n
	}
	sum.latency += c.latency
	sum.timed += c.timed
	sum.inFlight += s.inFlight
	sum.exempt += s.exempt
	sum.peak = max(sum.peak, s.peak)
	sum.keys += int64(s.table.Len())
	sum.busy += int64(s.table.Len() - s.table.Idle())
	sum.bytes += s.table.Bytes()
	sum.median = max(sum.median, s.service.Median())
	for _, q := range s.expiry {
		for c, n := range q.room.ByClass() {
			sum.byClass[c] += n
		}
	}
}

// change is a change of the limit that the hook has yet to hear of.
type change struct {
	from, to int64
	reason   string
}

func (c change) tell(g *Pools) {
	if h := &g.settings.Load().hooks; h.LimitChanged != nil && c.from != c.to {
		h.LimitChanged(g.name, c.from, c.to, c.reason)
	}
}

// Reconfigure takes up new settings while the gate runs: the limit or its
// controller, overrides, bounds, hooks. What is in flight and what waits stays; a
// new controller starts from what the old one has learned, or from the present
// limit. If a smaller MaxKeys is exceeded, idle keys go at once and keys in use as
// they become idle and newcomers ask for places. A change of Name, Key or Now is
// ignored, a closed gate refuses, and a faulty configuration changes nothing.
func (g *Pools) Reconfigure(cfg Config) error {
	cfg.Now, cfg.Key, cfg.Name = g.clock, g.key, g.name
	if err := cfg.validate(); err != nil {
		return err
	}
	changed, answered, err := g.reconfigure(cfg, cfg.controller())
	answered.Deliver()
	changed.tell(g)
	return err
}

func (g *Pools) reconfigure(cfg Config, next control.Controller) (change, answers, error) {
	g.control.Lock()
	defer g.control.Unlock()
	if g.closed() {
		return change{}, answers{}, fmt.Errorf("keyed: gate %q: %w", g.name, limit.ErrClosed)
	}
	was := g.settings.Load()
	if s, ok := next.(control.Saver); ok && !same(next, g.controller) {
		s.Restore(g.learned(was))
	}
	first := next.Start()
	g.controller, g.signals = next, cfg.Signals
	set := cfg.settings(first.Limit)
	now := g.now()
	out := g.apply(set, true, now)
	g.restart(now, g.total())
	g.about.Store(&about{controller: next.Name(), reason: "configured", faults: g.about.Load().faults})
	g.schedule(now, first.Next)
	return change{was.limit, set.limit, "configured"}, out, nil
}

// same reports whether two controllers are one. Those of a type that cannot be
// compared never are: comparing two of them would panic.
func same(a, b control.Controller) bool { return reflect.ValueOf(a).Comparable() && a == b }

// learned returns what the controller has learned, or else the present limit.
func (g *Pools) learned(set *settings) control.State {
	if s, ok := g.controller.(control.Saver); ok {
		return s.Save()
	}
	return control.State{Limit: float64(set.limit)}
}

// Save returns what the controller has learned, for [Pools.Restore] after a
// restart, and false if it learns nothing.
func (g *Pools) Save() (control.State, bool) {
	g.control.Lock()
	defer g.control.Unlock()
	if s, ok := g.controller.(control.Saver); ok {
		return s.Save(), true
	}
	return control.State{}, false
}

// Restore takes up what an earlier run has learned. A controller that learns
// nothing ignores it.
func (g *Pools) Restore(state control.State) {
	changed, answered := g.restored(state)
	answered.Deliver()
	changed.tell(g)
}

func (g *Pools) restored(state control.State) (change, answers) {
	g.control.Lock()
	defer g.control.Unlock()
	s, ok := g.controller.(control.Saver)
	if !ok || g.closed() {
		return change{}, answers{}
	}
	s.Restore(state)
	set := *g.settings.Load()
	c := change{set.limit, clampLimit(g.controller.Start().Limit), "restored"}
	set.limit = c.to
	return c, g.apply(&set, false, g.now())
}
