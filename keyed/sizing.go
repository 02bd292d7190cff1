package keyed

import (
	"cmp"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
)

// sizing is what sets the limit of all pools. Its lock is taken before those of
// the shards. The controller and the signals are asked under it and under no
// other lock. Hooks and callbacks run under none.
type sizing struct {
	sizer  gate.Sizer
	since  time.Duration // when the window began
	before totals        // what the shards had counted then
	timer  *time.Timer
	loads  loads
	own    map[keys.Name]control.Controller // of keys with thresholds of their own

	tickAt atomic.Int64 // when the window closes; room.Never: not at all
}

// totals are the counts of all shards, and levels at one moment.
type totals struct {
	tally
	inFlight, waiting, peak int64
	keys, busy              int64 // known, and holding something
	bytes                   int64
	median                  time.Duration
	byClass                 [room.Classes]int
}

// start applies the first configuration, whose controller has decided.
func (g *Pools) start(cfg Config, c control.Controller, first control.Decision) {
	g.sizer.Lock()
	defer g.sizer.Unlock()
	g.sizer.Controller, g.sizer.Signals = c, cfg.Signals
	set := cfg.settings(g.sizer.Controller, first)
	g.startOwn(&cfg, set)
	g.settings.Store(set)
	g.since = g.front.Now()
	g.apply(set, true, true, g.since)
	g.setHooks(&cfg)
	g.schedule(g.since, first.Next)
}

// setHooks sets the hooks and the cap on exempt work.
func (g *Pools) setHooks(cfg *Config) {
	hooks := cfg.Hooks
	g.front.SetHooks(&hooks)
	g.front.FindLeaks(cfg.FindLeaks)
	g.exempt.Configure(cfg.Exempt)
}

