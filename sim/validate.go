package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// The bounds of a scenario: far beyond what anybody waits for, but finite.
const (
	maxDuration = 1000 * time.Hour
	maxRate     = 1e9
	maxTimeout  = time.Hour
	maxRequests = 1e9 // that a run may offer, by its rates
)

func (s *Scenario) validate(f *faultList) {
	f.check(s.Name != "", "name", "missing: reports are headed by it")
	if s.Backend.Name == "" {
		s.Backend.validate(f, "backend")
	}
	f.check(s.Gateways >= 0 && s.Gateways <= 1000, "gateways", "%d: must be from 1 to 1000", s.Gateways)
	f.check(s.OnAbandon == "" || s.OnAbandon == "hold" || s.OnAbandon == "release",
		"on_abandon", "%q: must be hold or release", s.OnAbandon)
	f.check(s.Repeat >= 0 && s.Repeat <= 1e6, "repeat", "%d: must be from 1 to 1000000", s.Repeat)
	f.check(s.Requests >= 0, "requests", "%d: must not be negative", s.Requests)
	f.check(len(s.Phases) > 0, "phases", "missing: at least one {\"for\": \"60s\", \"load\": 2}")
	for i := range s.Phases {
		s.Phases[i].validate(f, index("phases", i))
	}
	if d := s.Duration(); d > maxDuration {
		f.add("phases", "%v in all: must be at most %v", d, maxDuration)
	}
	for i := range s.Traffic {
		s.Traffic[i].validate(f, index("traffic", i))
	}
	s.Fair.validate(f, "fair")
	for i := range s.Goals {
		s.validateGoal(f, i)
	}
}

func (p *Phase) validate(f *faultList, path string) {
	f.check(p.For > 0 && time.Duration(p.For) <= maxDuration, path+".for", "%v: must be more than 0 and at most %v", p.For, maxDuration)
	f.check(p.Load >= 0 && p.Load <= maxRate, path+".load", "%v: must not be negative, nor above %g", p.Load, float64(maxRate))
	f.check(p.RPS >= 0 && p.RPS <= maxRate, path+".rps", "%v: must not be negative, nor above %g", p.RPS, float64(maxRate))
	f.check(p.Load == 0 || p.RPS == 0, path, "load and rps are both given; write one of them")
	f.check(p.Capacity >= 0 && p.Capacity <= 1000, path+".capacity",
		"%v: must be more than 0 and at most 1000 (for a backend that stands still write \"stalled\": true)", p.Capacity)
	f.check(p.Work >= 0 && p.Work <= 1000, path+".work", "%v: must be more than 0 and at most 1000", p.Work)
	f.check(!p.Stalled || p.Capacity == 0, path+".stalled", "a backend that stands still has no capacity; leave that out")
	if p.Errors != nil {
		p.Errors.validate(f, path+".errors")
	}
}

func (e *Errors) validate(f *faultList, path string) {
	f.check(e.Share >= 0 && e.Share <= 1, path+".share", "%v: must be from 0 to 1", e.Share)
	f.check(e.After >= 0 && time.Duration(e.After) <= maxTimeout, path+".after", "%v: must be from 0 to %v", e.After, maxTimeout)
	f.check(e.As == "" || e.As == "failed" || e.As == "overload", path+".as", "%q: must be failed or overload", e.As)
}

// aboutBackend reports whether the phase says more than a rate.
func (p *Phase) aboutBackend() bool {
	return p.Capacity != 0 || p.Work != 0 || p.Stalled || p.Suspended || p.Errors != nil
}

