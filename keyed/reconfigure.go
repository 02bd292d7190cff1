package keyed

import (
	"fmt"
	"reflect"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// Reconfigure takes up new settings while the gate runs: the limit or its
// controller, overrides, bounds, hooks. What is in flight and what waits stays; a
// new controller starts from what the old one has learned, or from the present
// limit. If a smaller MaxKeys is exceeded, idle keys go at once and keys in use as
// they become idle and newcomers ask for places. A change of Name, Key or Now is
// ignored, a closed gate refuses, and a faulty configuration changes nothing.
func (g *Gate) Reconfigure(cfg Config) error {
	cfg.Now, cfg.Key, cfg.Name = g.clock, g.key, g.name
	if err := cfg.validate(); err != nil {
		return err
	}
	changed, answered, err := g.reconfigure(cfg, cfg.controller())
	answered.Deliver()
	changed.tell(g)
	return err
}

func (g *Gate) reconfigure(cfg Config, next control.Controller) (change, answers, error) {
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
func (g *Gate) learned(set *settings) control.State {
	if s, ok := g.controller.(control.Saver); ok {
		return s.Save()
	}
	return control.State{Limit: float64(set.limit)}
}

// Save returns what the controller has learned, for [Gate.Restore] after a
// restart, and false if it learns nothing.
func (g *Gate) Save() (control.State, bool) {
	g.control.Lock()
	defer g.control.Unlock()
	if s, ok := g.controller.(control.Saver); ok {
		return s.Save(), true
	}
	return control.State{}, false
}

// Restore takes up what an earlier run has learned. A controller that learns
// nothing ignores it.
func (g *Gate) Restore(state control.State) {
	changed, answered := g.restored(state)
	answered.Deliver()
	changed.tell(g)
}

func (g *Gate) restored(state control.State) (change, answers) {
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
