package policy

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
)

// byLatency are the controllers that learn from service times. One key shows too few of those.
var byLatency = []string{"belief", "knee", "aimd", "vegas", "gradient2"}

// checkEach checks a limit for each key.
func (c *compiler) checkEach(at fault.Path, g *GateSpec) {
	e := g.Each
	if g.Limit == nil {
		c.Add(at, "there is no limit for each key", "write limit: {limit: 20} beside it")
		return
	}
	c.checkOverrides(at.At("overrides"), e.Overrides)
	c.checkLagOf(at, g)
	c.checkIdleWeights(at[:len(at)-1].At("limit", "queue", "weights"), e.by(), &g.Limit.Queue.Weights)
	if e.Own {
		c.checkOwn(at, e)
		return
	}
	limitAt := at[:len(at)-1].At("limit")
	if k, ok := g.Limit.kind(); ok && slices.Contains(byLatency, k.word) {
		c.Add(limitAt.At("controller"), "the controller "+k.word+" learns from latencies, and one key shows too few",
			"write limit: with the slots of each key. Or write one of probe, lag, drain and resource here. With own: true beside by: each key has a controller of its own")
	}
}

// checkIdleWeights refuses weights of users or tenants if each of them has a pool of its own: nobody
// else waits there.
func (c *compiler) checkIdleWeights(at fault.Path, by string, w *WeightsSpec) {
	for who, weights := range map[string]map[string]float64{"user": w.Users, "tenant": w.Tenants} {
		if who == by && len(weights) > 0 {
			c.Add(at.At(who+"s"), "mean nothing where each "+who+" has a pool of its own", "write each: overrides:, or leave them out")
		}
	}
}

func (c *compiler) checkOverrides(at fault.Path, overrides map[string]OverrideSpec) {
	if len(overrides) > mostWeights {
		c.Add(at, fmt.Sprintf("%d keys", len(overrides)), fmt.Sprintf("write at most %d", mostWeights))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		switch o, at := overrides[key], at.At(key); {
		case o.Limit != 0 && o.Scale != 0:
			c.Add(at, "has both a limit and a scale", "leave one of them out")
		case o.Limit != 0 && o.follows():
			c.Add(at, "has both a limit and thresholds", "leave limit out, or target and critical")
		case o.Limit == 0 && o.Scale == 0 && !o.follows():
			c.Add(at, "changes nothing", "write limit: 50, or scale: 2 for twice the limit of the others")
		}
	}
}

// follows reports whether the key has thresholds of its own.
func (o OverrideSpec) follows() bool { return o.Target != 0 || o.Critical != 0 }

// checkLagOf checks the settings that mean something to one controller that goes by a lag.
func (c *compiler) checkLagOf(at fault.Path, g *GateSpec) {
	k, ok := g.Limit.kind()
	byLag := ok && k.byLag() && !g.Each.Own
	const instead = "leave it out, or write controller: lag or drain, and no own: true"
	if g.Each.Shrink == "largest_first" && !byLag && ok {
		c.Add(at.At("shrink"), "means nothing without one controller that goes by a lag", instead)
	}
	for _, key := range slices.Sorted(maps.Keys(g.Each.Overrides)) {
		o, at := g.Each.Overrides[key], at.At("overrides", key)
		switch {
		case !o.follows() || !ok:
		case !byLag:
			c.Add(at, "has thresholds, which mean nothing without one controller that goes by a lag", "leave target and critical out, or write controller: lag or drain, and no own: true")
		case k.word == "drain" && o.Critical != 0:
			c.Add(at.At("critical"), "means nothing to the controller drain", "leave it out")
		case k.word == "lag":
			c.checkThresholds(at, g.Limit, o)
		}
	}
}

