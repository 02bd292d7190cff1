package policy

import (
	"maps"
	"reflect"
	"slices"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/signal"
)

// polled is the poller of a policy. The next policy goes on with it if it wants
// the same signals.
type polled struct {
	*signal.Poller
	specs    map[string]SignalSpec
	external map[string]signal.Signal // by the name of the signal that reads it
}

// same reports whether both poll the same signals in the same way.
func (p *polled) same(other *polled) bool {
	return maps.Equal(p.specs, other.specs) && maps.EqualFunc(p.external, other.external, sameSignal)
}

func sameSignal(a, b signal.Signal) bool {
	return reflect.ValueOf(a).Comparable() && a == b
}

// poll starts to poll the signals that gates go by, or goes on with the poller of
// the policy in force.
func (c *compiler) poll(p *Policy) {
	names := c.signalNames()
	if len(names) == 0 {
		return
	}
	if c.opts.Readings != nil {
		c.source = c.opts.Readings
		return
	}
	next := &polled{specs: map[string]SignalSpec{}, external: map[string]signal.Signal{}}
	var watches []signal.Watch
	for _, name := range names {
		r, _ := c.reads(name)
		spec := c.spec.Signals[name]
		w, err := r.watch(name, spec)
		if err != nil {
			c.add(place{"signals", name}, err.Error(), "")
			continue
		}
		watches = append(watches, w)
		next.specs[name] = spec
		if s, ok := c.opts.Signals[r.word]; ok {
			next.external[name] = s
		}
	}
	if prev := c.opts.Previous; prev != nil && prev.polled != nil && prev.polled.same(next) {
		p.polled = prev.polled
	} else {
		poller, err := signal.NewPoller(signal.Config{Watches: watches, Hooks: c.opts.SignalHooks})
		if err != nil {
			c.add(place{"signals"}, err.Error(), "")
			return
		}
		next.Poller = poller
		p.polled = next
	}
	c.source = p.polled
}

// shares reports whether the policy in force has this poller too.
func (c *compiler) shares(p *polled) bool {
	return c.opts.Previous != nil && c.opts.Previous.polled == p
}

// signalNames returns the signals that gates go by, sorted.
func (c *compiler) signalNames() []string {
	used := map[string]bool{}
	for _, g := range c.spec.Gates {
		for _, name := range g.sources() {
			used[name] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// sources lists the signals that the gate needs: those that hold its limit down,
// and the one whose value is a lag.
func (l *LimitSpec) sources() []string {
	if lag := l.lagSignal(); lag != "" {
		return append(slices.Clone(l.Signals), lag)
	}
	return l.Signals
}

// lagSignal is the signal whose value is a lag and no pressure, empty if the
// controller needs none.
func (l *LimitSpec) lagSignal() string {
	switch l.Controller {
	case "lag":
		return l.Lag.Signal
	case "drain":
		return l.Drain.Signal
	}
	return ""
}

// chosen is the part of a source that one gate goes by.
type chosen struct {
	from  control.Source
	names []string
}

// Readings implements [control.Source].
func (s chosen) Readings(into []control.Reading) []control.Reading {
	kept := len(into)
	into = s.from.Readings(into)
	for _, r := range into[kept:] {
		if slices.Contains(s.names, r.Name) {
			into[kept] = r
			kept++
		}
	}
	return into[:kept]
}
