package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
)

// The bounds of a scenario: far beyond what anybody waits for, but finite.
const (
	maxDuration = 1000 * time.Hour
	maxRate     = 1e9
	maxTimeout  = time.Hour
	maxRequests = 1e9 // that a run may offer, by its rates
)

func (s *Scenario) check(f *fault.List) {
	f.Require(s.Name != "", fault.Path{"name"}, "missing: reports are headed by it")
	if s.Backend.Name == "" {
		s.Backend.check(f, fault.Path{"backend"})
	}
	f.Require(s.Gateways >= 0 && s.Gateways <= 1000, fault.Path{"gateways"}, "%d: must be from 1 to 1000", s.Gateways)
	f.Require(s.OnAbandon == "" || s.OnAbandon == "hold" || s.OnAbandon == "release", fault.Path{"on_abandon"}, "%q: must be hold or release", s.OnAbandon)
	f.Require(s.Repeat >= 0 && s.Repeat <= 1e6, fault.Path{"repeat"}, "%d: must be from 1 to 1000000", s.Repeat)
	f.Require(s.Requests >= 0, fault.Path{"requests"}, "%d: must not be negative", s.Requests)
	f.Require(len(s.Phases) > 0, fault.Path{"phases"}, "missing: at least one {\"for\": \"60s\", \"load\": 2}")
	for i := range s.Phases {
		s.Phases[i].check(f, fault.Path{"phases"}.Index(i))
	}
	if d := s.Duration(); d > maxDuration {
		f.Require(false, fault.Path{"phases"}, "%v in all: must be at most %v", d, maxDuration)
	}
	for i := range s.Traffic {
		s.Traffic[i].check(f, fault.Path{"traffic"}.Index(i))
	}
	s.Fair.check(f, fault.Path{"fair"})
	for i := range s.Goals {
		s.checkGoal(f, i)
	}
}

func (p *Phase) check(f *fault.List, path fault.Path) {
	f.Require(p.For > 0 && time.Duration(p.For) <= maxDuration, path.At("for"), "%v: must be more than 0 and at most %v", p.For, maxDuration)
	f.Require(p.Load >= 0 && p.Load <= maxRate, path.At("load"), "%v: must not be negative, nor above %g", p.Load, float64(maxRate))
	f.Require(p.RPS >= 0 && p.RPS <= maxRate, path.At("rps"), "%v: must not be negative, nor above %g", p.RPS, float64(maxRate))
	f.Require(p.Load == 0 || p.RPS == 0, path, "load and rps are both given; write one of them")
	f.Require(p.Capacity >= 0 && p.Capacity <= 1000, path.At("capacity"), "%v: must be more than 0 and at most 1000 (for a backend that stands still write \"stalled\": true)", p.Capacity)
	f.Require(p.Work >= 0 && p.Work <= 1000, path.At("work"), "%v: must be more than 0 and at most 1000", p.Work)
	f.Require(!p.Stalled || p.Capacity == 0, path.At("stalled"), "a backend that stands still has no capacity; leave that out")
	if p.Errors != nil {
		p.Errors.check(f, path.At("errors"))
	}
}

func (e *Errors) check(f *fault.List, path fault.Path) {
	f.Require(e.Share >= 0 && e.Share <= 1, path.At("share"), "%v: must be from 0 to 1", e.Share)
	f.Require(e.After >= 0 && time.Duration(e.After) <= maxTimeout, path.At("after"), "%v: must be from 0 to %v", e.After, maxTimeout)
	f.Require(e.As == "" || e.As == "failed" || e.As == "overload", path.At("as"), "%q: must be failed or overload", e.As)
}

// aboutBackend reports whether the phase says more than a rate.
func (p *Phase) aboutBackend() bool {
	return p.Capacity != 0 || p.Work != 0 || p.Stalled || p.Suspended || p.Errors != nil
}

