package weirkafka

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// AdmissionConfig configures [NewAdmission]. Only Lag is required. The zero value of any other field means its
// default. The defaults are those of EvidentDB, and [HighThroughput] and [CostOptimized] are its other presets.
type AdmissionConfig struct {
	// Lag is what the capacity follows: a [*Lag], or any signal in messages. Close does not close it.
	Lag signal.Signal
	// Disabled switches admission control off: all work is admitted and not counted. Lag is not read.
	Disabled bool

	// MaxCapacity is the number of permits of each database up to TargetLag, and MinCapacity from CriticalLag
	// on. Between them the capacity falls on a straight line, rounded down. Defaults 1,000 and 10.
	MaxCapacity int64 `default:"1000" min:"1" max:"1073741824"`
	MinCapacity int64 `default:"10" min:"1" max:"1073741824"`
	// TargetLag and CriticalLag are in messages. Defaults 10,000 and 100,000.
	TargetLag   float64 `default:"10000" min:"0.000001"`
	CriticalLag float64 `default:"100000" min:"0.000001"`
	// AdjustmentInterval is how often the capacity is adjusted. The lag is read as often, and at least every
	// second, so that a decision has a fresh reading. Default 5 s.
	AdjustmentInterval time.Duration `default:"5s" min:"10ms" max:"24h"`
	// Controller replaces the line: a control.Drain, or a control.LagMap with damping. It must decide by
	// readings of signals; the reading of the lag has the name of Lag. It has bounds and thresholds of its own,
	// so leave out MaxCapacity, MinCapacity, TargetLag and CriticalLag. Its interval must be
	// AdjustmentInterval.
	Controller control.Controller
	// AllAlike makes all databases shrink alike. By default the databases that hold most shrink first, and the
	// others only if that is not enough: see keyed.Config.LargestFirst. The default assumes that a permit is
	// held until its work is applied. It never allows less than EvidentDB's formula. With a Controller that
	// does not follow a lag, all databases shrink alike.
	AllAlike bool
	// Pressures are further signals, such as the processor or a store's own throttling. 1 is the highest wanted
	// value. Above 1, the highest pressure caps the capacity below what the lag allows, down to MinCapacity (1
	// with a Controller). Default none.
	Pressures []signal.Watch

	// Database names the database of a piece of work. Default: its Tenant.
	Database func(weir.Work) string
	// Overrides are databases with a capacity of their own. Default none.
	Overrides map[string]keyed.Override
	// MaxDatabases bounds the databases that are known at a time. Default keyed.DefaultMaxKeys.
	MaxDatabases int `min:"1" max:"16777215"`
	// Queue is where work waits for a permit: by default at most 1,024 pieces of work for at most 2 s. A Len
	// below 0 refuses at once. Shares guarantee a part to priorities.
	Queue limit.Queue

	// Name is the gate's name in rejections, logs and hooks. Default "admission".
	Name string `default:"admission"`
	// Prefix is the beginning of the names of the metrics, before an underscore. Default "weir".
	Prefix string `default:"weir"`
	// Logger gets a line for each change of the capacity. Default slog.Default().
	Logger *slog.Logger
	// Hooks are called as things happen.
	Hooks weir.Hooks
}

// HighThroughput is EvidentDB's preset for peak throughput: 2,000 to 50 permits, for a lag from 5,000 to
// 50,000, adjusted every 3 s. Lag is not set.
func HighThroughput() AdmissionConfig {
	return AdmissionConfig{MaxCapacity: 2000, MinCapacity: 50, TargetLag: 5000, CriticalLag: 50_000, AdjustmentInterval: 3 * time.Second}
}

// CostOptimized is EvidentDB's preset for small resources: 500 to 5 permits, for a lag from 20,000 to 200,000,
// adjusted every 10 s. Lag is not set.
func CostOptimized() AdmissionConfig {
	return AdmissionConfig{MaxCapacity: 500, MinCapacity: 5, TargetLag: 20_000, CriticalLag: 200_000, AdjustmentInterval: 10 * time.Second}
}

// Admission is a gate with permits for each database, as many as the lag of a consumer group allows. It is
// EvidentDB's admission control, composed of [keyed.Pools], control.LagMap and a [signal.Poller]. It is safe
// for concurrent use.
//
// Permits bound the work of a database that is not applied yet, so hold a permit until its work is applied.
// Call Done when the result arrives ([Producer.Publish]).
//
// While the lag is unknown, the last reading counts for two intervals. Then the capacity stays for three
// intervals, and goes to MinCapacity. A Controller has a rule of its own.
type Admission struct {
	name, prefix string
	pools        *keyed.Pools // nil: disabled
	poller       *signal.Poller
	log          *slog.Logger
	waits        waits
}

