package sim_test

import (
	"math"
	"strings"
	"testing"

	"github.com/weir-go/weir/sim"
)

// one plays a scenario once and returns its summary and each class's.
func one(t *testing.T, text string, opts sim.Options) (sim.Summary, map[string]sim.ClassSummary) {
	t.Helper()
	s, err := sim.ParseScenario([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	opts.Seeds = []uint64{1}
	r, err := sim.Run(t.Context(), s, opts)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]sim.ClassSummary{}
	for _, c := range r.Runs[0].Windows[0].Classes {
		classes[c.Name] = c
	}
	return r.Runs[0].Windows[0], classes
}

// slot is a backend that takes a second for each request and one at a time, and
// a gate of one slot before it.
const slot = `
	"backend": {"law": "pool", "workers": 1, "service": {"dist": "constant", "mean": "1s"}},
	"policy": {
		"gates": {"slot": {"limit": {"limit": 1, "queue": {"len": 100, "max_wait": "-1", "order": "fifo"}}}},
		"routes": [{"name": "all", "match": ["/"], "gates": ["slot"]}]
	},`

// Somebody is let in while somebody of a higher priority waits: that is counted
// from outside, so a gate that is not told has inversions.
func TestInversionsAreSeen(t *testing.T) {
	text := `{"name": "inversions",` + slot + `
		"phases": [{"for": "20s"}],
		"traffic": [
			{"name": "low", "priority": "background", "at": ["0s", "100ms", "200ms"]},
			{"name": "high", "priority": "high", "at": ["300ms"]}
		],
		"goals": [{"metric": "inversions"}, {"metric": "p50", "class": "high"}]
	}`
	s, classes := one(t, text, sim.Options{Anonymous: true})
	if s.Inversions != 2 { // two of low go before high
		t.Errorf("%d inversions in order of arrival, want 2", s.Inversions)
	}
	if c := classes["high"]; c.Done != 1 || c.Starved.Seconds() != 2.7 {
		t.Errorf("high: %d done, starved for %v; want 1 and 2.7s", c.Done, c.Starved)
	}
}

// A client in a closed loop has one request under way: two of them keep one slot
// busy and wait for each other.
func TestClientsInALoop(t *testing.T) {
	s, classes := one(t, `{"name": "loop",`+slot+`
		"phases": [{"for": "10s"}],
		"traffic": [{"name": "loop", "clients": 2}],
		"goals": [{"metric": "p50", "class": "loop"}]
	}`, sim.Options{})
	c := classes["loop"]
	if s.Inside.Max != 1 || c.Offered != c.Admitted+1 || c.Done < 9 || c.Done > 10 || c.P50.Seconds() < 1.9 {
		t.Errorf("two clients on one slot: %v inside, %+v", s.Inside.Max, c)
	}
}

// A client that thinks leaves the slot free meanwhile.
func TestClientsThink(t *testing.T) {
	_, classes := one(t, `{"name": "think",`+slot+`
		"phases": [{"for": "20s"}],
		"traffic": [{"name": "loop", "clients": 1, "think": "1s"}],
		"goals": [{"metric": "p50", "class": "loop"}]
	}`, sim.Options{})
	if n := classes["loop"].Done; n < 9 || n > 10 {
		t.Errorf("%d requests done in 20s of a second's work and a second's thought", n)
	}
}

// A task is done when its last call is, and ends with the first that is refused.
func TestTasks(t *testing.T) {
	s, classes := one(t, `{"name": "tasks",`+slot+`
		"phases": [{"for": "30s"}],
		"traffic": [{"name": "task", "calls": 4, "at": ["0s", "10s"]}],
		"goals": [{"metric": "tasks", "class": "task"}]
	}`, sim.Options{})
	if c := classes["task"]; c.Offered != 2 || c.Done != 2 || s.Answered != 8 {
		t.Errorf("%d of %d tasks of four calls, with %d answers; want 2 of 2 with 8", c.Done, c.Offered, s.Answered)
	}
	_, classes = one(t, `{"name": "tasks late",`+slot+`
		"phases": [{"for": "30s"}],
		"traffic": [{"name": "task", "calls": 2, "at": ["0s"], "deadline": "500ms", "tell_deadline": false}],
		"goals": [{"metric": "tasks", "class": "task"}]
	}`, sim.Options{})
	if c := classes["task"]; c.Attempts != 1 || c.Done != 0 {
		t.Errorf("%d calls, %d done, of a task whose first call is late; want 1 and 0", c.Attempts, c.Done)
	}
}

// What work has really cost changes the next turns only where gates do not count requests.
func TestSettledCost(t *testing.T) {
	for count, want := range map[string]struct{ least, most float64 }{"cost": {0, 0.2}, "requests": {0.45, 0.55}} {
		_, classes := one(t, `{"name": "settled",
			"backend": {"law": "pool", "workers": 1, "service": {"dist": "constant", "mean": "10ms"}},
			"policy": {"gates": {"g": {"limit": {"limit": 1, "count": "`+count+`"}}}, "routes": [{"match": ["/"], "gates": ["g"]}]},
			"phases": [{"for": "10s"}],
			"traffic": [{"name": "cheap", "tenant": "a", "clients": 5}, {"name": "dear", "tenant": "b", "clients": 5, "settled": 20}],
			"goals": [{"metric": "served", "class": "dear"}]
		}`, sim.Options{})
		cheap, dear := float64(classes["cheap"].Admitted), float64(classes["dear"].Admitted)
		if part := dear / (cheap + dear); part < want.least || part > want.most {
			t.Errorf("count: %s: %.3f of what was let in cost 20 in the end; want %v to %v", count, part, want.least, want.most)
		}
		if got := classes["dear"].Given; got < 0.45 || got > 0.55 { // in units of the gate
			t.Errorf("count: %s: %.3f was given to what costs 20 in the end; want half", count, got)
		}
	}
}

// The scenario adds to what a policy says about fairness. It does not replace it, and may not contradict it.
func TestFairBesideThePolicy(t *testing.T) {
	text := func(queue, fair string) string {
		return `{"name": "fair",
			"backend": {"law": "pool", "workers": 10, "service": {"dist": "exponential", "mean": "10ms"}, "deadline": "1s"},
			"policy": {"gates": {"g": {"limit": {"limit": 10, "queue": {` + queue + `}}}}, "routes": [{"match": ["/"], "gates": ["g"]}]},
			"phases": [{"for": "10s", "load": 3}],
			"traffic": [{"name": "users", "share": 2, "user": "ann"}, {"name": "batch", "user": "bob", "priority": "background"}],
			"fair": {` + fair + `}, "goals": [{"metric": "given", "class": "batch"}]}`
	}
	for _, tt := range []struct{ queue, fair string }{
		{`"shares": {"background": 0.3}`, ``},
		{`"shares": {"background": 0.3}`, `"users": {"ann": 2}`},
		{`"shares": {"background": 0.3}`, `"shares": {"background": 0.3}`},
		{``, `"shares": {"background": 0.3}`},
	} {
		_, classes := one(t, text(tt.queue, tt.fair), sim.Options{})
		if got := classes["batch"].Given; got < 0.28 || got > 0.32 {
			t.Errorf("{%s} beside {%s}: %.3f for background, want 0.3", tt.queue, tt.fair, got)
		}
	}
	for _, tt := range []struct{ queue, fair, want string }{
		{`"shares": {"background": 0.3}`, `"shares": {"background": 0.2}`, "fair.shares: the queue of the gate g has others of its own"},
		{`"weights": {"users": {"ann": 3}}`, `"users": {"ann": 2}`, "fair.users: "},
		{``, `"users": {"ann": 2000}`, "fair.users.ann: is 2000"},
		{``, `"tenants": {"t": 0.0001}`, "fair.tenants.t: is 0.0001"},
	} {
		_, err := sim.ParseScenario([]byte(text(tt.queue, tt.fair)))
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), "line ") != 1 {
			t.Errorf("{%s} beside {%s}: %v, want just %q", tt.queue, tt.fair, err, tt.want)
		}
	}
}