func (c *Class) check(f *fault.List, path fault.Path) {
	f.Require(c.Share >= 0, path.At("share"), "%v: must not be negative", c.Share)
	f.Require(len(c.At) == 0 || len(c.Phases) == 0 && c.Share == 0, path.At("at"), "cannot go together with phases or share")
	f.Require(len(c.Phases) == 0 || c.Share == 0, path.At("share"), "cannot go together with phases of its own")
	for i, at := range c.At {
		f.Require(at >= 0, path.At("at").Index(i), "%v: must not be negative", at)
	}
	for i := range c.Phases {
		c.Phases[i].check(f, path.At("phases").Index(i))
		f.Require(!c.Phases[i].aboutBackend(), path.At("phases").Index(i), "capacity, work, stalled, suspended and errors belong to the scenario's phases, not to a class's")
	}
	f.Require(c.Arrivals == "" || c.Arrivals == "poisson" || c.Arrivals == "regular", path.At("arrivals"), "%q: must be poisson or regular", c.Arrivals)
	f.Require(c.Tenants >= 0 && c.Tenants <= 1e6, path.At("tenants"), "%d: must be from 0 to 1000000", c.Tenants)
	if _, ok := weir.ParsePriority(c.Priority); c.Priority != "" && !ok {
		f.Require(false, path.At("priority"), "%q: must be background, normal, high or critical", c.Priority)
	}
	f.Require(c.Cost >= 0, path.At("cost"), "%d: must not be negative", c.Cost)
	c.checkTask(f, path)
	f.Require(c.Deadline >= 0, path.At("deadline"), "%v: must not be negative", c.Deadline)
	f.Require(c.Timeout >= 0, path.At("timeout"), "%v: must not be negative", c.Timeout)
	f.Require(c.Patience >= 0 && c.Patience <= 1e6, path.At("patience"), "%v: must be from 0 to 1000000", c.Patience)
	f.Require(c.Patience == 0 || c.Timeout == 0 && !c.Leaves, path.At("patience"), "cannot go together with timeout or leaves")
	f.Require(c.Work >= 0 && c.Work <= 1e6, path.At("work"), "%v: must be from 0 to 1000000", c.Work)
	f.Require(c.Service == nil || c.Shape == nil && c.Work == 0, path.At("service"), "cannot go together with shape or work")
	if c.Service != nil {
		c.Service.check(f, path.At("service"))
	}
	if c.Shape != nil {
		c.Shape.check(f, path.At("shape"))
	}
	if c.Cache != nil {
		c.Cache.check(f, path.At("cache"))
	}
	if c.Retry != nil {
		c.Retry.check(f, path.At("retry"), c.Timeout > 0 || c.Leaves || c.Patience > 0)
	}
}

// checkTask checks the fields about clients in a loop and tasks of calls.
func (c *Class) checkTask(f *fault.List, path fault.Path) {
	f.Require(c.Clients >= 0 && c.Clients <= 1e6, path.At("clients"), "%d: must be from 0 to 1000000", c.Clients)
	f.Require(c.Clients == 0 || len(c.Phases) == 0 && len(c.At) == 0 && c.Share == 0, path.At("clients"), "cannot go together with phases, at or share: each sends its next request when it has its answer")
	f.Require(c.Clients == 0 || c.Cache == nil, path.At("clients"), "cannot go together with cache")
	f.Require(c.Pause >= 0 && time.Duration(c.Pause) <= maxTimeout, path.At("pause"), "%v: must be from 0 to %v", c.Pause, maxTimeout)
	f.Require(c.Think >= 0 && time.Duration(c.Think) <= maxTimeout, path.At("think"), "%v: must be from 0 to %v", c.Think, maxTimeout)
	f.Require(c.Think == 0 && c.Pause == 0 || c.Clients > 0, path.At("clients"), "missing: think and pause are theirs")
	f.Require(c.Settled >= 0, path.At("settled"), "%d: must not be negative", c.Settled)
	f.Require(c.Calls >= 0 && c.Calls <= 1000, path.At("calls"), "%d: must be from 1 to 1000", c.Calls)
	f.Require(c.Calls > 1 || c.Later == "" && !c.Nested, path.At("calls"), "%d: later and nested need at least 2", c.Calls)
	if _, ok := weir.ParsePriority(c.Later); c.Later != "" && !ok {
		f.Require(false, path.At("later"), "%q: must be background, normal, high or critical", c.Later)
	}
}

