package sim

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir"
)

// ClassSummary is what one run was for one class of requests, over one stretch.
type ClassSummary struct {
	// Name of the class.
	Name string `json:"name"`
	// Offered counts its requests, Done those that were answered in time, with
	// all their calls. Attempts counts calls and retries.
	Offered  uint64 `json:"offered"`
	Done     uint64 `json:"done"`
	Attempts uint64 `json:"attempts"`
	Admitted uint64 `json:"admitted"`
	Refused  uint64 `json:"refused"`
	// Reasons counts Refused by reason.
	Reasons map[weir.Reason]uint64 `json:"reasons,omitempty"`
	GaveUp  uint64                 `json:"gave_up,omitempty"`
	// P50 and P99 are latencies of what was admitted, WaitP99 the time in the
	// wait room.
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	WaitP99 time.Duration `json:"wait_p99_ns"`
	// Starved is the longest time during which requests of the class came or
	// waited and none was let in.
	Starved time.Duration `json:"starved_ns"`
	// Served is Done over Offered, Tasks Done over what could have been: the
	// lesser of Offered and what the capacity allows of tasks of so many calls.
	Served float64 `json:"served"`
	Tasks  float64 `json:"tasks"`
	// Given is the class's part of all that was let in, in units of the gate.
	Given float64 `json:"given"`
	// Work is the class's good work over what the backend could do, Slack the
	// same over what the other classes' good work leaves.
	Work  float64 `json:"work"`
	Slack float64 `json:"slack"`
	// Jain is Jain's index over the class's tenants of the share that was done of
	// what each offered.
	Jain float64 `json:"jain"`
	// Behind counts nested calls that had to wait for the slots that their own
	// callers hold, or were refused for want of them.
	Behind uint64 `json:"behind,omitempty"`
}

// sumUp adds the classes to the summary of a window, by its number.
func (l *ledger) sumUp(window int, w *world, s *Summary) {
	acc := l.accounts[window]
	for i := range acc.classes {
		l.starved(min(w.now, s.To), int32(i))
	}
	seconds := (s.To - s.From).Seconds()
	power := w.stats.windows[window].power.mean()
	var busy, given float64
	for i := range acc.classes {
		busy += acc.classes[i].work
		given += acc.classes[i].given()
	}
	for i, c := range w.classes {
		t := &acc.classes[i]
		possible := math.Min(float64(t.offered), s.Capacity*seconds/float64(c.calls))
		s.Classes = append(s.Classes, ClassSummary{
			Name: c.name, Offered: t.offered, Done: t.done, Attempts: t.attempts, Admitted: t.admitted, Refused: t.refused, GaveUp: t.gaveUp,
			P50: t.latency.quantile(.5), P99: t.latency.quantile(.99), WaitP99: t.wait.quantile(.99), Starved: t.starved,
			Served: share(float64(t.done), float64(t.offered)), Tasks: share(float64(t.done), possible),
			Given: share(t.given(), given), Work: share(t.work, power*seconds), Slack: share(t.work, power*seconds-(busy-t.work)),
			Jain: jain(t.served()), Behind: t.behind, Reasons: byReason(&t.reasons),
		})
	}
	s.Inversions = acc.inversions
	for p := range weir.Classes {
		users, tenants := shareErrors(acc.claims(w.classes, p, seconds), w.fair)
		s.UserError, s.ShareError = math.Max(s.UserError, users), math.Max(s.ShareError, tenants)
	}
}

// given is what was let in, in units.
func (t *tally) given() float64 {
	var sum float64
	for _, f := range t.flows {
		sum += f.given
	}
	return sum
}

// served is the share that was done of what each tenant offered.
func (t *tally) served() []float64 {
	var list []float64
	for _, f := range t.flows {
		if f.offered > 0 {
			list = append(list, float64(f.done)/float64(f.offered))
		}
	}
	return list
}

// claims are those of one priority, over a stretch of so many seconds. A closed
// loop asks for what its clients would get if they never had to wait.
func (a *account) claims(classes []*class, of int, seconds float64) []claim {
	var list []claim
	for i, c := range classes {
		if c.template.Exempt || c.template.Priority.Class() != of {
			continue
		}
		for tenant, f := range a.classes[i].flows {
			asked := math.Max(f.asked, f.given)
			if c.clients > 0 {
				each := float64(c.clients) / float64(len(a.classes[i].flows))
				asked = math.Max(f.given, each*seconds/(c.alone+c.think.Seconds())*float64(c.template.Units()))
			}
			if asked > 0 {
				list = append(list, claim{c.template.User, c.tenantName(int32(tenant)), asked, f.given})
			}
		}
	}
	return list
}