func (c *Class) validate(f *faultList, path string) {
	f.check(c.Share >= 0, path+".share", "%v: must not be negative", c.Share)
	f.check(len(c.At) == 0 || len(c.Phases) == 0 && c.Share == 0, path+".at", "cannot go together with phases or share")
	f.check(len(c.Phases) == 0 || c.Share == 0, path+".share", "cannot go together with phases of its own")
	for i, at := range c.At {
		f.check(at >= 0, index(path+".at", i), "%v: must not be negative", at)
	}
	for i := range c.Phases {
		c.Phases[i].validate(f, index(path+".phases", i))
		f.check(!c.Phases[i].aboutBackend(), index(path+".phases", i), "capacity, work, stalled, suspended and errors belong to the scenario's phases, not to a class's")
	}
	f.check(c.Arrivals == "" || c.Arrivals == "poisson" || c.Arrivals == "regular",
		path+".arrivals", "%q: must be poisson or regular", c.Arrivals)
	f.check(c.Tenants >= 0 && c.Tenants <= 1e6, path+".tenants", "%d: must be from 0 to 1000000", c.Tenants)
	if _, ok := weir.ParsePriority(c.Priority); c.Priority != "" && !ok {
		f.add(path+".priority", "%q: must be background, normal, high or critical", c.Priority)
	}
	f.check(c.Cost >= 0, path+".cost", "%d: must not be negative", c.Cost)
	c.validateTask(f, path)
	f.check(c.Deadline >= 0, path+".deadline", "%v: must not be negative", c.Deadline)
	f.check(c.Timeout >= 0, path+".timeout", "%v: must not be negative", c.Timeout)
	f.check(c.Patience >= 0 && c.Patience <= 1e6, path+".patience", "%v: must be from 0 to 1000000", c.Patience)
	f.check(c.Patience == 0 || c.Timeout == 0 && !c.Leaves, path+".patience", "cannot go together with timeout or leaves")
	f.check(c.Work >= 0 && c.Work <= 1e6, path+".work", "%v: must be from 0 to 1000000", c.Work)
	f.check(c.Service == nil || c.Shape == nil && c.Work == 0, path+".service", "cannot go together with shape or work")
	if c.Service != nil {
		c.Service.validate(f, path+".service")
	}
	if c.Shape != nil {
		c.Shape.validate(f, path+".shape")
	}
	if c.Cache != nil {
		c.Cache.validate(f, path+".cache")
	}
	if c.Retry != nil {
		c.Retry.validate(f, path+".retry", c.Timeout > 0 || c.Leaves || c.Patience > 0)
	}
}

// validateTask checks what is said about clients in a loop and tasks of calls.
func (c *Class) validateTask(f *faultList, path string) {
	f.check(c.Clients >= 0 && c.Clients <= 1e6, path+".clients", "%d: must be from 0 to 1000000", c.Clients)
	f.check(c.Clients == 0 || len(c.Phases) == 0 && len(c.At) == 0 && c.Share == 0, path+".clients", "cannot go together with phases, at or share: each sends its next request when it has its answer")
	f.check(c.Clients == 0 || c.Cache == nil, path+".clients", "cannot go together with cache")
	f.check(c.Pause >= 0 && time.Duration(c.Pause) <= maxTimeout, path+".pause", "%v: must be from 0 to %v", c.Pause, maxTimeout)
	f.check(c.Think >= 0 && time.Duration(c.Think) <= maxTimeout, path+".think", "%v: must be from 0 to %v", c.Think, maxTimeout)
	f.check(c.Think == 0 && c.Pause == 0 || c.Clients > 0, path+".clients", "missing: think and pause are theirs")
	f.check(c.Settled >= 0, path+".settled", "%d: must not be negative", c.Settled)
	f.check(c.Calls >= 0 && c.Calls <= 1000, path+".calls", "%d: must be from 1 to 1000", c.Calls)
	f.check(c.Calls > 1 || c.Later == "" && !c.Nested, path+".calls", "%d: later and nested need at least 2", c.Calls)
	if _, ok := weir.ParsePriority(c.Later); c.Later != "" && !ok {
		f.add(path+".later", "%q: must be background, normal, high or critical", c.Later)
	}
}