var (
	_ weir.Gate        = (*Admission)(nil)
	_ weir.TryAdmitter = (*Admission)(nil)
	_ weir.Arriver     = (*Admission)(nil)
	_ weir.Snapshotter = (*Admission)(nil)
)

// NewAdmission returns a running gate, or an error that names every setting out of range. Close it when it is
// no longer needed.
func NewAdmission(cfg AdmissionConfig) (*Admission, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	a := &Admission{name: cfg.Name, prefix: cfg.Prefix, log: cmp.Or(cfg.Logger, slog.Default())}
	if cfg.Disabled {
		return a, nil
	}
	controller, err := cfg.controller()
	if err != nil {
		return nil, err
	}
	if a.poller, err = signal.NewPoller(cfg.polling(a)); err != nil {
		return nil, err
	}
	a.pools, err = keyed.New(keyed.Config{
		Name: cfg.Name, Key: cfg.Database, Controller: controller, Signals: a.poller, Overrides: cfg.Overrides,
		LargestFirst: !cfg.AllAlike && slices.Contains([]string{"lag", "drain"}, controller.Name()),
		MaxKeys:      cfg.MaxDatabases, Queue: cfg.Queue, Hooks: a.hooks(cfg.Hooks),
	})
	if err != nil {
		a.poller.Close()
		return nil, err
	}
	return a, nil
}

// complete fills in the defaults, and reports every setting out of range.
func (c *AdmissionConfig) complete() error {
	var f fault.List
	if l, ok := c.Lag.(*Lag); ok && l == nil {
		c.Lag = nil
	}
	if !c.Disabled {
		f.Require(c.Lag != nil, fault.Path{"Lag"}, "there is no lag to follow; set the signal of NewLag, or Disabled")
	}
	if c.Controller != nil {
		const own = "a Controller has its own; leave this one out"
		f.Require(c.MaxCapacity == 0, fault.Path{"MaxCapacity"}, own)
		f.Require(c.MinCapacity == 0, fault.Path{"MinCapacity"}, own)
		f.Require(c.TargetLag == 0, fault.Path{"TargetLag"}, own)
		f.Require(c.CriticalLag == 0, fault.Path{"CriticalLag"}, own)
		c.MaxCapacity, c.MinCapacity, c.TargetLag, c.CriticalLag = 0, 0, 0, 0
	}
	setting.Complete(c, &f)
	if c.MinCapacity > c.MaxCapacity && !f.Wrong(fault.Path{"MinCapacity"}) {
		f.Add(fault.Path{"MinCapacity"}, fmt.Sprintf("%d is above MaxCapacity, which is %d", c.MinCapacity, c.MaxCapacity), fmt.Sprintf("write %d or less", c.MaxCapacity))
	}
	if !(c.CriticalLag > c.TargetLag) && !f.Wrong(fault.Path{"TargetLag"}) {
		f.Add(fault.Path{"CriticalLag"}, fmt.Sprintf("%v is not above TargetLag, which is %v", c.CriticalLag, c.TargetLag), "write more than that, such as ten times as much")
	}
	if !isMetricName(c.Prefix) {
		f.Add(fault.Path{"Prefix"}, fmt.Sprintf("%.40q cannot begin the name of a metric", c.Prefix), "write letters, digits and underscores, and no digit first")
	}
	return f.Err("weirkafka: admission")
}

// controller returns what sets the capacity.
func (c *AdmissionConfig) controller() (by control.Controller, err error) {
	least := int64(1)
	if by = c.Controller; by == nil {
		least = c.MinCapacity
		if by, err = control.NewLagMap(control.LagMapConfig{
			Signal: c.Lag.Name(), Min: c.MinCapacity, Max: c.MaxCapacity, Target: c.TargetLag, Critical: c.CriticalLag, Interval: c.AdjustmentInterval,
		}); err != nil {
			return nil, err
		}
	}
	if len(c.Pressures) == 0 {
		return by, nil
	}
	var names []string
	for _, w := range c.Pressures {
		if w.Signal != nil { // the poller reports a nil signal
			names = append(names, w.Signal.Name())
		}
	}
	return control.NewCapped(by, control.CapConfig{Signals: names, Min: least, Window: min(250*time.Millisecond, c.AdjustmentInterval)})
}