func (s *Fair) check(f *fault.List, path fault.Path) {
	for _, of := range []string{"users", "tenants"} {
		weights := map[string]map[string]float64{"users": s.Users, "tenants": s.Tenants}[of]
		for _, name := range slices.Sorted(maps.Keys(weights)) {
			f.Require(weights[name] > 0 && weights[name] <= 1e6, path.At(of, name), "%v: must be more than 0 and at most 1000000", weights[name])
		}
	}
	var all float64
	for _, name := range slices.Sorted(maps.Keys(s.Shares)) {
		_, ok := weir.ParsePriority(name)
		f.Require(ok, path.At("shares", name), "must be background, normal, high or critical")
		f.Require(s.Shares[name] > 0, path.At("shares", name), "%v: must be more than 0", s.Shares[name])
		all += s.Shares[name]
	}
	f.Require(all <= 1, path.At("shares"), "they add up to %v: must be at most 1", all)
}

func (r *Retry) check(f *fault.List, path fault.Path, leaves bool) {
	f.Require(r.Attempts >= 1 && r.Attempts <= 1000, path.At("attempts"), "%d: must be from 1 to 1000", r.Attempts)
	for i, on := range r.On {
		f.Require(on == "timeout" || on == "refusal", path.At("on").Index(i), "%q: must be timeout or refusal", on)
		f.Require(on != "timeout" || leaves, path.At("on").Index(i), "the class has no timeout, so there is none to retry on")
	}
	f.Require(r.Backoff >= 0 && time.Duration(r.Backoff) <= maxTimeout, path.At("backoff"), "%v: must be from 0 to %v", r.Backoff, maxTimeout)
	f.Require(r.MaxBackoff >= 0 && time.Duration(r.MaxBackoff) <= maxTimeout, path.At("max_backoff"), "%v: must be from 0 to %v", r.MaxBackoff, maxTimeout)
}

func (s *Scenario) checkGoal(f *fault.List, i int) {
	g, path := &s.Goals[i], fault.Path{"goals"}.Index(i)
	known, named := Metrics(), g.Class == ""
	if !named {
		known = ClassMetrics()
		named = slices.ContainsFunc(s.Traffic, func(c Class) bool { return c.Name == g.Class })
	}
	f.Require(named, path.At("class"), "%q: no class of the traffic has that name", g.Class)
	f.Require(g.metric() != nil, path.At("metric"), "%q: must be one of %s", g.Metric, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	f.Require(g.TimesAlone == nil || g.Class != "", path.At("times_alone"), "needs a class to be alone")
	f.Require(g.AloneAt >= 0 && g.AloneAt <= 1, path.At("alone_at"), "%v: must be more than 0 and at most 1", g.AloneAt)
	f.Require(g.From >= 0, path.At("from"), "%v: must not be negative", g.From)
	f.Require(g.To == 0 || g.To > g.From, path.At("to"), "%v: must be after from, %v", g.To, g.From)
	f.Require(time.Duration(g.To) <= s.Duration(), path.At("to"), "%v: the run ends at %v", g.To, s.Duration())
	f.Require(time.Duration(g.From) < s.Duration() || s.Duration() == 0, path.At("from"), "%v: the run ends at %v", g.From, s.Duration())
	f.Require(g.Level >= 0, path.At("level"), "%v: must not be negative", g.Level)
}

// checkResolved checks what can only be checked once the backend and the
// policy are known in full.
func (s *Scenario) checkResolved(f *fault.List) {
	routes := map[string]bool{}
	for _, r := range s.Policy.Spec.Routes {
		routes[routeName(&r)] = true
	}
	for i := range s.Traffic {
		if name := s.Traffic[i].Route; name != "" && len(routes) > 0 && !routes[name] {
			f.Require(false, fault.Path{"traffic"}.Index(i).At("route"), "%q: the policy has no such route; it has %s", name, strings.Join(slices.Sorted(maps.Keys(routes)), ", "))
		}
	}
	full, _ := s.Backend.Capacity()
	var requests float64
	for _, p := range s.Phases {
		requests += (p.RPS + p.Load*full) * time.Duration(p.For).Seconds() * float64(max(1, s.Repeat))
	}
	if s.Requests == 0 {
		f.Require(requests <= maxRequests, fault.Path{"phases"}, "they add up to %.3g requests; at most %g, or set requests to end the run sooner", requests, float64(maxRequests))
	}
}

func routeName(r *policy.RouteSpec) string {
	if r.Name != "" {
		return r.Name
	}
	if len(r.Match) > 0 {
		return r.Match[0]
	}
	return ""
}
