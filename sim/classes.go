package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/policy"
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
	// Served is Done over Offered. Tasks is Done over what could have been: the lesser of Offered
	// and the number of tasks with so many calls that the capacity allows.
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
	// callers hold, or were refused because no other was free.
	Behind uint64 `json:"behind,omitempty"`
}

// sumUp adds the classes to the summary of a window, by its number.
func (l *ledger) sumUp(window int, w *world, s *Summary) {
	acc := l.windows[window]
	for i := range acc.classes {
		l.starved(min(w.now, s.To), int32(i))
	}
	seconds := (s.To - s.From).Seconds()
	power := acc.power.mean()
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
			P50: t.latency.Quantile(0.5), P99: t.latency.Quantile(0.99), WaitP99: t.wait.Quantile(0.99), Starved: t.starved,
			Served: share(float64(t.done), float64(t.offered)), Tasks: share(float64(t.done), possible),
			Given: share(t.given(), given), Work: share(t.work, power*seconds), Slack: share(t.work, power*seconds-(busy-t.work)),
			Jain: jain(t.doneShares()), Behind: t.behind, Reasons: byReason(&t.reasons),
		})
	}
	s.Inversions = acc.inversions
	for p := range weir.Classes {
		users, tenants := shareErrors(l.claims(acc, w.classes, p, seconds), &l.fair)
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

// doneShares lists, for each tenant, the share that was done of what it offered.
func (t *tally) doneShares() []float64 {
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
func (l *ledger) claims(acc *window, classes []*class, of int, seconds float64) []claim {
	var list []claim
	for i, c := range classes {
		if c.template.Exempt || c.template.Priority.Class() != of {
			continue
		}
		for tenant, f := range acc.classes[i].flows {
			asked := math.Max(f.asked, f.given)
			if c.clients > 0 {
				each := float64(c.clients) / float64(len(acc.classes[i].flows))
				asked = math.Max(f.given, each*seconds/(c.alone+c.think.Seconds())*l.units(c))
			}
			if asked > 0 {
				list = append(list, claim{c.template.User, c.tenantName(int32(tenant)), asked, f.given})
			}
		}
	}
	return list
}

// classFigure is a figure of one class.
type classFigure struct {
	name, unit, text string
	of               func(*ClassSummary) float64
}

var classFigures = []classFigure{
	{"served", "", "done over offered", func(c *ClassSummary) float64 { return c.Served }},
	{"attempts", "", "attempts sent for each new request", func(c *ClassSummary) float64 { return share(float64(c.Attempts), float64(c.Offered)) }},
	{"p50", "ms", "median latency of admitted work", func(c *ClassSummary) float64 { return millis(c.P50) }},
	{"p99", "ms", "99th percentile of it", func(c *ClassSummary) float64 { return millis(c.P99) }},
	{"wait_p99", "ms", "99th percentile of the time in the wait room", func(c *ClassSummary) float64 { return millis(c.WaitP99) }},
	{"refused", "", "refusals over attempts", func(c *ClassSummary) float64 { return share(float64(c.Refused), float64(c.Attempts)) }},
	{"given", "", "part of all that was let in, in units of the gate", func(c *ClassSummary) float64 { return c.Given }},
	{"work", "", "good work over what the backend could do", func(c *ClassSummary) float64 { return c.Work }},
	{"slack", "", "good work over what the other classes leave of the backend", func(c *ClassSummary) float64 { return c.Slack }},
	{"tasks", "", "tasks done over what could have been", func(c *ClassSummary) float64 { return c.Tasks }},
	{"jain", "", "Jain's index over tenants of what was done of what they offered", func(c *ClassSummary) float64 { return c.Jain }},
	{"starved", "s", "longest time in which some came or waited and none was let in", func(c *ClassSummary) float64 { return c.Starved.Seconds() }},
	{"behind", "", "nested calls that waited for slots of their own callers, or were refused", func(c *ClassSummary) float64 { return float64(c.Behind) }},
}

// classMetrics are the same for goals, which find a class by its name.
var classMetrics = func() (list []metric) {
	for _, f := range classFigures {
		list = append(list, metric{name: f.name, unit: f.unit, text: f.text, of: ofClass(f.of)})
	}
	return list
}()

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
	{"inversions", "", "", "admissions while somebody of a higher priority waited, guarantees aside", ofSummary(func(s *Summary) float64 { return float64(s.Inversions) })},
	{"user_error", "", "", "by how much of its max-min fair share the user who is farthest from it is off", ofSummary(func(s *Summary) float64 { return s.UserError })},
	{"share_error", "", "", "by how much of its max-min fair share the tenant who is farthest from it is off", ofSummary(func(s *Summary) float64 { return s.ShareError })},
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

// ratePart is the part of its rate that a class comes at.
func (c *Class) ratePart() float64 {
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
	for _, f := range classFigures {
		fmt.Fprintf(w, "\t%s", f.name)
	}
	fmt.Fprintln(w)
	for i := range r.Scenario.Traffic {
		fmt.Fprintf(w, "  %s", r.Scenario.Traffic[i].Name)
		for _, f := range classFigures {
			values := make([]float64, len(r.Runs))
			for j, run := range r.Runs {
				values[j] = f.of(&run.Windows[0].Classes[i])
			}
			fmt.Fprintf(w, "\t%s", Format(f.name, newSpread(values).Median))
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
	_ = w.Flush() // writing to a strings.Builder cannot fail
	return b.String()
}

// ledger counts the classes and tenants of a run separately. It sees what arrives
// at the gates and what they answer; it asks them nothing.
type ledger struct {
	windows []*window // of the statistics
	fair    Fair      // what is to come of the gates, see [Scenario.fairness]
	shares  [weir.Classes]float64
	// requests says that the gate counts requests, whatever they cost.
	requests bool

	lines  map[int]*crowd // by gateway
	wanted []wanted       // by class
}

// crowd is who waits before one gateway, by priority, and what has been let in
// while a higher one and a lower one both waited.
type crowd struct {
	waiting [weir.Classes]int
	let     [weir.Classes]float64
}

// wanted is since when none of a class has been let in although some of it came.
type wanted struct {
	since   time.Duration // -1: nothing is wanted
	waiting int
}

// tally is what is counted of one class.
type tally struct {
	offered, done, attempts, admitted, refused, gaveUp uint64

	behind        uint64
	reasons       [numReasons]uint64
	work          float64
	latency, wait hist.Histogram
	starved       time.Duration
	flows         []portion // by tenant
}

// portion is what is counted of one tenant of a class.
type portion struct {
	offered, done uint32
	asked, given  float64 // units
}

func newLedger(s *Scenario, windows []*window) *ledger {
	l := &ledger{windows: windows, fair: s.fairness(), lines: map[int]*crowd{}, wanted: make([]wanted, len(s.Traffic))}
	if g := s.Policy.Spec.Gates[concurrencyGate(s)]; g.Limit != nil {
		l.requests = g.Limit.Count == "requests"
	}
	for name, share := range l.fair.Shares {
		p, _ := weir.ParsePriority(name)
		l.shares[p.Class()] = share
	}
	for i := range l.wanted {
		l.wanted[i].since = -1
	}
	for _, w := range windows {
		for i := range s.Traffic {
			w.classes = append(w.classes, tally{
				latency: hist.New(7), wait: hist.New(7),
				flows: make([]portion, max(1, s.Traffic[i].Tenants)),
			})
		}
	}
	return l
}

// tellsApart reports whether anything is said about classes or tenants.
func (s *Scenario) tellsApart() bool {
	for i := range s.Goals {
		g := &s.Goals[i]
		if g.Class != "" || slices.ContainsFunc(between, func(m metric) bool { return m.name == g.Metric }) {
			return true
		}
	}
	return false
}

func (l *ledger) each(now time.Duration, a *attempt, f func(*window, *tally)) {
	for _, w := range l.windows {
		if w.holds(now) {
			f(w, &w.classes[a.class.index])
		}
	}
}

func (l *ledger) offered(now time.Duration, a *attempt) {
	l.each(now, a, func(_ *window, t *tally) {
		t.offered++
		t.flows[a.tenant].offered++
	})
}

// done counts a task where it was offered, so that a stretch of time has as many
// tasks as outcomes.
func (l *ledger) done(a *attempt) {
	l.each(a.born, a, func(_ *window, t *tally) {
		t.done++
		t.flows[a.tenant].done++
	})
}

func (l *ledger) attempted(now time.Duration, a *attempt) {
	if w := &l.wanted[a.class.index]; w.since < 0 {
		w.since = now
	}
	l.each(now, a, func(_ *window, t *tally) {
		t.attempts++
		t.flows[a.tenant].asked += l.units(a.class)
	})
}

func (l *ledger) line(front int) *crowd {
	if l.lines[front] == nil {
		l.lines[front] = &crowd{}
	}
	return l.lines[front]
}

// queued counts an attempt that the gate lets wait.
func (l *ledger) queued(now time.Duration, a *attempt) {
	l.line(a.front).waiting[a.priority().Class()]++
	l.wanted[a.class.index].waiting++
	if a.outer != nil {
		l.each(now, a, func(_ *window, t *tally) { t.behind++ })
	}
}

// leaves counts out an attempt that was waiting.
func (l *ledger) leaves(a *attempt) {
	if a.waiter != nil {
		l.line(a.front).waiting[a.priority().Class()]--
		l.wanted[a.class.index].waiting--
	}
}

func (l *ledger) admitted(now time.Duration, a *attempt) {
	inverted := l.inverts(a)
	l.leaves(a)
	w := &l.wanted[a.class.index]
	l.starved(now, a.class.index)
	w.since = -1
	if w.waiting > 0 {
		w.since = now
	}
	l.each(now, a, func(acc *window, t *tally) {
		if inverted {
			acc.inversions++
		}
		t.admitted++
		t.flows[a.tenant].given += l.units(a.class)
		t.wait.Record(now - a.start)
	})
}

// inverts reports whether a is let in while a request of a higher priority waits, although a's
// class has had its guarantee. The guarantee is counted over what is let in while a higher and a
// lower one wait, and one unit is forgiven.
func (l *ledger) inverts(a *attempt) bool {
	if a.riding || a.class.template.Exempt {
		return false
	}
	ln, mine := l.line(a.front), a.priority().Class()
	above, below := false, false
	for i, n := range ln.waiting {
		above = above || n > 0 && i > mine
		below = below || n > 0 && i < mine
	}
	if !above && !below {
		return false
	}
	var all float64
	for _, n := range ln.let {
		all += n
	}
	units := l.units(a.class)
	ln.let[mine] += units
	return above && ln.let[mine] > l.shares[mine]*(all+units)+1 || above && l.shares[mine] == 0
}

func (l *ledger) refused(now time.Duration, a *attempt, r weir.Reason) {
	l.leaves(a)
	l.each(now, a, func(_ *window, t *tally) {
		t.refused++
		t.reasons[min(int(r), numReasons-1)]++
		if a.outer != nil && a.waiter == nil {
			t.behind++
		}
	})
}

func (l *ledger) gaveUp(now time.Duration, a *attempt) {
	l.leaves(a)
	l.each(now, a, func(_ *window, t *tally) { t.gaveUp++ })
}

func (l *ledger) answered(now time.Duration, a *attempt, latency time.Duration, work float64, good bool) {
	l.each(now, a, func(_ *window, t *tally) {
		t.latency.Record(latency)
		if good {
			t.work += work
		}
	})
}

// starved records how long a class has been waiting by now for one of it to be
// let in.
func (l *ledger) starved(now time.Duration, class int32) {
	since := l.wanted[class].since
	if since < 0 {
		return
	}
	for _, acc := range l.windows {
		t := &acc.classes[class]
		t.starved = max(t.starved, min(now, acc.to)-max(since, acc.from))
	}
}

// units is what an attempt of the class costs the gate, as it turns out if that is only known then.
func (l *ledger) units(c *class) float64 {
	if l.requests {
		return 1
	}
	if c.settled > 0 {
		return float64(c.settled)
	}
	return float64(c.template.CostOrOne())
}

// in returns the policy with the weights and guarantees in its wait rooms. What f does not say stays
// as the policy has it. That both say something else is a fault.
func (f *Fair) in(spec policy.Spec, faults *fault.List) policy.Spec {
	spec.Gates = maps.Clone(spec.Gates)
	for _, name := range slices.Sorted(maps.Keys(spec.Gates)) {
		g := spec.Gates[name]
		if g.Limit == nil {
			continue
		}
		put := func(what string, said map[string]float64, into *map[string]float64) {
			if len(said) == 0 {
				return
			}
			if len(*into) > 0 && !maps.Equal(said, *into) {
				faults.Add(fault.Path{"fair", what}, "the queue of the gate "+name+" has others of its own", "leave one of the two out")
			}
			*into = said
		}
		l := *g.Limit
		put("shares", f.Shares, &l.Queue.Shares)
		put("users", f.Users, &l.Queue.Weights.Users)
		put("tenants", f.Tenants, &l.Queue.Weights.Tenants)
		l.Queue.ByTime = l.Queue.ByTime || f.ByTime
		g.Limit = &l
		spec.Gates[name] = g
	}
	return spec
}

// fairness is the weights and guarantees that the figures go by: those of the gate whose limit is
// reported, which has those of the scenario as well. Without such a gate they are the scenario's.
func (s *Scenario) fairness() Fair {
	if g := s.Policy.Spec.Gates[concurrencyGate(s)]; g.Limit != nil {
		q := &g.Limit.Queue
		return Fair{Users: q.Weights.Users, Tenants: q.Weights.Tenants, Shares: q.Shares}
	}
	return s.Fair
}

// maxMin divides capacity between demands by weight. No demand gets more than it asks for. What it
// leaves goes to the others by their weights.
func maxMin(capacity float64, demands, weights []float64) []float64 {
	order := make([]int, len(demands))
	var left float64 // of the weights
	for i := range order {
		order[i] = i
		left += weights[i]
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(demands[i]/weights[i], demands[j]/weights[j]) })
	shares := make([]float64, len(demands))
	for _, i := range order {
		shares[i] = math.Min(demands[i], capacity*weights[i]/left)
		capacity -= shares[i]
		left -= weights[i]
	}
	return shares
}

// claim is one tenant of one user: what it asked for and what it got.
type claim struct {
	user, tenant string
	asked, given float64
}

// shareErrors are by how much of its ideal share the user, and the tenant, who is
// farthest from it is off. The ideal is max-min fair by weight: what was given out
// is divided between users, and what each user gets between its tenants.
func shareErrors(claims []claim, fair *Fair) (ofUsers, ofTenants float64) {
	weight := func(list map[string]float64, name string) float64 {
		if w, ok := list[name]; ok {
			return w
		}
		return 1
	}
	off := func(given, ideal float64) float64 { return share(math.Abs(given-ideal), ideal) }
	var users []string
	tenants := map[string][]claim{}
	var all float64
	for _, c := range merged(claims) {
		if tenants[c.user] == nil {
			users = append(users, c.user)
		}
		tenants[c.user] = append(tenants[c.user], c)
		all += c.given
	}
	var demands, weights []float64
	for _, u := range users {
		var sum float64
		for _, c := range tenants[u] {
			sum += c.asked
		}
		demands, weights = append(demands, sum), append(weights, weight(fair.Users, u))
	}
	for i, ideal := range maxMin(all, demands, weights) {
		list := tenants[users[i]]
		var inner, innerWeights []float64
		var given float64
		for _, c := range list {
			given += c.given
			inner, innerWeights = append(inner, c.asked), append(innerWeights, weight(fair.Tenants, c.tenant))
		}
		ofUsers = math.Max(ofUsers, off(given, ideal))
		for j, ideal := range maxMin(ideal, inner, innerWeights) {
			ofTenants = math.Max(ofTenants, off(list[j].given, ideal))
		}
	}
	return ofUsers, ofTenants
}

// merged adds up the claims of each tenant, which may come from several classes.
func merged(claims []claim) []claim {
	var list []claim
	at := map[[2]string]int{}
	for _, c := range claims {
		key := [2]string{c.user, c.tenant}
		i, known := at[key]
		if !known {
			at[key] = len(list)
			list = append(list, c)
			continue
		}
		list[i].asked += c.asked
		list[i].given += c.given
	}
	return list
}

// jain is Jain's index of some values, 1 where all are alike: (Σx)²/(n·Σx²).
func jain(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum += v
		squares += float64(v * v)
	}
	return share(sum*sum, float64(len(values))*squares)
}
