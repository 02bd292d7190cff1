package policy

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/shed"
)

// mechanism is what a Gate asks.
type mechanism interface {
	weir.Gate
	weir.TryAdmitter
	weir.Arriver
	weir.Snapshotter
	Close()
	Next() (time.Duration, bool)
	Step()
}

// learner is a mechanism whose controller learns.
type learner interface {
	Save() (control.State, bool)
	Restore(control.State)
}

// drainer is a mechanism that permits are held of.
type drainer interface {
	Drain(ctx context.Context) error
}

// kindOf names the mechanism of a gate, and whatever about it cannot be changed
// while it lives: a gate of another kind does not take over.
func kindOf(g *GateSpec) string {
	switch {
	case g.Shed != nil:
		return "shed"
	case g.Quota != nil:
		return g.Quota.quotaKind()
	case g.isPair() && g.Each != nil:
		return readWrite + " " + g.Each.by()
	case g.isPair():
		return readWrite
	case g.Each != nil && g.Each.Own:
		return "own " + g.Each.by()
	case g.Each != nil:
		return "each " + g.Each.by()
	}
	return "limit"
}

// newMechanism makes the mechanism of a gate.
func (c *compiler) newMechanism(name string) (mechanism, error) {
	switch g := c.spec.Gates[name]; {
	case g.Shed != nil:
		return orNone(shed.New(c.shedConfig(name)))
	case g.Quota != nil:
		return c.newQuota(name)
	case g.isPair():
		return orNone(keyed.NewLimiters(c.pairConfig(name)))
	case g.Each != nil && g.Each.Own:
		return orNone(keyed.NewLimiters(c.ownConfig(name)))
	case g.Each != nil:
		cfg, err := c.keyedConfig(name)
		if err != nil {
			return nil, err
		}
		return orNone(keyed.New(cfg))
	}
	cfg, err := c.config(name)
	if err != nil {
		return nil, err
	}
	return orNone(limit.New(cfg))
}