// polling says how the signals are read.
func (c *AdmissionConfig) polling(a *Admission) signal.Config {
	lag := signal.Watch{Signal: c.Lag, Interval: min(time.Second, c.AdjustmentInterval), Timeout: c.AdjustmentInterval, Hold: 2 * c.AdjustmentInterval}
	return signal.Config{
		Watches: append([]signal.Watch{lag}, c.Pressures...),
		Hooks: signal.Hooks{
			Trouble: func(name string, err error) {
				a.log.Warn("a signal of admission control cannot be read; its last value, if any, is used for some intervals. If it is the lag, the capacity then goes to its minimum", "gate", a.name, "signal", name, "error", err)
			},
			Recovered: func(name string) {
				a.log.Info("a signal of admission control can be read again", "gate", a.name, "signal", name)
			},
		},
	}
}

// hooks returns hooks that serve the gate itself, and then call the user's.
func (a *Admission) hooks(user weir.Hooks) weir.Hooks {
	h := user
	h.Admitted = func(gate string, w weir.Work, waited time.Duration) {
		database := a.pools.KeyOf(w)
		a.waits.observe(database, waited)
		if waited > 0 && a.log.Enabled(context.Background(), slog.LevelDebug) {
			a.log.Debug("admission control wait", "gate", gate, "database", label(database), "wait", waited)
		}
		if user.Admitted != nil {
			user.Admitted(gate, w, waited)
		}
	}
	h.LimitChanged = func(gate string, from, to int64, reason string) {
		a.changed(from, to, reason)
		if user.LimitChanged != nil {
			user.LimitChanged(gate, from, to, reason)
		}
	}
	return h
}

// changed logs a change: one line for all databases, and one more if permits have to come back.
func (a *Admission) changed(from, to int64, reason string) {
	attrs := []any{"gate", a.name, "from", from, "to", to, "reason", reason}
	switch lag := a.Lag(); {
	case lag.Known:
		attrs = append(attrs, "lag", math.Floor(lag.Value))
	case lag.Err != nil:
		attrs = append(attrs, "error", lag.Err) // the line about the signal may be old: see signal.Hooks
	}
	a.log.Info("adjusted capacity", attrs...)
	if to < from {
		a.log.Warn("decreased capacity; permits in use stay valid, and no new ones are granted until enough are given back", "gate", a.name, "from", from, "to", to, "permits", to-from)
	}
}

// Name returns the name from the configuration.
func (a *Admission) Name() string { return a.name }

// Admit implements [weir.Gate]: it takes a permit of the work's database, or waits for one.
func (a *Admission) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if a.pools == nil {
		return weir.Permit{}, nil
	}
	if p, ok := weir.Nested(ctx, a); ok {
		return p, nil
	}
	return a.pools.Admit(ctx, w)
}

// TryAdmit implements [weir.TryAdmitter].
func (a *Admission) TryAdmit(w weir.Work) (weir.Permit, error) {
	if a.pools == nil {
		return weir.Permit{}, nil
	}
	return a.pools.TryAdmit(w)
}

// Arrive implements [weir.Arriver].
func (a *Admission) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	if a.pools == nil {
		return weir.Permit{}, nil, nil
	}
	return a.pools.Arrive(w, wake)
}

// Snapshot implements [weir.Snapshotter], for all databases together. Limit is the capacity of a database
// without an override.
func (a *Admission) Snapshot() weir.Snapshot { return a.Usage(0).Snapshot }

// Usage describes the gate, with the databases that use most of it: see [keyed.Pools.Usage].
func (a *Admission) Usage(top int) keyed.Usage {
	if a.pools == nil {
		return keyed.Usage{Snapshot: weir.Snapshot{Name: a.name, Kind: "keyed", Mode: "off"}}
	}
	return a.pools.Usage(top)
}

// Database describes one database, and reports whether it is known: see [keyed.Pools.Key].
func (a *Admission) Database(name string) (keyed.KeyUse, bool) {
	if a.pools == nil {
		return keyed.KeyUse{}, false
	}
	return a.pools.Key(name)
}

// Lag describes the reading that the capacity follows: its value, its age and the last error. It is the zero
// Status if the gate is disabled.
func (a *Admission) Lag() signal.Status {
	if a.poller == nil {
		return signal.Status{}
	}
	return a.poller.Snapshot()[0]
}

// Close refuses new work and the work that waits, and stops reading the lag. Permits in use stay valid. A
// disabled gate goes on admitting.
func (a *Admission) Close() {
	if a.pools != nil {
		a.pools.Close()
		a.poller.Close()
	}
}

// Drain closes the gate and waits until nothing is in flight. If ctx ends before, the error says how much is
// still in flight.
func (a *Admission) Drain(ctx context.Context) error {
	if a.pools == nil {
		return nil
	}
	a.Close()
	return a.pools.Drain(ctx)
}