// classMetrics are the figures of one class.
var classMetrics = []metric{
	{"served", "", "done over offered", ofClass(func(c *ClassSummary) float64 { return c.Served })},
	{"p50", "ms", "median latency of admitted work", ofClass(func(c *ClassSummary) float64 { return millis(c.P50) })},
	{"p99", "ms", "99th percentile of it", ofClass(func(c *ClassSummary) float64 { return millis(c.P99) })},
	{"wait_p99", "ms", "99th percentile of the time in the wait room", ofClass(func(c *ClassSummary) float64 { return millis(c.WaitP99) })},
	{"refused", "", "refusals over attempts", ofClass(func(c *ClassSummary) float64 { return share(float64(c.Refused), float64(c.Attempts)) })},
	{"given", "", "part of all that was let in, in units of the gate", ofClass(func(c *ClassSummary) float64 { return c.Given })},
	{"work", "", "good work over what the backend could do", ofClass(func(c *ClassSummary) float64 { return c.Work })},
	{"slack", "", "good work over what the other classes leave of the backend", ofClass(func(c *ClassSummary) float64 { return c.Slack })},
	{"tasks", "", "tasks done over what could have been", ofClass(func(c *ClassSummary) float64 { return c.Tasks })},
	{"jain", "", "Jain's index over tenants of what was done of what they offered", ofClass(func(c *ClassSummary) float64 { return c.Jain })},
	{"starved", "s", "longest time in which some came or waited and none was let in", ofClass(func(c *ClassSummary) float64 { return c.Starved.Seconds() })},
	{"behind", "", "nested calls that waited for slots of their own callers, or were refused", ofClass(func(c *ClassSummary) float64 { return float64(c.Behind) })},
}

func ofClass(f func(*ClassSummary) float64) func(*Result, *Goal) float64 {
	return func(r *Result, g *Goal) float64 {
		s := r.window(g)
		for i := range s.Classes {
			if s.Classes[i].Name == g.Class {
				return f(&s.Classes[i])
			}
		}
		return 0
	}
}

// between are the figures about classes and tenants beside each other.
var between = []metric{
	{"inversions", "", "admissions while somebody of a higher priority waited, guarantees aside", ofSummary(func(s *Summary) float64 { return float64(s.Inversions) })},
	{"user_error", "", "by how much of its max-min fair share the user who is farthest from it is off", ofSummary(func(s *Summary) float64 { return s.UserError })},
	{"share_error", "", "by how much of its max-min fair share the tenant who is farthest from it is off", ofSummary(func(s *Summary) float64 { return s.ShareError })},
}

// ClassMetrics returns the names that a [Goal] with a Class can use, with what
// each means.
func ClassMetrics() map[string]string { return texts(classMetrics) }

// classMetric is a figure of one class, nil if there is none of that name.
func classMetric(name string) *metric {
	for i := range classMetrics {
		if classMetrics[i].name == name {
			return &classMetrics[i]
		}
	}
	return nil
}

// Only returns the scenario with none but one class of requests, at a part of
// its rate. Its random numbers stay the same at the whole of it.
func (s *Scenario) Only(class string, part float64) *Scenario {
	c := s.clone()
	for i := range c.Traffic {
		if c.Traffic[i].Name != class {
			c.Traffic[i].silent = true
		} else {
			c.Traffic[i].thinned = part
		}
	}
	return c
}

// left is the part of its rate that a class comes at.
func (c *Class) left() float64 {
	switch {
	case c.silent:
		return 0
	case c.thinned > 0:
		return c.thinned
	}
	return 1
}

// Classes is every figure of every class over the whole run, as a table; empty
// where the scenario has no goals about them.
func (r *Report) Classes() string {
	if len(r.Runs) == 0 || r.Runs[0].Windows[0].Classes == nil {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "  class")
	for _, m := range classMetrics {
		fmt.Fprintf(w, "\t%s", m.name)
	}
	fmt.Fprintln(w)
	for i := range r.Scenario.Traffic {
		name := r.Scenario.Traffic[i].Name
		fmt.Fprintf(w, "  %s", name)
		for _, m := range classMetrics {
			fmt.Fprintf(w, "\t%s", Format(m.name, r.Spread(Goal{Metric: m.name, Class: name}).Median))
		}
		for _, reason := range weir.Reasons() { // of the first run
			if n := r.Runs[0].Windows[0].Classes[i].Reasons[reason]; n > 0 {
				fmt.Fprintf(w, "\t%v %d", reason, n)
			}
		}
		fmt.Fprintln(w)
	}
	for _, m := range between {
		fmt.Fprintf(w, "  %s\t%s\n", m.name, Format(m.name, r.Spread(Goal{Metric: m.name}).Median))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}