// orNone keeps a nil pointer from becoming a mechanism that is not nil.
func orNone[M mechanism](m M, err error) (mechanism, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// reconfigure makes a live mechanism of the same kind take up the settings.
func (c *compiler) reconfigure(live mechanism, name string) error {
	switch m := live.(type) {
	case *shed.Shedder:
		return m.Reconfigure(c.shedConfig(name))
	case *quota.Quota:
		return c.reconfigureQuota(m, name)
	case *keyed.Limiters:
		if g := c.spec.Gates[name]; g.isPair() {
			return m.Reconfigure(c.pairConfig(name))
		}
		return m.Reconfigure(c.ownConfig(name))
	case *keyed.Gate:
		cfg, err := c.keyedConfig(name)
		if err != nil {
			return err
		}
		return m.Reconfigure(cfg)
	}
	cfg, err := c.config(name) // a controller belongs to one limiter: another one
	if err != nil {
		return err
	}
	return live.(*limit.Limiter).Reconfigure(cfg)
}

// config returns the settings of a gate with one limit.
func (c *compiler) config(name string) (limit.Config, error) {
	spec := c.spec.Gates[name].Limit
	cfg, err := spec.config()
	cfg.Signals = c.sourceOf(spec.sources())
	cfg.Name = name
	cfg.Hooks = c.hooks()
	cfg.FindLeaks = c.opts.FindLeaks
	cfg.Now = c.opts.Now
	return cfg, err
}

// keyedConfig returns the settings of a gate with a limit for each key.
func (c *compiler) keyedConfig(name string) (keyed.Config, error) {
	g := c.spec.Gates[name]
	one, err := g.Limit.config()
	cfg := keyed.Config{
		Name: name, Key: keyFuncs[g.Each.by()], MaxKeys: g.Each.MaxKeys,
		Limit: one.Limit, Controller: one.Controller, Signals: c.sourceOf(g.Limit.sources()),
		Queue:  keyed.Queue(one.Queue),
		Exempt: one.Exempt, RefuseOversize: one.RefuseOversize, Hooks: c.hooks(), Now: c.opts.Now,
	}
	for key, o := range g.Each.Overrides {
		if cfg.Overrides == nil {
			cfg.Overrides = make(map[string]keyed.Override, len(g.Each.Overrides))
		}
		cfg.Overrides[key] = keyed.Override{Limit: o.Limit, Scale: o.Scale}
	}
	return cfg, err
}

// keyFuncs are the words for whose pool it is.
var keyFuncs = map[string]func(weir.Work) string{
	"tenant": func(w weir.Work) string { return w.Tenant },
	"user":   func(w weir.Work) string { return w.User },
	"client": func(w weir.Work) string { return w.Client },
	"route":  func(w weir.Work) string { return w.Op },
}

func (e *EachSpec) by() string {
	if e.By == "" {
		return "tenant"
	}
	return e.By
}

// shedConfig returns the settings of a gate that sheds.
func (c *compiler) shedConfig(name string) shed.Config {
	s := c.spec.Gates[name].Shed
	cfg := s.config()
	cfg.Name, cfg.Hooks, cfg.Now = name, c.hooks(), c.opts.Now
	if of := s.of(); of != (pressing{}) {
		cfg.Pressure = c.load(of).pressure
		return cfg
	}
	cfg.Signals, cfg.Heed = c.sourceOf(s.Signals), s.Signals
	return cfg
}

// pressing says which gate is a pressure, and how: by its load, or with a wait by
// what a newcomer waits there over that.
type pressing struct {
	gate string
	wait time.Duration
}

// of returns the gate whose load the spec goes by, the zero value if none.
func (s *ShedSpec) of() pressing {
	switch {
	case s.WaitOf == "":
		return pressing{gate: s.LoadOf}
	case s.Wait == 0:
		return pressing{s.WaitOf, time.Duration(DefaultShedWait)}
	}
	return pressing{s.WaitOf, time.Duration(s.Wait)}
}

// config returns what the spec itself says.
func (s *ShedSpec) config() shed.Config {
	t := s.Thresholds
	cfg := shed.Config{
		Interval: time.Duration(s.Interval), Hold: time.Duration(s.Hold), Resalt: time.Duration(s.Resalt),
		Thresholds: shed.Thresholds{Background: t.Background, Normal: t.Normal, High: t.High, Critical: t.Critical},
	}
	if s.Blind == "keep" {
		cfg.Blind = shed.Keep
	}
	if u := s.Cursor; u != nil {
		cfg.Cursor = &shed.Cursor{
			Window: time.Duration(u.Window), Requests: u.Requests, Overload: u.Overload,
			Alpha: u.Alpha, Beta: u.Beta, MaxCut: u.MaxCut, MaxGrow: u.MaxGrow, Plain: u.Plain,
		}
	}
	return cfg
}

// load is the pressure of a gate that is known only when all gates are.
type load struct {
	of atomic.Pointer[func() (float64, bool)]
}

func (l *load) pressure() (float64, bool) {
	if f := l.of.Load(); f != nil {
		return (*f)()
	}
	return 0, false
}

// load returns the one load for all who go by it.
func (c *compiler) load(of pressing) *load {
	if c.loads == nil {
		c.loads = map[pressing]*load{}
	}
	if c.loads[of] == nil {
		c.loads[of] = new(load)
	}
	return c.loads[of]
}

// linkLoads says which gates the loads are of.
func (c *compiler) linkLoads(gates map[string]*Gate) {
	for of, l := range c.loads {
		pressure := shed.Load(gates[of.gate])
		if of.wait > 0 {
			pressure = shed.Wait(gates[of.gate], of.wait)
		}
		l.of.Store(&pressure)
	}
}

// sourceOf returns the part of the readings that a gate goes by, nil for none.
func (c *compiler) sourceOf(names []string) control.Source {
	if len(names) == 0 {
		return nil
	}
	return chosen{c.source, names}
}

// hooks are those that the mechanisms call. Rejected is left to the Gate: only it
// knows what is carried out.
func (c *compiler) hooks() weir.Hooks {
	h := c.opts.Hooks
	h.Rejected = nil
	return h
}
