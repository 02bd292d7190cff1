package sim

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/scenarios"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func mustParse(t testing.TB, text string) *Scenario {
	t.Helper()
	s, err := ParseScenario([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustRun(t testing.TB, s *Scenario) *Report {
	t.Helper()
	r, err := Run(context.Background(), s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// summary runs a scenario with one seed and returns its whole run.
func summary(t testing.TB, text string) Summary {
	t.Helper()
	s := mustParse(t, text)
	s.Seeds = s.Seeds[:1]
	return mustRun(t, s).Runs[0].Windows[0]
}

func TestEmbeddedScenariosAreValid(t *testing.T) {
	for _, name := range Names() {
		s, err := Load(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s.About == "" {
			t.Errorf("%s does not say what it is about", name)
		}
		for _, b := range s.On {
			if _, err := s.With(b, ""); err != nil {
				t.Errorf("%s on %s: %v", name, b, err)
			}
		}
	}
}

// Codes and plain names lead to the same scenarios, and no name to two.
func TestPlainNames(t *testing.T) {
	names := Names()
	plain := regexp.MustCompile(`^[a-z][a-z-]*[a-z]$`)
	seen := map[string]bool{}
	for code, name := range scenarios.PlainNames {
		if !slices.Contains(names, code) || slices.Contains(names, name) || seen[name] || !plain.MatchString(name) {
			t.Errorf("%s is called %s", code, name)
		}
		seen[name] = true
		s, err := Load(name)
		if err != nil || s.Name != code || Code(name) != code || PlainName(code) != name {
			t.Errorf("%s is not %s: %v", name, code, err)
		}
	}
	for _, name := range names {
		if code := regexp.MustCompile(`^S[0-9]`); code.MatchString(name) && PlainName(name) == name {
			t.Errorf("%s has no plain name", name)
		}
	}
	if _, err := Load("retry-strom"); err == nil || !strings.Contains(err.Error(), "did you mean retry-storm?") {
		t.Errorf("%v", err)
	}
}

func TestSameSeedSameReport(t *testing.T) {
	for _, name := range []string{"S4", "gateways", "retry-storm"} {
		s, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		s.Requests = 20_000 // whole runs are in TestGolden
		s.Seeds = []uint64{42}
		a, b := mustRun(t, s), mustRun(t, s)
		if a.String() != b.String() || a.Plot() != b.Plot() {
			t.Errorf("%s: two runs with one seed differ:\n%s\n%s", name, a, b)
		}
		s.Seeds = []uint64{43}
		if c := mustRun(t, s); c.String() == a.String() {
			t.Errorf("%s: another seed gives the same report", name)
		}
	}
	for what, policy := range map[string]string{
		"more tenants than forecasts": `"gates": {"g": {"limit": {"limit": 20, "queue": {"by_time": true}}}}`,
		"more tenants than buckets":   `"gates": {"g": {"quota": {"rate": "1/s", "by": ["tenant"], "max_keys": 1000}}}`,
	} {
		s := mustParse(t, `{"name": "tenants", "backend": {"law": "pool", "workers": 20, "service": {"dist": "lognormal", "mean": "20ms", "cv": 3}, "deadline": "1s"},
			"policy": {`+policy+`, "routes": [{"match": ["/"], "gates": ["g"]}]},
			"phases": [{"for": "10s", "load": 2}], "traffic": [{"tenant": "a", "tenants": 3000}], "seeds": [1]}`)
		if a, b := mustRun(t, s).String(), mustRun(t, s).String(); a != b {
			t.Errorf("%s: two runs with one seed differ:\n%s\n%s", what, a, b)
		}
	}
}

// Two policies see the same requests at the same times.
func TestTrafficDoesNotDependOnThePolicy(t *testing.T) {
	s, err := Load("S4")
	if err != nil {
		t.Fatal(err)
	}
	s.Seeds, s.Requests = []uint64{1}, 20_000
	none, err := s.With("B2", "none")
	if err != nil {
		t.Fatal(err)
	}
	fixed, err := s.With("B2", "fixed")
	if err != nil {
		t.Fatal(err)
	}
	a, b := mustRun(t, none).Runs[0], mustRun(t, fixed).Runs[0]
	for i := range a.bins {
		if a.bins[i].offered != b.bins[i].offered {
			t.Fatalf("bin %d: %d requests offered under one policy, %d under the other", i, a.bins[i].offered, b.bins[i].offered)
		}
	}
}

// The whole run of a scenario, to the letter.
func TestGolden(t *testing.T) {
	long(t)
	for name, backend := range map[string]string{"gateways": "", "retry-storm": "B2"} {
		t.Run(name, func(t *testing.T) {
			s, err := Load(name)
			if err == nil {
				s, err = s.With(backend, "")
			}
			if err != nil {
				t.Fatal(err)
			}
			s.Seeds = []uint64{1, 2}
			r := mustRun(t, s)
			got := r.String() + "\n" + r.Plot()
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the report differs from %s; look at it, and run with -update if it is right:\n%s", file, got)
			}
		})
	}
}

const pool = `"backend": {"law": "pool", "workers": 2, "service": {"dist": "constant", "mean": "10ms"}}`

const guarded = `"policy": {
	"gates": {"g": {"limit": {"limit": 2, "queue": {"len": 1, "max_wait": "15ms"}}}},
	"routes": [{"name": "all", "match": ["/"], "gates": ["g"]}]}`

// Scripted arrivals through a gate of two slots and a room for one: every
// request's fate is known.
func TestScriptedFates(t *testing.T) {
	s := summary(t, `{"name": "script", `+pool+`, `+guarded+`,
		"phases": [{"for": "1s"}],
		"traffic": [{"at": ["0s", "1ms", "2ms", "3ms", "100ms"]}]}`)
	if s.Offered != 5 || s.Attempts != 5 || s.Admitted != 4 || s.Good != 4 {
		t.Errorf("offered %d, attempts %d, admitted %d, good %d; want 5, 5, 4, 4", s.Offered, s.Attempts, s.Admitted, s.Good)
	}
	if got := mapText(s); got != "queue_full:1" {
		t.Errorf("refused %s, want queue_full:1", got)
	}
	// The third waits from 2 to 10 ms and is served until 20: 18 ms.
	if s.P999 < 17900*time.Microsecond || s.P999 > 18100*time.Microsecond {
		t.Errorf("the slowest took %v, want 18ms", s.P999)
	}
	if s.Inside.Max != 2 || s.Limit != (Level{2, 2, 2}) {
		t.Errorf("inside at most %v, limit %v; want 2 and 2 throughout", s.Inside.Max, s.Limit)
	}
}

func mapText(s Summary) string {
	var parts []string
	for r, n := range s.Refused {
		data, _ := json.Marshal(n)
		parts = append(parts, r.String()+":"+string(data))
	}
	return strings.Join(parts, " ")
}

// A client that leaves: with hold its slot stays taken until the backend
// answers, with release the backend gets more than the limit.
func TestAbandonedWork(t *testing.T) {
	scenario := func(onAbandon string) Summary {
		return summary(t, `{"name": "leave", "on_abandon": "`+onAbandon+`",
			"backend": {"law": "pool", "workers": 2, "service": {"dist": "constant", "mean": "100ms"}}, `+guarded+`,
			"phases": [{"for": "1s"}],
			"traffic": [{"timeout": "30ms", "at": ["0s", "1ms", "50ms", "51ms"]}]}`)
	}
	held := scenario("hold")
	if held.Inside.Max != 2 || held.Admitted != 2 || held.Abandoned != 2 || held.Good != 0 {
		t.Errorf("hold: inside %v, admitted %d, abandoned %d, good %d; want 2, 2, 2, 0", held.Inside.Max, held.Admitted, held.Abandoned, held.Good)
	}
	if held.WastedShare != 1 || held.LateShare != 1 {
		t.Errorf("hold: wasted %v, late %v of what was done for clients that left; want all", held.WastedShare, held.LateShare)
	}
	released := scenario("release")
	if released.Inside.Max != 4 || released.Admitted != 4 {
		t.Errorf("release: inside %v, admitted %d; want 4, 4", released.Inside.Max, released.Admitted)
	}
	if cancelled := scenario("cancel"); cancelled.Inside.Max != 2 || cancelled.Admitted != 4 || cancelled.Abandoned != 4 || cancelled.Answered != 0 {
		t.Errorf("cancel: inside %v, admitted %d, abandoned %d, answered %d; want 2, 4, 4, 0", cancelled.Inside.Max, cancelled.Admitted, cancelled.Abandoned, cancelled.Answered)
	}
}

// The backend gives work up when its client leaves, wherever in it the work is. The gate learns Overload if its deadline has passed.
func TestCancelledWork(t *testing.T) {
	for _, backend := range []string{
		`"law": "pool", "workers": 1, "service": {"dist": "constant", "mean": "100ms"}`, // in service and in the queue
		`"law": "mutex", "outside": "20ms", "service": {"dist": "constant", "mean": "100ms"}`,
		`"law": "mutex", "outside": "80ms", "service": {"dist": "constant", "mean": "100ms"}`,
	} {
		for class, want := range map[string]weir.Outcome{
			`"deadline": "30ms", "leaves": true`:                         weir.Overload,
			`"deadline": "30ms", "leaves": true, "tell_deadline": false`: weir.Abandoned,
			`"deadline": "1s", "timeout": "30ms"`:                        weir.Abandoned,
		} {
			s := mustParse(t, `{"name": "cancelled", "on_abandon": "cancel", "backend": {`+backend+`}, `+guarded+`,
				"phases": [{"for": "1s"}], "traffic": [{`+class+`, "at": ["0s", "1ms"]}]}`)
			w, err := newWorld(s, 1, &Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.play(t.Context(), s, 1); err != nil {
				t.Fatal(err)
			}
			got := w.fronts[0].gates[0].(*policy.Gate).Snapshot().Outcomes
			if len(got) != 1 || got[want] != 2 || w.server.Len() != 0 {
				t.Errorf("{%s}, {%s}: %v, and %d inside; want 2 of %v", backend, class, got, w.server.Len(), want)
			}
		}
	}
}

// A client that leaves the wait room is never served.
func TestWaiterThatLeaves(t *testing.T) {
	s := summary(t, `{"name": "leave", `+pool+`, `+guarded+`,
		"phases": [{"for": "1s"}],
		"traffic": [{"at": ["0s", "0s"]}, {"timeout": "5ms", "at": ["1ms"]}]}`)
	if s.Admitted != 2 || s.GaveUp != 1 || s.Answered != 2 {
		t.Errorf("admitted %d, gave up %d, answered %d; want 2, 1, 2", s.Admitted, s.GaveUp, s.Answered)
	}
}

func TestRetries(t *testing.T) {
	tests := []struct {
		name, retry    string
		attempts, good uint64
	}{
		{"none", `null`, 4, 3},
		{"at once", `{"attempts": 2}`, 6, 3},
		{"later", `{"attempts": 2, "heed": true, "backoff": "1ns"}`, 5, 4},
		{"only on timeout", `{"attempts": 2, "on": ["timeout"]}`, 4, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := summary(t, `{"name": "retry", `+pool+`, `+guarded+`,
				"phases": [{"for": "60s"}],
				"traffic": [{"timeout": "500ms", "at": ["0s", "0s", "0s", "0s"], "retry": `+tt.retry+`}]}`)
			if s.Offered != 4 || s.Attempts != tt.attempts || s.Good != tt.good {
				t.Errorf("offered %d, attempts %d, good %d; want 4, %d, %d", s.Offered, s.Attempts, s.Good, tt.attempts, tt.good)
			}
		})
	}
}

// The gates see what the route says of its work.
func TestWorkOfARoute(t *testing.T) {
	s := mustParse(t, `{"name": "routes", `+pool+`, "policy": {"gates": {"g": {"limit": {"limit": 3}}}, "routes": [
			{"name": "plain", "match": ["/"], "gates": ["g"], "access": "read"},
			{"name": "health", "match": ["/h"], "gates": ["g"], "exempt": true},
			{"name": "writes", "match": ["/w"], "gates": ["g"], "access": "write", "cost": 3, "priority": "high"}]},
		"phases": [{"for": "1s"}], "traffic": [{}, {"exempt": true}, {"route": "health"}, {"route": "writes"}]}`)
	w, err := newWorld(s, 1, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []weir.Work{
		{Op: "plain"}, {Op: "plain", Exempt: true}, {Op: "health", Exempt: true},
		{Op: "writes", Write: true, Cost: 3, Priority: weir.High},
	} {
		got := w.workOf(&attempt{class: w.classes[i]})
		if got.Op != want.Op || got.Exempt != want.Exempt || got.Write != want.Write || got.CostOrOne() != want.CostOrOne() || got.Priority != want.Priority {
			t.Errorf("class %d: the gates see %+v, want %+v", i, got, want)
		}
	}
}

// The limit that is reported is that of the last gate with one, whatever is behind it.
func TestLimitBeforeAQuota(t *testing.T) {
	s := summary(t, `{"name": "limit", `+pool+`, "policy": {
			"gates": {"g": {"limit": {"limit": 3}}, "q": {"quota": {"rate": "100/s"}}, "off": {"mode": "off", "limit": {"limit": 5}}},
			"routes": [{"match": ["/"], "gates": ["g", "off", "q"]}]},
		"phases": [{"for": "1s"}]}`)
	if s.Limit.Min != 3 || s.Limit.Max != 3 {
		t.Errorf("a limit of %v, want 3", s.Limit)
	}
}

func TestRates(t *testing.T) {
	s := mustParse(t, `{"name": "rates", "policy": "none",
		"backend": {"law": "pool", "workers": 10, "service": {"dist": "exponential", "mean": "10ms"}},
		"phases": [{"for": "20s", "load": 0.5}, {"for": "20s"}, {"for": "20s", "rps": 200}],
		"traffic": [{"share": 3}, {}, {"arrivals": "regular", "phases": [{"for": "60s", "rps": 100}]}],
		"seeds": [1],
		"goals": [{"metric": "served", "to": "20s"}, {"metric": "served", "from": "20s", "to": "40s"}, {"metric": "served", "from": "40s"}]}`)
	r := mustRun(t, s).Runs[0]
	for i, want := range []float64{20 * (500 + 100), 20 * 100, 20 * (200 + 100)} {
		got := float64(r.Windows[i+1].Offered)
		within(t, "offered", got, want, 0.03)
	}
}

func TestPhasesRepeatAndRequestsEndTheRun(t *testing.T) {
	s := mustParse(t, `{"name": "bursts", "policy": "none", "repeat": 5,
		"backend": {"law": "pool", "workers": 10, "service": {"dist": "constant", "mean": "10ms"}},
		"phases": [{"for": "900ms", "rps": 100}, {"for": "100ms", "rps": 1000}],
		"traffic": [{"arrivals": "regular"}], "seeds": [1]}`)
	if got := s.Duration(); got != 5*time.Second {
		t.Fatalf("lasts %v, want 5s", got)
	}
	if got := mustRun(t, s).Runs[0].Windows[0].Offered; got < 940 || got > 951 {
		t.Errorf("offered %d, want 950", got)
	}
	s.Requests = 100
	r := mustRun(t, s)
	if strings.Contains(r.Plot(), "(nothing)") {
		t.Errorf("a chart of a run that ends early is empty:\n%s", r.Plot())
	}
	w := r.Runs[0].Windows[0]
	if w.Offered != 100 || w.To > 1100*time.Millisecond {
		t.Errorf("offered %d until %v, want 100 within about 1s", w.Offered, w.To)
	}
}

// Requests of clients in a loop count, too: they end the run, and no run has any number of them.
func TestRequestsOfClientsInALoop(t *testing.T) {
	loop := func(traffic string) *Scenario {
		return mustParse(t, `{"name": "loop", `+pool+`, "policy": "none", "phases": [{"for": "60s"}], "traffic": [`+traffic+`], "requests": 100, "seeds": [1]}`)
	}
	for traffic, calls := range map[string]uint64{
		`{"clients": 10}`:                                           1,
		`{"clients": 50, "think": "1s"}`:                            1,
		`{"clients": 10, "calls": 3, "nested": true}`:               3,
		`{"clients": 10}, {"at": ["10ms", "20ms"]}`:                 1,
		`{"clients": 10}, {"phases": [{"for": "60s", "rps": 500}]}`: 1,
	} {
		w := mustRun(t, loop(traffic)).Runs[0].Windows[0]
		if w.Offered != 100 || w.Good != 100*calls || w.To > 2*time.Second {
			t.Errorf("%s: offered %d until %v, with %d good answers; want 100 in two seconds, with %d", traffic, w.Offered, w.To, w.Good, 100*calls)
		}
	}
	s := loop(`{"clients": 10}`)
	s.Requests = 0
	w, err := newWorld(s, 1, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.requests = 100
	if _, err := w.play(t.Context(), s, 1); err == nil || !strings.Contains(err.Error(), "set requests to end the run sooner") {
		t.Errorf("more requests than a run may have: %v", err)
	}
}

// A run ends with its context also where a moment has no end of events.
func TestCancellationInAMoment(t *testing.T) {
	s := mustParse(t, `{"name": "flood", `+pool+`, `+guarded+`, "phases": [{"for": "1us"}], "traffic": [{"clients": 1000, "pause": "1ns"}], "seeds": [1]}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, s, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

// A goal is judged on its own stretch, also where another one begins at the same time, and where
// the run ends before the stretch does.
func TestGoalsAreAboutTheirOwnStretch(t *testing.T) {
	s := mustParse(t, `{"name": "stretches", `+pool+`, "policy": "none",
		"phases": [{"for": "60s", "rps": 10}],
		"traffic": [{"arrivals": "regular"}], "seeds": [1],
		"goals": [
			{"metric": "served", "to": "10s"}, {"metric": "served", "from": "15s", "to": "40s"},
			{"metric": "served", "from": "15s"}, {"metric": "served"}
		]}`)
	for _, tt := range []struct {
		requests int
		want     [][2]float64 // seconds
	}{
		{0, [][2]float64{{0, 10}, {15, 40}, {15, 60}, {0, 60}}},
		{200, [][2]float64{{0, 10}, {15, 20}, {15, 20}, {0, 20}}},
	} {
		s.Requests = tt.requests
		r := mustRun(t, s).Runs[0]
		for i, want := range tt.want {
			got := r.window(&s.Goals[i])
			within(t, "from", got.From.Seconds(), want[0], 0)
			within(t, "to", got.To.Seconds(), want[1], 0.01)
		}
	}
}

// A run that ends before a goal's stretch is not one in which the latency was 0.
func TestRunsWithNothingAreNotInTheMedian(t *testing.T) {
	r := mustRun(t, mustParse(t, `{"name": "some", "backend": {"law": "pool", "workers": 10, "service": {"dist": "exponential", "mean": "10ms"}},
		"policy": "none", "requests": 1000, "phases": [{"for": "10s", "load": 0.5}], "traffic": [{"name": "all"}],
		"seeds": [1, 3, 7, 2, 4], "goals": [{"metric": "p99", "from": "2.0245s", "to": "10s", "max": 20}]}`))
	var values []float64
	for _, run := range r.Runs {
		if w := run.window(&r.Scenario.Goals[0]); w.To > w.From && w.Answered > 0 {
			values = append(values, float64(w.P99)/1e6)
		}
	}
	if len(values) != 3 {
		t.Fatalf("%d of the runs have answers in the stretch; the test needs 3 of 5", len(values))
	}
	if g := r.Goals()[0]; g.Spread != newSpread(values) || !g.Measured || g.Reached {
		t.Errorf("%+v, want the spread of %.1f, measured and missed", g, values)
	}
}

// A goal is not reached by what was never measured: no time, or no answer.
func TestGoalsAboutNothing(t *testing.T) {
	const text = `{"name": "nothing", "backend": {"law": "pool", "workers": 10, "service": {"dist": "exponential", "mean": "10ms"}},
		"policy": {"gates": {"q": {"quota": {"rate": "1/h", "burst": 1}}}, "routes": [{"match": ["/"], "gates": ["q"]}]},
		"requests": 1000, "phases": [{"for": "10s", "load": 0.5}], "traffic": [{"name": "all"}], "goals": [`
	for goal, want := range map[string]struct{ measured, reached bool }{
		`{"metric": "p99", "max": 100}`:                                              {true, true}, // of the one that was let in
		`{"metric": "p99", "from": "1s", "to": "2s", "max": 100}`:                    {},
		`{"metric": "p99", "from": "1s", "to": "2s"}`:                                {false, true},
		`{"metric": "late", "from": "1s", "to": "2s", "max": 0.01}`:                  {},
		`{"metric": "p50", "class": "all", "from": "1s", "to": "2s", "max": 1}`:      {},
		`{"metric": "wait_p99", "class": "all", "from": "1s", "to": "2s", "max": 1}`: {},
		`{"metric": "refused", "from": "1s", "to": "2s", "min": 1}`:                  {true, true},
		`{"metric": "settle", "from": "5s", "to": "10s", "max": 9}`:                  {}, // the run ends after 2 s
		`{"metric": "refused", "from": "5s", "max": 0.01}`:                           {},
	} {
		r := mustRun(t, mustParse(t, text+goal+`]}`))
		got := r.Goals()[0]
		if got.Measured != want.measured || got.Reached != want.reached || got.Spread.Min < 0 {
			t.Errorf("%s: %+v, want measured %v, reached %v", goal, got, want.measured, want.reached)
		}
		if strings.Contains(r.String(), "nothing measured") == want.measured {
			t.Errorf("%s: the report is\n%s", goal, r)
		}
	}
}

func TestGatewaysShareTheTraffic(t *testing.T) {
	s := summary(t, `{"name": "two", "gateways": 2, `+pool+`, `+guarded+`,
		"phases": [{"for": "10s", "load": 3}]}`)
	if s.Limit.Mean != 4 {
		t.Errorf("two gateways with a limit of 2 have %v in all, want 4", s.Limit.Mean)
	}
	if s.Inside.Max != 4 {
		t.Errorf("at most %v inside, want 4", s.Inside.Max)
	}
}

func TestProgressAndCancellation(t *testing.T) {
	s, err := Load("S1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	_, err = Run(ctx, s, Options{Progress: func(p Progress) {
		if calls++; p.Now >= 10*time.Second {
			cancel()
		}
		if p.Run != 1 || p.Runs != 5 || p.End != time.Minute {
			t.Errorf("progress %+v", p)
		}
	}})
	if !errors.Is(err, context.Canceled) || calls < 15 || calls > 20 {
		t.Errorf("%d calls of progress, error %v; want about 17 and context.Canceled", calls, err)
	}
}

func TestParseFindsAllFaults(t *testing.T) {
	_, err := ParseScenario([]byte(`{
		"name": "bad", "colour": "red",
		"backend": {"law": "pool", "workers": "two", "service": {"dist": "constant", "mean": "10"}},
		"phases": [{"for": "10s", "laod": 2}]
	}`))
	wantFaults(t, err, "line 2: colour: there is no such field", "line 3: backend.workers:", "backend.service.mean: ", "line 4: phases[0].laod: there is no such field")

	_, err = ParseScenario([]byte(`{
		"name": "bad", "on_abandon": "drop",
		"backend": {"law": "usl", "workers": 3, "service": {"dist": "erlang", "mean": "10ms"}},
		"policy": {"gates": {"g": {"limit": {"limit": -1}}}, "routes": [{"match": ["/"], "gates": ["h"]}]},
		"phases": [{"for": "-10s", "load": 2, "rps": 3}],
		"traffic": [{"priority": "urgent", "retry": {"attempts": 0, "on": ["timeout"]}}],
		"goals": [{"metric": "speed"}, {"metric": "p99", "from": "5s", "to": "4s"}]
	}`))
	wantFaults(t, err, "on_abandon: ", "backend.workers: only for law", "backend.service.k: ", "backend: sigma and kappa",
		"policy.gates.g.limit", "policy.routes[0].gates[0]", "phases[0].for: ", "phases[0].rps: load and rps",
		"traffic[0].priority: ", "traffic[0].retry.attempts: ", "traffic[0].retry.on[0]: ", "goals[0].metric: ", "goals[1].to: ")

	for text, want := range map[string]string{
		`{"name": "x", "backend": "B1", "policy": "none", "phases": [{"for": "1s"}], "seeds": [1, 2, 1]}`:                          "seeds[2]: 1: is in the list already",
		`{"name": "x", "backend": "B1", "policy": "none", "phases": [{"for": "1s"}], "traffic": [{"share": 1e308}]}`:               "traffic[0].share: ",
		`{"name": "x", "backend": "B1", "policy": "none", "phases": [{"for": "1s"}], "traffic": [{"deadline": "2562047h47m16s"}]}`: "traffic[0].deadline: ",
		`{"name": "x", "backend": "B1", "policy": {"routes": [{"match": ["/"], "upstream": "app"}]}, "phases": [{"for": "1s"}]}`:   "leave it out: a scenario has one backend",
		`{"name": "x", "backend": "B1", "policy": "none", "phases": [{"for": "1s"}], "seeds": [-1]}`:                               "below 0",
		``: "valid JSON", `[]`: "list", `{"name": }`: "line 1", `{} {}`: "more text after",
		`{"name": "x", "backend": "B9", "phases": [{"for": "1s"}]}`:                                                           "no standard backend B9",
		`{"name": "x", "backend": "B1", "policy": "best", "phases": [{"for": "1s"}]}`:                                         "none, aimd, fixed",
		`{"name": "x", "backend": "B1", "phases": [{"for": "100h", "rps": 1e6}]}`:                                             "requests to end the run",
		`{"name": "x", "backend": "B1", "phases": [{"for": "100h"}], "traffic": [{"phases": [{"for": "100h", "rps": 1e6}]}]}`: "requests to end the run",
		`{"name": "x", "backend": "B1", "phases": [{"for": "1000h"}], "repeat": 4000}`:                                        "in all: must be at most 1000h",
		`{"name": "x", "backend": "B1", "policy": "fixed", "phases": [{"for": "1s"}], "traffic": [{"route": "r"}]}`:           "no such route",
	} {
		_, err := ParseScenario([]byte(text))
		wantFaults(t, err, want)
	}
}

// What is allowed and probably a mistake is noted, and nothing of what weir has itself.
func TestNotes(t *testing.T) {
	for _, name := range Names() {
		s, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if notes := s.Notes(); len(notes) > 0 {
			t.Errorf("%s: %q", name, notes)
		}
	}
	const phases = `, "phases": [{"for": "10s", "load": 1}]}`
	for text, want := range map[string][]string{
		`"policy": "none"`: nil,
		``:                 {"there is no policy"},
		`"policy": {"gates": {"g": {"limit": 4}, "h": {"limit": 4}}, "routes": [{"match": ["/"], "gates": ["g"]}]}`: {"no route uses the gate h"},
		`"policy": {"gates": {"g": {"limit": 4}}, "identity": {"admissions": "header:X-Admissions"}, "routes": [{"name": "r", "match": ["/"], "gates": ["g"], "demote_after": 3, "settle": "header:X-Cost"}]}`: {
			"the route r has demote_after", "the route r reads a cost"},
		`"policy": "none", "traffic": [{"at": ["1s", "10s"]}, {"phases": [{"for": "10s"}, {"for": "1s", "rps": 1}]}, {"cache": {"keys": 2, "zipf": 1, "size": 1, "flush": ["9s", "11s"]}}]`: {
			"traffic[0].at[1]: is not played, because the run ends at 10s", "traffic[1].phases[1]: ", "traffic[2].cache.flush[1]: "},
		`"policy": "none", "consumer": {"phases": [{"for": "1s", "rps": 1}], "unread": [{"from": "50s", "to": "60s"}]}`: {"consumer.unread[0]: "},
		`"policy": "none", "consumer": {"phases": [{"for": "4s", "rps": 1}, {"for": "6s", "rps": 2}, {"for": "1s", "rps": 3}, {"for": "1s"}]}`: {
			"consumer.phases[2]: is not played, because the run ends at 10s", "consumer.phases[3]: "},
	} {
		if text != "" {
			text = ", " + text
		}
		notes := mustParse(t, `{"name": "notes", `+pool+text+phases).Notes()
		if len(notes) != len(want) {
			t.Errorf("%s: %q, want %q", text, notes, want)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(notes[i], want[i]) {
				t.Errorf("%s: %q, want %q", text, notes[i], want[i])
			}
		}
	}
}

func wantFaults(t *testing.T, err error, wants ...string) {
	t.Helper()
	var faults *Faults
	if !errors.As(err, &faults) {
		t.Errorf("got %v, want faults with %q", err, wants)
		return
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no fault says %q:\n%v", want, err)
		}
	}
}

func FuzzParseScenario(f *testing.F) {
	for _, name := range Names() {
		data, err := scenarios.Files.ReadFile(name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"name": "x", "backend": {"law": "mutex", "service": {"dist": "lognormal", "cv": 2, "mean": "1ms"}}, "phases": [{"for": "1s", "load": 1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseScenario(data)
		if err != nil {
			var faults *Faults
			if !errors.As(err, &faults) || len(faults.List) == 0 {
				t.Fatalf("not a list of faults: %v", err)
			}
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseScenario(again); err != nil {
			t.Fatalf("what was read cannot be read again: %v\n%s", err, again)
		}
		full, _ := s.Backend.Capacity()
		if !(full > 0) {
			t.Fatalf("capacity %v", full)
		}
	})
}

func BenchmarkTwiceTheLoadForAMinute(b *testing.B) {
	s, err := Load("S1")
	if err != nil {
		b.Fatal(err)
	}
	for _, backend := range []string{"B1", "B2", "B3"} {
		b.Run(backend, func(b *testing.B) {
			on, err := s.With(backend, "fixed")
			if err != nil {
				b.Fatal(err)
			}
			on.Seeds = []uint64{1}
			b.ReportAllocs()
			for b.Loop() {
				mustRun(b, on)
			}
		})
	}
}