// schedule sets the end of the present window. A length of 0 means never.
func (g *Pools) schedule(now, length time.Duration) {
	at := room.Never
	if length > 0 && !g.closed() {
		at = gate.After(now, max(length, time.Millisecond))
	}
	g.tickAt.Store(int64(at))
	switch {
	case !g.front.Timed():
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
func (g *Pools) tick() { g.deliver(g.ticked()) }

// deliver delivers the results of a change, with no lock held.
func (g *Pools) deliver(c gate.Change, answered gate.Answers) {
	answered.Deliver()
	g.front.Changed(c)
}

func (g *Pools) ticked() (c gate.Change, out gate.Answers) {
	g.sizer.Lock()
	defer g.sizer.Unlock()
	now, at := g.front.Now(), time.Duration(g.tickAt.Load())
	if g.closed() || at == room.Never {
		return c, out
	}
	if now < at { // Step came early, or the timer was set for an earlier window
		if g.timer != nil {
			g.timer.Reset(at - now)
		}
		return c, out
	}
	set := g.settings.Load()
	sum := g.read(set, now)
	if set.largest {
		g.weigh(set, now-at > at-g.since)
	}
	d, problem := g.sizer.Ask(control.Decision{Limit: set.limit, Fraction: float64(set.more) / keys.Groups, Signal: set.signal})
	c.Problem = problem
	if !d.Extend {
		g.restart(now, sum)
	}
	next := *set
	next.limit, next.signal = gate.ClampLimit(d.Limit), d.Signal
	next.share(d.Fraction)
	changed, grown := g.askOwn(&next, &c)
	if changed || next.limit != set.limit || next.signal != set.signal || next.more != set.more || next.turn != set.turn {
		next.reason = d.Reason
		c.From, c.To, c.Reason = set.limit, next.limit, d.Reason
		out = g.apply(&next, false, grown, now)
	}
	g.schedule(now, d.Next)
	return c, out
}

// askOwn asks the controllers of keys with thresholds of their own. It reports whether a
// limit of theirs has changed, and whether one has grown.
func (g *Pools) askOwn(next *settings, c *gate.Change) (changed, grown bool) {
	if len(g.own) == 0 {
		return false, false
	}
	next.overrides = maps.Clone(next.overrides)
	for name, by := range g.own {
		o := next.overrides[name]
		d, problem := g.sizer.AskAlso(by, control.Decision{Limit: o.own})
		c.Problem = cmp.Or(c.Problem, problem)
		limit := gate.ClampLimit(d.Limit)
		changed, grown = changed || limit != o.own, grown || limit > o.own
		o.own = limit
		next.overrides[name] = o
	}
	return changed, grown
}

// startOwn makes the controllers of keys with thresholds of their own. One that was there
// before goes on from its limit, another from that of the others.
func (g *Pools) startOwn(cfg *Config, set *settings) {
	was := g.own
	g.own = make(map[keys.Name]control.Controller)
	by, _ := cfg.Controller.(control.Thresholds)
	for key, o := range cfg.Overrides {
		if !o.follows() || by == nil {
			continue
		}
		c, err := by.WithThresholds(o.Target, o.Critical)
		if err != nil {
			continue // validate has asked the same
		}
		name := keys.NameOf(key)
		if heir, ok := c.(control.Saver); ok {
			state := control.State{Limit: float64(set.limit)}
			if old, ok := was[name].(control.Saver); ok {
				state = old.Save()
			}
			heir.Restore(state)
		}
		g.own[name] = c
		set.overrides[name] = override{o, gate.ClampLimit(c.Start().Limit)}
	}
}

// apply puts new settings into force, and admits the waiters that can start now. overrides
// says whether the overrides have changed, grown whether the limit of a key may have grown.
func (g *Pools) apply(next *settings, overrides, grown bool, now time.Duration) (out gate.Answers) {
	was := g.settings.Swap(next)
	grown = grown || next.limit > was.limit || next.limit == was.limit && next.more > 0
	if !overrides && !grown {
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

// read fills in the window. It describes the mean key in use. Counts and levels
// are divided by the number of keys that hold something, rounded up. So they
// compare with Limit, which is also that of one key. MaxInFlight is that of the
// busiest key among those that admitted something in the window.
func (g *Pools) read(set *settings, now time.Duration) totals {
	sum := g.total()
	n := max(1, sum.busy)
	each := func(count int64) int64 { return (max(0, count) + n - 1) / n }
	since := func(is, was uint64) int64 { return each(int64(is - was)) }
	was, w := &g.before, &g.sizer.Window
	*w = control.Window{Now: now, Elapsed: max(0, now-g.since), Readings: w.Readings[:0],
		Limit: set.limit, InFlight: each(sum.inFlight), Waiting: each(sum.waiting), MaxInFlight: max(sum.peak, each(sum.inFlight)),
		MeanInFlight: float64(sum.inFlight) / float64(n),
		Admitted:     since(sum.admitted, was.admitted),
		OK:           since(sum.outcomes[weir.OK], was.outcomes[weir.OK]), Failed: since(sum.outcomes[weir.Failed], was.outcomes[weir.Failed]),
		Overload:   since(sum.outcomes[weir.Overload], was.outcomes[weir.Overload]),
		Abandoned:  since(sum.outcomes[weir.Abandoned], was.outcomes[weir.Abandoned]),
		LatencySum: time.Duration(each(int64(sum.latency - was.latency))), Timed: each(sum.timed - was.timed),
	}
	return sum
}

// loads are what each key holds, at the end of a window. They tell which keys shrink
// first.
type loads struct {
	each   []float64    // of the keys that have the limit
	scaled []scaledLoad // of those that have a multiple of it
	pinned float64      // of those that it does not move, within their own
	total  float64
}

// scaledLoad is what a key holds whose limit is a multiple of the others'.
type scaledLoad struct {
	held float64
	key  override
}

// weigh lets the controller ask what the keys hold (control.Window.Within). Only then each of
// them is visited, once a window and one shard at a time. What they held when the window began
// counts if it was more, because a reading may be as old as that. It does not if the window was far too long: then the
// process, or the machine, has stood still.
func (g *Pools) weigh(set *settings, stood bool) {
	asked, before := false, float64(g.before.inFlight)
	if stood {
		before = 0
	}
	g.sizer.Window.Within = func(limit int64) (held, all float64) {
		if !asked {
			asked = true
			g.gather(set)
		}
		return g.loads.within(limit), max(g.loads.total, before)
	}
}

func (g *Pools) gather(set *settings) {
	l := &g.loads
	*l = loads{each: l.each[:0], scaled: l.scaled[:0]}
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		s.table.All(func(_ uint32, e *keys.Entry) bool {
			if e.Held() > 0 {
				l.add(set, e)
			}
			return true
		})
		s.mu.Unlock()
	}
}

func (l *loads) add(set *settings, e *keys.Entry) {
	held := float64(e.Held())
	l.total += held
	if !e.Is(keys.Marked) {
		l.each = append(l.each, held)
		return
	}
	o := set.overrides[*e.Name()]
	if o.Limit > 0 || o.own > 0 {
		l.pinned += min(held, float64(o.from(set.limit))) // no other limit moves it
		return
	}
	l.scaled = append(l.scaled, scaledLoad{held, o})
}

// within is control.Window.Within.
func (l *loads) within(limit int64) float64 {
	sum, most := l.pinned, float64(limit)
	for _, held := range l.each {
		sum += min(held, most)
	}
	for _, s := range l.scaled {
		sum += min(s.held, float64(s.key.from(limit)))
	}
	return sum
}

// total adds up the shards.
func (g *Pools) total() (sum totals) {
	for i := range g.shards {
		g.shards[i].addTo(&sum)
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
	for i, n := range c.outcomes {
		sum.outcomes[i] += n
	}
	sum.latency += c.latency
	sum.timed += c.timed
	sum.inFlight += s.inFlight
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

// Reconfigure replaces the settings while the gate runs: the limit or its
// controller, overrides, bounds, hooks. What is in flight and what waits stays. A
// new controller starts from what the old one has learned, or from the present
// limit. If there are more keys than a smaller MaxKeys, idle keys go at once. Keys
// in use go when they become idle and newcomers ask for places. A change of Name,
// Key or Now is ignored, a closed gate refuses, and a faulty configuration changes
// nothing.
func (g *Pools) Reconfigure(cfg Config) error {
	cfg.Now, cfg.Key, cfg.Name = g.front.Clock(), g.key, g.Name()
	if err := cfg.validate(); err != nil {
		return err
	}
	c, answered, err := g.reconfigure(cfg)
	g.deliver(c, answered)
	return err
}

func (g *Pools) reconfigure(cfg Config) (c gate.Change, out gate.Answers, err error) {
	g.sizer.Lock()
	defer g.sizer.Unlock()
	if g.closed() {
		return c, out, fmt.Errorf("keyed: gate %q: %w", g.Name(), weir.ErrClosed)
	}
	was := g.settings.Load()
	first, err := g.sizer.Replace(gate.ControllerOr(cfg.Controller, cfg.Limit), cfg.Signals, was.limit)
	if err != nil {
		return c, out, cfg.errStart(err)
	}
	set := cfg.settings(g.sizer.Controller, first)
	g.startOwn(&cfg, set)
	if set.limit == was.limit && set.controller == was.controller && was.signal == "" {
		set.reason = was.reason // nothing about the limit has changed
	}
	now := g.front.Now()
	g.setHooks(&cfg)
	out = g.apply(set, true, true, now)
	g.restart(now, g.total())
	g.schedule(now, first.Next)
	return gate.Change{From: was.limit, To: set.limit, Reason: first.Reason}, out, nil
}

// Save returns what the controller has learned, for [Pools.Restore] after a
// restart, and false if it learns nothing.
func (g *Pools) Save() (control.State, bool) { return g.sizer.Save() }

// Restore gives the controller what an earlier run has learned. A controller that
// learns nothing ignores it.
func (g *Pools) Restore(state control.State) { g.deliver(g.restored(state)) }

func (g *Pools) restored(state control.State) (c gate.Change, out gate.Answers) {
	g.sizer.Lock()
	defer g.sizer.Unlock()
	if g.closed() {
		return c, out
	}
	base, ok := g.sizer.Restore(state)
	if !ok {
		return c, out
	}
	set := *g.settings.Load()
	c = gate.Change{From: set.limit, To: gate.ClampLimit(base), Reason: "restored"}
	set.limit, set.reason = c.To, c.Reason
	return c, g.apply(&set, false, false, g.front.Now())
}
