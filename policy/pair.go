package policy

import (
	"net/http"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
)

// A limit may be two, one for reads and one for writes, which probing sizes together:
// see ProbeSpec.ReadWrite. Alone it is one pair for all work, with each a pair for
// each key.

// readWrite is the kind of a gate with a pool for reads and one for writes, for all
// keys together.
const readWrite = "read_write"

// Words for RouteSpec.Access.
var accesses = []string{"read", "write"}

// isPair reports whether the gate has pools for reads and for writes.
func (g *GateSpec) isPair() bool { return g.Limit != nil && g.Limit.Probe.ReadWrite }

func (l *LimitSpec) probeConfig() control.ProbeConfig {
	p := l.Probe
	return control.ProbeConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max, ReadRatio: p.ReadRatio,
		Step: p.Step, Weight: p.Weight, Interval: time.Duration(p.Interval),
	}
}

// pairConfig returns the settings of a gate with pools for reads and for writes.
func (c *compiler) pairConfig(name string) keyed.LimitersConfig {
	g := c.spec.Gates[name]
	cfg := keyed.LimitersConfig{
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
	cfg.New = keyed.ReadWrite(g.Limit.probeConfig(), both)
	return cfg
}

func partOf(w weir.Work) string {
	if w.Write {
		return keyed.Writes
	}
	return keyed.Reads
}

// checkPair checks pools for reads and for writes.
func (c *compiler) checkPair(at place, g *GateSpec) {
	probe := at.at("limit", "probe")
	if !g.isPair() {
		if g.Limit != nil && g.Limit.Probe.ReadRatio != 0 {
			c.add(probe.at("read_ratio"), "means nothing without read_write", "write read_write: true, or leave it out")
		}
		return
	}
	if len(g.Limit.Signals) > 0 {
		c.add(at.at("limit", "signals"), "do not hold down pools that are sized together", "write a gate of its own for them: {limit: {controller: resource, signals: [...]}}")
	}
	if g.Each == nil {
		return
	}
	if !g.Each.Own {
		c.add(probe.at("read_write"), "sizes a pair for each key, not one size for all", "write own: true beside by:")
	}
	if len(g.Each.Overrides) > 0 {
		c.add(at.at("each", "overrides"), "mean nothing to pools that are sized together", "leave them out")
	}
}

// Parts returns the pools of a gate that has one for reads and one for writes for all
// work together, by the words read and write; nil for any other gate, and before the
// first work.
func (g *Gate) Parts() map[string]weir.Snapshot {
	l := g.Limiters()
	if l == nil {
		return nil
	}
	parts := map[string]weir.Snapshot{}
	for _, part := range accesses {
		if s, ok := l.Limiter("", part); ok {
			parts[part] = s
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return parts
}

// writes reports whether a request of the route changes something: as the route
// says, else by its method, of which RFC 9110 (section 9.2.1) calls some safe.
func (rt *Route) writes(method string) bool {
	if rt != nil && rt.access != "" {
		return rt.work.Write
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "": // as net/http, GET
		return false
	}
	return true
}
