package policy

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/shed"
)

// checkShed checks a gate that sheds. It first reports faults for which it has a better text than
// the mechanism.
func (c *compiler) checkShed(at fault.Path, s *ShedSpec) {
	c.checkPressure(at, s)
	for i, name := range s.Signals {
		at := at.At("signals").Index(i)
		if slices.Contains(s.Signals[:i], name) {
			c.Add(at, fmt.Sprintf("%q is in the list already", name), "leave one of them out")
			continue
		}
		c.checkSignalName(at, name)
	}
	if len(s.Signals) > 0 && c.opts.Now != nil && c.opts.Readings == nil {
		c.Add(at.At("signals"), "signals are read from this machine in its own time, and there is none on virtual time",
			"write load_of: or wait_of:")
	}
	if s.Cursor != nil && s.Thresholds != (shed.Thresholds{}) {
		c.Add(at.At("thresholds"), "mean nothing beside a cursor", "leave one of the two out")
	}
	c.askShed(at, s)
}

// checkPressure checks that there is one pressure. If it comes from a gate, the gate must have a
// limit.
func (c *compiler) checkPressure(at fault.Path, s *ShedSpec) {
	given := 0
	for _, is := range []bool{len(s.Signals) > 0, s.LoadOf != "", s.WaitOf != ""} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		c.Add(at, "there is no source of pressure", "write signals: [cpu, memory], or wait_of: or load_of: and the name of a gate with a limit")
	case given > 1:
		c.Add(at, "there are several sources of pressure", "write one of signals, load_of and wait_of")
	}
	c.checkPressing(at.At("load_of"), s.LoadOf)
	c.checkPressing(at.At("wait_of"), s.WaitOf)
	if s.Wait > 0 && s.WaitOf == "" {
		c.Add(at.At("wait"), "means nothing without wait_of", "write wait_of: and the name of a gate with a limit, or leave it out")
	}
}

// checkPressing checks that the gate has one limit, to be loaded.
func (c *compiler) checkPressing(at fault.Path, name string) {
	if g, ok := c.spec.Gates[name]; name == "" || ok && g.hasOneLimit() {
		return
	}
	var known []string
	for _, name := range slices.Sorted(maps.Keys(c.spec.Gates)) {
		if g := c.spec.Gates[name]; g.hasOneLimit() {
			known = append(known, name)
		}
	}
	c.Add(at, fmt.Sprintf("%q is not a gate with one limit", name), fault.Suggest(name, known, "gates with a limit"))
}

func (g *GateSpec) hasOneLimit() bool { return g.Limit != nil && g.Each == nil && !g.isPair() }

// askShed makes a shedder of the settings, which starts nothing on virtual time, and reports
// what it finds wrong with them.
func (c *compiler) askShed(at fault.Path, s *ShedSpec) {
	cfg := s.config()
	cfg.Pressure = func() (float64, bool) { return 0, false }
	cfg.Now = func() time.Duration { return 0 }
	m, err := shed.New(cfg)
	if err == nil {
		m.Close()
		return
	}
	c.AddFresh(at, withKeys(err))
}

// shedConfig returns the settings of a gate that sheds.
func (c *compiler) shedConfig(name string) shed.Config {
	s := c.spec.Gates[name].Shed
	cfg := s.config()
	cfg.Name, cfg.Hooks, cfg.Now = name, c.hooks(), c.opts.Now
	if g := s.pressureGate(); g != (pressing{}) {
		cfg.Pressure = c.load(g).pressure
		return cfg
	}
	cfg.Signals, cfg.Heed = c.sourceOf(s.Signals), s.Signals
	return cfg
}

// pressureGate returns the gate whose load or wait is the pressure, or the zero value if there is none.
func (s *ShedSpec) pressureGate() pressing {
	switch {
	case s.WaitOf == "":
		return pressing{gate: s.LoadOf}
	case s.Wait == 0:
		return pressing{s.WaitOf, time.Duration(defaultShedWait)}
	}
	return pressing{s.WaitOf, time.Duration(s.Wait)}
}

// pressing says which gate is the pressure: its load, or if wait is set, the expected wait of a
// newcomer over wait.
type pressing struct {
	gate string
	wait time.Duration
}

// config returns what the spec itself says.
func (s *ShedSpec) config() shed.Config {
	cfg := shed.Config{
		Interval: time.Duration(s.Interval), Hold: time.Duration(s.Hold), Resalt: time.Duration(s.Resalt),
		Thresholds: s.Thresholds, Cursor: s.Cursor,
	}
	if s.Blind == "keep" {
		cfg.Blind = shed.Keep
	}
	return cfg
}

// load is the pressure of another gate, which is known only when all gates exist.
type load struct {
	of atomic.Pointer[func() (float64, bool)]
}

func (l *load) pressure() (float64, bool) {
	if f := l.of.Load(); f != nil {
		return (*f)()
	}
	return 0, false
}

// load returns the load of a gate. All gates that use it share one.
func (c *compiler) load(of pressing) *load {
	if c.loads == nil {
		c.loads = map[pressing]*load{}
	}
	if c.loads[of] == nil {
		c.loads[of] = new(load)
	}
	return c.loads[of]
}

// linkLoads connects the loads to their gates.
func (c *compiler) linkLoads(gates map[string]*Gate) {
	for of, l := range c.loads {
		pressure := shed.LoadOf(gates[of.gate])
		if of.wait > 0 {
			pressure = shed.WaitOf(gates[of.gate], of.wait)
		}
		l.of.Store(&pressure)
	}
}
