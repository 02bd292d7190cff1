package policy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
)

// Bounds of the keys that have a limiter of their own.
const (
	// DefaultOwnKeys is EachSpec.MaxKeys where it is left out, with Own.
	DefaultOwnKeys = keyed.DefaultMaxLimiters
	// MostOwnKeys is the most there can be.
	MostOwnKeys = 10_000
	// OwnKeyBytes is what a key takes at most, once the windows of its controller
	// have filled, and nobody waits. BenchmarkOwnKeys measures it.
	OwnKeyBytes = 64 << 10
)

// ownConfig returns the settings of a gate with a limiter for each key.
func (c *compiler) ownConfig(name string) keyed.LimitersConfig {
	g := c.spec.Gates[name]
	cfg := keyed.LimitersConfig{
		Name: name, Key: keyFuncs[g.Each.by()], MaxKeys: g.Each.MaxKeys,
		MaxWaiting: g.Limit.Queue.Len, Now: c.opts.Now,
	}
	common := limit.Config{Signals: c.sourceOf(g.Limit.sources()), Hooks: c.ownHooks(), FindLeaks: c.opts.FindLeaks}
	cfg.New = keyed.Each(func(key string) (limit.Config, error) {
		return g.ownLimit(key, &common)
	})
	return cfg
}

// ownHooks are those of one limiter among several of a gate. A change of its limit is
// told to nobody: it would be told under the name of them all.
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

// quarter is how many of the places of all keys the room of one limiter has: well
// below half of them, where priorities would count no more (keyed.LimitersConfig).
func quarter(places int) int {
	switch {
	case places < 0:
		return places
	case places == 0:
		places = limit.DefaultQueueLen
	}
	return max(1, places/4)
}

// checkOwn checks a limiter for each key.
func (c *compiler) checkOwn(at place, e *EachSpec) {
	if e.MaxKeys < 0 || e.MaxKeys > MostOwnKeys {
		c.add(at.at("max_keys"), fmt.Sprintf("%d is out of range where each has a limiter of its own", e.MaxKeys),
			fmt.Sprintf("write from 1 to %d, or leave own out", MostOwnKeys))
	}
	for _, key := range slices.Sorted(maps.Keys(e.Overrides)) {
		if e.Overrides[key].Scale != 0 {
			c.add(at.at("overrides", key, "scale"), "there is no limit of the others to be a multiple of, where each key has its own", "write limit: and the slots of the key")
		}
	}
}

// Limiters returns the gate with a limiter for each key inside, nil for other
// mechanisms. What holds of [Gate.Limiter] holds of it.
func (g *Gate) Limiters() *keyed.Limiters {
	l, _ := g.mechanism.(*keyed.Limiters)
	return l
}