// The figures about fairness know the weights and shares that the policy itself has.
func TestFiguresOfThePolicysWeights(t *testing.T) {
	for _, tt := range []struct{ queue, a, b string }{
		{`"weights": {"tenants": {"t": 4}}`, `"tenant": "t"`, `"tenant": "u"`},
		{`"weights": {"users": {"ann": 4}}`, `"user": "ann"`, `"user": "bob"`},
		{`"shares": {"background": 0.3}`, `"share": 2`, `"priority": "background"`},
	} {
		s, _ := one(t, `{"name": "weights",
			"backend": {"law": "pool", "workers": 10, "service": {"dist": "exponential", "mean": "10ms"}, "deadline": "1s"},
			"policy": {"gates": {"g": {"limit": {"limit": 10, "queue": {`+tt.queue+`}}}}, "routes": [{"match": ["/"], "gates": ["g"]}]},
			"phases": [{"for": "10s", "load": 6}], "traffic": [{"name": "a", `+tt.a+`}, {"name": "b", `+tt.b+`}],
			"goals": [{"metric": "inversions"}]}`, sim.Options{})
		if s.ShareError > 0.02 || s.UserError > 0.02 || s.Inversions > 0 {
			t.Errorf("{%s}: the tenants are off by %.3f, the users by %.3f, with %d inversions; want none", tt.queue, s.ShareError, s.UserError, s.Inversions)
		}
	}
}

