package sim

import (
	"fmt"
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
	maxRequests = 1e9 // that a run may offer
)

func (s *Scenario) check(f *fault.List) {
	f.Require(s.Name != "", fault.Path{"name"}, "missing: reports are headed by it")
	if s.Backend.Name == "" {
		s.Backend.check(f, fault.Path{"backend"})
	}
	f.Require(len(s.Phases) > 0, fault.Path{"phases"}, "missing: at least one {\"for\": \"60s\", \"load\": 2}")
	for i := range s.Phases {
		s.Phases[i].check(f, fault.Path{"phases"}.Index(i))
	}
	if d := s.Duration(); d > maxDuration {
		f.Require(false, fault.Path{"phases"}, "%v in all: must be at most %v", d, maxDuration)
	}
	for i, seed := range s.Seeds {
		f.Require(!slices.Contains(s.Seeds[:i], seed), fault.Path{"seeds"}.Index(i), "%d: is in the list already; the same seed gives the same run", seed)
	}
	named := map[string]int{}
	for i := range s.Traffic {
		c, path := &s.Traffic[i], fault.Path{"traffic"}.Index(i)
		c.check(f, path)
		s.checkProcess(f, path, c)
		first, known := named[c.Name]
		f.Require(!known || c.Name == "", path.At("name"), "%q: is that of traffic[%d] as well; goals find a class by its name", c.Name, first)
		named[c.Name] = i
	}
	s.Fair.check(f, fault.Path{"fair"})
	if s.Consumer != nil {
		s.Consumer.check(f, fault.Path{"consumer"})
	}
	for i := range s.Goals {
		s.checkGoal(f, i)
	}
}

func (p *Phase) check(f *fault.List, path fault.Path) {
	f.Require(p.Load == 0 || p.RPS == 0, path.At("rps"), "load and rps are both given; write one of them")
	f.Require(!p.Stalled || p.Capacity == 0, path.At("stalled"), "a backend that stands still has no capacity; leave that out")
	if e := p.Errors; e != nil {
		f.Require(e.Conflict == 0 || e.Share == 0 && e.After == 0, path.At("errors", "conflict"), "cannot go together with share or after: what fails by a conflict has done all its work")
	}
}

// aboutBackend reports whether the phase says more than a rate.
func (p *Phase) aboutBackend() bool {
	return p.Capacity != 0 || p.Work != 0 || p.Stalled || p.Suspended || p.Errors != nil
}

func (c *Class) check(f *fault.List, path fault.Path) {
	f.Require(len(c.At) == 0 || len(c.Phases) == 0 && c.Share == 0, path.At("at"), "cannot go together with phases or share")
	f.Require(len(c.Phases) == 0 || c.Share == 0, path.At("share"), "cannot go together with phases of its own")
	for i := range c.Phases {
		c.Phases[i].check(f, path.At("phases").Index(i))
		f.Require(!c.Phases[i].aboutBackend(), path.At("phases").Index(i), "capacity, work, stalled, suspended and errors belong to the scenario's phases, not to a class's")
	}
	c.checkTask(f, path)
	f.Require(c.Patience == 0 || c.Timeout == 0 && !c.Leaves, path.At("patience"), "cannot go together with timeout or leaves")
	f.Require(c.Service == nil || c.Shape == nil && c.Work == 0, path.At("service"), "cannot go together with shape or work")
	if c.Service != nil {
		c.Service.check(f, path.At("service"))
	}
	if c.Shape != nil {
		c.Shape.check(f, path.At("shape"))
	}
	if c.Cache != nil {
		f.Require(c.Cache.Size <= c.Cache.Keys, path.At("cache", "size"), "%d: must be at most the number of keys", c.Cache.Size)
	}
	if c.Retry != nil {
		c.Retry.check(f, path.At("retry"), c.Timeout > 0 || c.Leaves || c.Patience > 0)
	}
}

// checkTask checks the fields about clients in a loop and tasks of calls.
func (c *Class) checkTask(f *fault.List, path fault.Path) {
	f.Require(c.Clients == 0 || len(c.Phases) == 0 && len(c.At) == 0 && c.Share == 0, path.At("clients"), "cannot go together with phases, at or share: each sends its next request when it has its answer")
	f.Require(c.Clients == 0 || c.Cache == nil, path.At("clients"), "cannot go together with cache")
	f.Require(c.Think == 0 && c.Pause == 0 || c.Clients > 0, path.At("clients"), "missing: think and pause are theirs")
	f.Require(c.Calls > 1 || c.Later == "" && !c.Nested, path.At("calls"), "%d: later and nested need at least 2", c.Calls)
}