// checkThresholds checks a key's own thresholds against those that it leaves to the controller.
func (c *compiler) checkThresholds(at fault.Path, l *LimitSpec, o OverrideSpec) {
	by := configOf[control.LagMapConfig](l, "lag")
	target, critical := cmp.Or(o.Target, by.Target, lagDefault("Target")), cmp.Or(o.Critical, by.Critical, lagDefault("Critical"))
	if critical > target {
		return
	}
	setting := "critical"
	if o.Critical == 0 {
		setting = "target"
	}
	c.Add(at.At(setting), fmt.Sprintf("the target of %v is not below the critical lag of %v", target, critical), "write a target below critical")
}

// lagDefault is the default of a field of control.LagMapConfig.
func lagDefault(field string) float64 {
	f, _ := reflect.TypeFor[control.LagMapConfig]().FieldByName(field)
	n, _ := strconv.ParseFloat(f.Tag.Get("default"), 64)
	return n
}

// checkOwn checks a limiter for each key.
func (c *compiler) checkOwn(at fault.Path, e *EachSpec) {
	if e.MaxKeys > mostOwnKeys {
		c.Add(at.At("max_keys"), fmt.Sprintf("%d is out of range where each has a limiter of its own", e.MaxKeys),
			fmt.Sprintf("write from 1 to %d, or leave own out", mostOwnKeys))
	}
	for _, key := range slices.Sorted(maps.Keys(e.Overrides)) {
		if e.Overrides[key].Scale != 0 {
			c.Add(at.At("overrides", key, "scale"), "each key has its own limit, so there is none to be a multiple of", "write limit: and the slots of the key")
		}
	}
}

// checkPair checks pools for reads and for writes.
func (c *compiler) checkPair(at fault.Path, g *GateSpec) {
	probe := at.At("limit", "probe")
	if !g.isPair() {
		if g.Limit != nil && g.Limit.Probe.ReadRatio != 0 {
			c.Add(probe.At("read_ratio"), "means nothing without read_write", "write read_write: true, or leave it out")
		}
		return
	}
	if len(g.Limit.Signals) > 0 {
		c.Add(at.At("limit", "signals"), "do not hold down pools that are sized together", "write a gate of its own for them: {limit: {controller: resource, signals: [...]}}")
	}
	if g.Each == nil {
		return
	}
	if !g.Each.Own {
		c.Add(probe.At("read_write"), "sizes a pair for each key, not one size for all", "write own: true beside by:")
	}
	if len(g.Each.Overrides) > 0 {
		c.Add(at.At("each", "overrides"), "mean nothing to pools that are sized together", "leave them out")
	}
}

// keyedConfig returns the settings of a gate with a limit for each key.
func (c *compiler) keyedConfig(name string) (keyed.Config, error) {
	g := c.spec.Gates[name]
	one, err := g.Limit.config()
	cfg := keyed.Config{
		Name: name, Key: keyFuncs[g.Each.by()], MaxKeys: g.Each.MaxKeys,
		Limit: one.Limit, Controller: one.Controller, Signals: c.sourceOf(g.Limit.sources()),
		LargestFirst: g.Each.Shrink == "largest_first",
		Queue:        one.Queue,
		Exempt:       one.Exempt, RefuseOversize: one.RefuseOversize, Hooks: c.hooks(), FindLeaks: c.opts.FindLeaks, Now: c.opts.Now,
	}
	for key, o := range g.Each.Overrides {
		if cfg.Overrides == nil {
			cfg.Overrides = make(map[string]keyed.Override, len(g.Each.Overrides))
		}
		cfg.Overrides[key] = keyed.Override{Limit: o.Limit, Scale: o.Scale, Target: o.Target, Critical: o.Critical}
	}
	return cfg, err
}

// keyFuncs returns the key of work, for each word of [EachSpec].By.
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