// Clients in a loop claim as many units as the gate counts, whatever their requests cost elsewhere.
func TestClaimsOfClientsInALoop(t *testing.T) {
	figure := func(count, cost string) float64 {
		s, _ := one(t, `{"name": "claims", "backend": {"law": "pool", "workers": 10, "service": {"dist": "constant", "mean": "10ms"}},
			"policy": {"gates": {"g": {"limit": {"limit": 30, "count": "`+count+`"}}}, "routes": [{"match": ["/"], "gates": ["g"]}]},
			"phases": [{"for": "20s"}], "traffic": [{"name": "a", "tenant": "a", "clients": 1, "think": "90ms"`+cost+`}, {"name": "b", "tenant": "b", "clients": 100}],
			"goals": [{"metric": "share_error"}]}`, sim.Options{})
		return s.ShareError
	}
	plain := figure("requests", "")
	if plain < 0.1 || plain > 0.25 {
		t.Errorf("a client that waits a fifth longer than alone is off by %.3f, want some 0.17", plain)
	}
	for _, tt := range [][2]string{{"requests", `, "cost": 20`}, {"requests", `, "settled": 20`}, {"cost", `, "cost": 20`}, {"cost", `, "settled": 20`}} {
		if got := figure(tt[0], tt[1]); math.Abs(got-plain) > 0.02 {
			t.Errorf("a gate that counts %s, clients with %s: off by %.3f, want %.3f as without", tt[0], tt[1], got, plain)
		}
	}
}

// A nested call rides on the slot that its caller holds. A gate that is not told
// lets it wait for that very slot.
func TestNestedCalls(t *testing.T) {
	const text = `{"name": "nested",` + slot + `
		"phases": [{"for": "30s"}],
		"traffic": [{"name": "outer", "calls": 3, "nested": true, "deadline": "5s", "tell_deadline": true, "at": ["0s", "100ms", "10s"]}],
		"goals": [{"metric": "behind", "class": "outer"}]
	}`
	s, classes := one(t, text, sim.Options{})
	if c := classes["outer"]; c.Done != 3 || c.Behind != 0 || s.Inside.Max != 1 {
		t.Errorf("told: %+v, at most %v inside; want 3 done, none behind, 1 inside", c, s.Inside.Max)
	}
	_, classes = one(t, text, sim.Options{Anonymous: true})
	if c := classes["outer"]; c.Done != 0 || c.Behind == 0 {
		t.Errorf("not told: %+v; want calls that wait for their own callers' slots", c)
	}
}

// A class alone sees the very requests it sees among others.
func TestOnly(t *testing.T) {
	s, err := sim.Load("S12")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.With("B4", "fixed"); err != nil {
		t.Fatal(err)
	}
	offered := func(s *sim.Scenario, class int) uint64 {
		r, err := sim.Run(t.Context(), s, sim.Options{Seeds: []uint64{1}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Runs[0].Windows[0].Classes[class].Offered
	}
	both, alone := offered(s, 0), offered(s.Only("critical", 1), 0)
	if both != alone || both == 0 {
		t.Errorf("%d critical requests among others, %d alone", both, alone)
	}
	if n := offered(s.Only("critical", 1), 1); n != 0 {
		t.Errorf("%d bulk requests beside critical alone", n)
	}
	if n := offered(s.Only("critical", 0.1), 0); n < both/20 || n > both/5 {
		t.Errorf("%d critical requests at a tenth of %d", n, both)
	}
}

// A scenario with such things wrong says so, all at once.
func TestFaultsAboutOrder(t *testing.T) {
	_, err := sim.ParseScenario([]byte(`{"name": "wrong",` + slot + `
		"phases": [{"for": "1s"}],
		"fair": {"users": {"a": 0}, "shares": {"urgent": 0.6, "high": 0.6}},
		"traffic": [{"name": "a", "clients": -1, "think": "1s", "later": "soon"}, {}, {}, {"name": "a"}],
		"goals": [{"metric": "jain"}, {"metric": "p99", "class": "b", "times_alone": 1}, {"metric": "goodput", "class": "a"}]
	}`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"fair.users.a", "fair.shares.urgent", "fair.shares:", "traffic[0].clients", "traffic[0].calls", "traffic[0].later", "traffic[3].name",
		"goals[0].metric", "goals[1].class", "goals[2].metric"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}

// The table has a row for each class with its own figures, also for classes without a name.
func TestTableOfClassesWithoutNames(t *testing.T) {
	s, err := sim.ParseScenario([]byte(`{"name": "unnamed",` + slot + `
		"phases": [{"for": "10s"}],
		"traffic": [{"at": ["0s"]}, {"at": ["2s", "3s", "9s"], "deadline": "500ms", "tell_deadline": false}],
		"goals": [{"metric": "inversions"}]
	}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(t.Context(), s, sim.Options{Seeds: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(r.Classes(), "\n")
	for i, served := range []string{"1.000", "0.000"} {
		if got := strings.Fields(rows[i+1])[0]; got != served {
			t.Errorf("class %d: %s served, want %s\n%s", i, got, served, r.Classes())
		}
	}
}