func (s *Fair) check(f *fault.List, path fault.Path) {
	var all float64
	for _, name := range slices.Sorted(maps.Keys(s.Shares)) {
		_, ok := weir.ParsePriority(name)
		f.Require(ok, path.At("shares", name), "must be background, normal, high or critical")
		all += s.Shares[name]
	}
	f.Require(all <= 1, path.At("shares"), "they add up to %v: must be at most 1", all)
}

func (r *Retry) check(f *fault.List, path fault.Path, leaves bool) {
	for i, on := range r.On {
		f.Require(on != "timeout" || leaves, path.At("on").Index(i), "the class has no timeout, so there is none to retry on")
	}
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
	f.Require(s.Consumer != nil || !aboutLag(g.Metric), path.At("metric"), "%q: needs a consumer", g.Metric)
	f.Require(g.TimesAlone == nil || g.Class != "", path.At("times_alone"), "needs a class to be alone")
	f.Require(g.To == 0 || g.To > g.From, path.At("to"), "%v: must be after from, %v", g.To, g.From)
	f.Require(time.Duration(g.To) <= s.Duration(), path.At("to"), "%v: the run ends at %v", g.To, s.Duration())
	f.Require(time.Duration(g.From) < s.Duration() || s.Duration() == 0, path.At("from"), "%v: the run ends at %v", g.From, s.Duration())
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
	end := s.Duration()
	requests := offered(s.Phases, full, end) * float64(max(1, s.Repeat))
	for i := range s.Traffic {
		requests += offered(s.Traffic[i].Phases, full, end)
	}
	if s.Requests == 0 {
		f.Require(requests <= maxRequests, fault.Path{"phases"}, "with those of classes they add up to %.3g requests; at most %g, or set requests to end the run sooner", requests, float64(maxRequests))
	}
}

// Notes lists what the scenario allows but its author probably did not mean: gates that nothing passes,
// what a run cannot play, and what lies beyond its end.
func (s *Scenario) Notes() []string { return append(s.policyNotes(), s.endNotes()...) }

func (s *Scenario) policyNotes() (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	spec := &s.Policy.Spec
	if s.Policy.Name == "" && len(spec.Gates) == 0 && len(spec.Routes) == 0 {
		note("there is no policy, so nothing is limited; write policy: none if that is meant")
	}
	used := map[string]bool{}
	for i := range spec.Routes {
		r := &spec.Routes[i]
		for _, gate := range r.Gates {
			used[gate] = true
		}
		if r.DemoteAfter > 0 {
			note("the route %s has demote_after, but requests have no number of admissions here", routeName(r))
		}
		if r.CostFrom != "" || r.Settle != "" || r.SettleEvent != "" {
			note("the route %s reads a cost, but requests and answers have no headers here; write cost and settled in the class of traffic", routeName(r))
		}
	}
	for _, gate := range slices.Sorted(maps.Keys(spec.Gates)) {
		if !used[gate] {
			note("no route uses the gate %s", gate)
		}
	}
	return notes
}

// endNotes are about what lies beyond the end of the run.
func (s *Scenario) endNotes() (notes []string) {
	end := s.Duration()
	beyond := func(at time.Duration, what string, args ...any) {
		if at >= end {
			notes = append(notes, fmt.Sprintf(what, args...)+fmt.Sprintf(": is not played, because the run ends at %v", end))
		}
	}
	for i := range s.Traffic {
		c := &s.Traffic[i]
		for k, at := range c.At {
			beyond(time.Duration(at), "traffic[%d].at[%d]", i, k)
		}
		for k := range c.Phases {
			beyond(phasesDuration(c.Phases[:k]), "traffic[%d].phases[%d]", i, k)
		}
		if c.Cache != nil {
			for k, at := range c.Cache.Flush {
				beyond(time.Duration(at), "traffic[%d].cache.flush[%d]", i, k)
			}
		}
	}
	if s.Consumer != nil {
		var at time.Duration
		for k, p := range s.Consumer.Phases {
			beyond(at, "consumer.phases[%d]", k)
			at = min(at+time.Duration(p.For), end) // or many long ones might overflow
		}
		for k := range s.Consumer.Unread {
			beyond(time.Duration(s.Consumer.Unread[k].From), "consumer.unread[%d]", k)
		}
	}
	return notes
}

// offered is how many requests phases bring before a backend of that full capacity, until the end
// of the run.
func offered(phases []Phase, full float64, end time.Duration) float64 {
	var n float64
	for _, p := range phases {
		lasts := min(time.Duration(p.For), end)
		n += (p.RPS + p.Load*full) * lasts.Seconds()
		end -= lasts
	}
	return n
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