func (s *Fair) validate(f *faultList, path string) {
	for _, of := range []string{"users", "tenants"} {
		weights := map[string]map[string]float64{"users": s.Users, "tenants": s.Tenants}[of]
		for _, name := range slices.Sorted(maps.Keys(weights)) {
			f.check(weights[name] > 0 && weights[name] <= 1e6, path+"."+of+"."+name, "%v: must be more than 0 and at most 1000000", weights[name])
		}
	}
	var all float64
	for _, name := range slices.Sorted(maps.Keys(s.Shares)) {
		_, ok := weir.ParsePriority(name)
		f.check(ok, path+".shares."+name, "must be background, normal, high or critical")
		f.check(s.Shares[name] > 0, path+".shares."+name, "%v: must be more than 0", s.Shares[name])
		all += s.Shares[name]
	}
	f.check(all <= 1, path+".shares", "they add up to %v: must be at most 1", all)
}

func (r *Retry) validate(f *faultList, path string, leaves bool) {
	f.check(r.Attempts >= 1 && r.Attempts <= 1000, path+".attempts", "%d: must be from 1 to 1000", r.Attempts)
	for i, on := range r.On {
		f.check(on == "timeout" || on == "refusal", index(path+".on", i), "%q: must be timeout or refusal", on)
		f.check(on != "timeout" || leaves, index(path+".on", i), "the class has no timeout, so there is none to retry on")
	}
	f.check(r.Backoff >= 0 && time.Duration(r.Backoff) <= maxTimeout, path+".backoff", "%v: must be from 0 to %v", r.Backoff, maxTimeout)
	f.check(r.MaxBackoff >= 0 && time.Duration(r.MaxBackoff) <= maxTimeout, path+".max_backoff", "%v: must be from 0 to %v", r.MaxBackoff, maxTimeout)
}

func (s *Scenario) validateGoal(f *faultList, i int) {
	g, path := &s.Goals[i], index("goals", i)
	known, named := Metrics(), g.Class == ""
	if !named {
		known = ClassMetrics()
		named = slices.ContainsFunc(s.Traffic, func(c Class) bool { return c.Name == g.Class })
	}
	f.check(named, path+".class", "%q: no class of the traffic has that name", g.Class)
	f.check(g.metric() != nil, path+".metric", "%q: must be one of %s", g.Metric, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	f.check(g.TimesAlone == nil || g.Class != "", path+".times_alone", "needs a class to be alone")
	f.check(g.AloneAt >= 0 && g.AloneAt <= 1, path+".alone_at", "%v: must be more than 0 and at most 1", g.AloneAt)
	f.check(g.From >= 0, path+".from", "%v: must not be negative", g.From)
	f.check(g.To == 0 || g.To > g.From, path+".to", "%v: must be after from, %v", g.To, g.From)
	f.check(time.Duration(g.To) <= s.Duration(), path+".to", "%v: the run ends at %v", g.To, s.Duration())
	f.check(time.Duration(g.From) < s.Duration() || s.Duration() == 0, path+".from", "%v: the run ends at %v", g.From, s.Duration())
	f.check(g.Level >= 0, path+".level", "%v: must not be negative", g.Level)
}

// validateResolved checks what can only be checked once the backend and the
// policy are known in full.
func (s *Scenario) validateResolved(f *faultList) {
	routes := map[string]bool{}
	for _, r := range s.Policy.Spec.Routes {
		routes[routeName(&r)] = true
	}
	for i := range s.Traffic {
		if name := s.Traffic[i].Route; name != "" && len(routes) > 0 && !routes[name] {
			f.add(index("traffic", i)+".route", "%q: the policy has no such route; it has %s", name, strings.Join(slices.Sorted(maps.Keys(routes)), ", "))
		}
	}
	full, _ := s.Backend.Capacity()
	var requests float64
	for _, p := range s.Phases {
		requests += (p.RPS + p.Load*full) * time.Duration(p.For).Seconds() * float64(max(1, s.Repeat))
	}
	if s.Requests == 0 {
		f.check(requests <= maxRequests, "phases", "they add up to %.3g requests; at most %g, or set requests to end the run sooner", requests, float64(maxRequests))
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