// ownConfig returns the settings of a gate with a limiter for each key.
func (c *compiler) ownConfig(name string) keyed.AdaptiveConfig {
	g := c.spec.Gates[name]
	cfg := keyed.AdaptiveConfig{
		Name: name, Key: keyFuncs[g.Each.by()], MaxKeys: g.Each.MaxKeys,
		MaxWaiting: g.Limit.Queue.Len, Now: c.opts.Now,
	}
	common := limit.Config{Signals: c.sourceOf(g.Limit.sources()), Hooks: c.ownHooks(), FindLeaks: c.opts.FindLeaks}
	cfg.New = keyed.PerKey(func(key string) (limit.Config, error) {
		return g.ownLimit(key, &common)
	})
	return cfg
}

// Bounds of the keys that have a limiter of their own.
const (
	// DefaultOwnKeys is EachSpec.MaxKeys where it is left out, with Own.
	DefaultOwnKeys = keyed.DefaultMaxAdaptive
	// mostOwnKeys is the most there can be.
	mostOwnKeys = 10_000
	// OwnKeyBytes is the most memory for a key whose controller has full windows, while no work
	// waits. BenchmarkOwnKeys measures it.
	OwnKeyBytes = 64 << 10
)

// ownHooks are the hooks of one limiter among several of a gate. They do not hear of a changed
// limit: it would be reported under the name of all of them.
func (c *compiler) ownHooks() weir.Hooks {
	h := c.hooks()
	h.LimitChanged = nil
	return h
}

// ownLimit returns the settings of the limiter of one key.
func (g *GateSpec) ownLimit(key string, common *limit.Config) (limit.Config, error) {
	one := g.Limit
	if o, ok := g.Each.Overrides[key]; ok {
		one = one.pinned(o.Limit)
	}
	cfg, err := one.config()
	cfg.Signals, cfg.Hooks, cfg.FindLeaks = common.Signals, common.Hooks, common.FindLeaks
	cfg.Queue.Len = quarter(cfg.Queue.Len)
	return cfg, err
}

// pinned returns the spec with a fixed limit instead of its own.
func (l *LimitSpec) pinned(n int64) *LimitSpec {
	return &LimitSpec{Controller: "fixed", Limit: n, Signals: l.Signals, Queue: l.Queue, Exempt: l.Exempt, RefuseOversize: l.RefuseOversize}
}

// quarter is the share of one limiter in the places of all keys. It is well below a half, above
// which priorities would no longer count (keyed.AdaptiveConfig).
func quarter(places int) int {
	switch {
	case places < 0:
		return places
	case places == 0:
		places = limit.DefaultQueueLen
	}
	return max(1, places/4)
}

// A limit may be two limits, one for reads and one for writes, which probing sizes together
// (ProbeSpec.ReadWrite). Alone it is one pair for all work; with each it is a pair for each key.

// readWrite is the kind of a gate with a pool for reads and one for writes, for all
// keys together.
const readWrite = "read_write"

// isPair reports whether the gate has pools for reads and for writes.
func (g *GateSpec) isPair() bool { return g.Limit != nil && g.Limit.Probe.ReadWrite }

// pairConfig returns the settings of a gate with pools for reads and for writes.
func (c *compiler) pairConfig(name string) keyed.AdaptiveConfig {
	g := c.spec.Gates[name]
	cfg := keyed.AdaptiveConfig{
		Name: name, Key: func(weir.Work) string { return "" }, Part: partOf, MaxKeys: 1,
		MaxWaiting: g.Limit.Queue.Len, Now: c.opts.Now,
	}
	if g.Each != nil {
		cfg.Key, cfg.MaxKeys = keyFuncs[g.Each.by()], g.Each.MaxKeys
	}
	both := limit.Config{
		Queue: g.Limit.Queue.queue(), Exempt: g.Limit.Exempt, RefuseOversize: g.Limit.RefuseOversize,
		Hooks: c.ownHooks(), FindLeaks: c.opts.FindLeaks,
	}
	both.Queue.Len = quarter(both.Queue.Len)
	cfg.New = keyed.ReadWrite(configOf[control.ProbeConfig](g.Limit, "probe"), both)
	return cfg
}

func partOf(w weir.Work) string {
	if w.Write {
		return keyed.Writes
	}
	return keyed.Reads
}
