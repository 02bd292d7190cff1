package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/sim"
)

const scenario = `
name: small
backend: B1
policy:
  gates: {api: {limit: {limit: 20}}}
  routes: [{match: [/], gates: [api]}]
phases:
  - {for: 2s, load: 1.5}
seeds: [1]
`

func TestSim(t *testing.T) {
	file := write(t, "small.yaml", scenario)
	out, errs, err := run(NewSimCommand(), "", file)
	if err != nil || errs != "" || !strings.Contains(out, "goodput / capacity") {
		t.Fatalf("sim: %v, %q\n%s", err, errs, out)
	}
	again, _, _ := run(NewSimCommand(), "", file, "--seed", "1")
	if again != out {
		t.Errorf("the same seed gives other figures:\n%s\n%s", out, again)
	}
	other, _, _ := run(NewSimCommand(), "", file, "--seed", "2")
	if other == out {
		t.Error("another seed gives the same figures")
	}
	plot, _, err := run(NewSimCommand(), "", file, "--plot")
	if err != nil || !strings.HasPrefix(plot, out) || !strings.Contains(plot, "offered") {
		t.Errorf("plot: %v\n%s", err, plot)
	}
}

// Whoever gives it nothing is shown a scenario, which plays.
func TestSimOfNothing(t *testing.T) {
	for _, text := range []string{"", "- a\n"} {
		_, errs, err := run(NewSimCommand(), "", write(t, "nothing.yaml", text))
		if err == nil || !strings.Contains(errs, leastScenario) || strings.Contains(errs, "upstreams") {
			t.Errorf("%q: %v\n%s", text, err, errs)
		}
	}
	if _, _, err := run(NewSimCommand(), "", write(t, "least.yaml", leastScenario)); err != nil {
		t.Error(err)
	}
}

// What is probably a mistake is told beside the report.
func TestSimWarns(t *testing.T) {
	file := write(t, "unused.yaml", strings.Replace(leastScenario, "gates: [app]", "gates: []", 1))
	if out, errs, err := run(NewSimCommand(), "", file); err != nil || errs != "warning: no route uses the gate app\n" || strings.Contains(out, "warning") {
		t.Errorf("%v, %q\n%s", err, errs, out)
	}
}

// Other limits stand in the place of the policy's, and quotas stay.
func TestSimLimits(t *testing.T) {
	file := write(t, "small.yaml", scenario)
	own, _, err := run(NewSimCommand(), "", file)
	if err != nil {
		t.Fatal(err)
	}
	if same, _, err := run(NewSimCommand(), "", file, "--limit", "20"); err != nil || same != own {
		t.Errorf("the policy's own limit gives other figures: %v\n%s", err, same)
	}
	out, _, err := run(NewSimCommand(), "", file, "--limit=auto,20", "--limit=none")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 7 || !strings.HasPrefix(lines[4], "auto  ") || !strings.HasPrefix(lines[5], "20  ") || !strings.HasPrefix(lines[6], "none  ") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = run(NewSimCommand(), "", file, "--limit=none"); err != nil || !regexp.MustCompile(`limit mean +0\.000 `).MatchString(out) {
		t.Errorf("a limit that is off is shown as one: %v\n%s", err, out)
	}
	goals := write(t, "goals.yaml", scenario+"goals: [{metric: goodput, min: 0.01}, {metric: inside_max, max: 20}]\n")
	var exit *ExitError
	if out, _, err = run(NewSimCommand(), "", goals, "--limit=20,7,none"); !errors.As(err, &exit) || exit.Code != 1 || !strings.Contains(err.Error(), "1 of 6 goals") {
		t.Errorf("error %v, want exit code 1 for 1 of 6 goals\n%s", err, out)
	}
	with := func(text, limit string) string {
		t.Helper()
		s, err := sim.ReadScenario(config.ParseDocument("x.yaml", []byte(text)))
		if err == nil {
			s, err = withLimit(s, limit)
		}
		if err != nil {
			return err.Error()
		}
		var gates []string
		for _, name := range s.Policy.Routes[0].Gates {
			g := s.Policy.Gates[name]
			if l := g.Limit; l != nil && l.Queue.Len > 0 {
				name += fmt.Sprintf(" queue %d exempt %d count %s", l.Queue.Len, l.Exempt, l.Count)
			}
			gates = append(gates, name+" "+mechanism(&g)+" "+string(g.Mode))
		}
		return strings.Join(gates, ", ")
	}
	quota := strings.NewReplacer("gates: {api", "gates: {q: {quota: {rate: 9/s}}, api", "[api]", "[q, api]").Replace(scenario)
	bare := strings.NewReplacer("gates: {api: {limit: {limit: 20}}}", "gates: {}", ", gates: [api]", "").Replace(scenario)
	rest := strings.Replace(scenario, "{limit: 20}", "{controller: aimd, max: 50, queue: {len: 3}, exempt: 5, count: requests}", 1)
	keyed := strings.Replace(scenario, "{limit: 20}", "{limit: 20}, each: {by: tenant}", 1)
	for _, tt := range [][3]string{
		{scenario, "auto", "api limit auto "},
		{scenario, "7", "api limit 7 "},
		{scenario, "none", "api limit 20 off"},
		{quota, "auto", "q quota , api limit auto "},
		{quota, "none", "q quota , api limit 20 off"},
		{rest, "auto", "api queue 3 exempt 5 count requests limit auto "},
		{rest, "7", "api queue 3 exempt 5 count requests limit 7 "},
		{bare, "auto", "limit limit auto "},
		{bare, "none", ""},
		{keyed, "5", "--limit 5: the gate api has a limit for each key; put another one into the file"},
		{scenario, "0", `--limit "0" is neither auto, none nor a number of slots, 1 or more`},
		{scenario, "many", `--limit "many" is neither auto, none nor a number of slots, 1 or more`},
	} {
		if got := with(tt[0], tt[1]); got != tt[2] {
			t.Errorf("--limit %s: %q, want %q", tt[1], got, tt[2])
		}
	}
	if _, _, err := run(NewSimCommand(), "", file, "--limit=auto,none", "--plot"); err == nil || !strings.Contains(err.Error(), "one limit at a time") {
		t.Errorf("%v", err)
	}
}

// Built-in scenarios have a code and a plain name.
func TestSimNames(t *testing.T) {
	for _, name := range []string{"S7", "cold-start"} {
		if s, err := readScenario(name); err != nil || s.Name != "S7" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list := builtIn(); !strings.Contains(list, "\n  cold-start                    S7    cold start at") || !strings.Contains(list, "\n  gateways                            three gateways") {
		t.Errorf("%s", list)
	}
	for name, want := range map[string]string{"cold-strat": "did you mean the built-in scenario cold-start?", "retry": "did you mean the built-in scenario retry-storm?", "S99x": "weir sim --help lists", "./x.yaml": "weir sim --help lists"} {
		if _, err := readScenario(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestSimJSON(t *testing.T) {
	asYAML := write(t, "small.yaml", scenario)
	asJSON := write(t, "small.json", `{"name":"small","backend":"B1",
		"policy":{"gates":{"api":{"limit":{"limit":20}}},"routes":[{"match":["/"],"gates":["api"]}]},
		"phases":[{"for":"2s","load":1.5}],"seeds":[1]}`)
	out, _, err := run(NewSimCommand(), "", asYAML, "--json", "--seed", "3,4")
	if err != nil {
		t.Fatal(err)
	}
	var figures struct { // what a reader of the JSON needs to know
		Capacity float64               `json:"capacity_rps"`
		Metrics  map[string]sim.Spread `json:"metrics"`
		Runs     []struct {
			Seed uint64 `json:"seed"`
		} `json:"runs"`
	}
	if err := json.Unmarshal([]byte(out), &figures); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if m := figures.Metrics["goodput"]; len(figures.Runs) != 2 || figures.Runs[1].Seed != 4 || figures.Capacity <= 0 || m.Median <= 0 || m.Min > m.Max {
		t.Errorf("figures: %+v", figures)
	}
	if same, _, err := run(NewSimCommand(), "", asJSON, "--json", "--seed", "3,4"); err != nil || same != out {
		t.Errorf("the same scenario as JSON gives other figures (%v):\n%s\n%s", err, same, out)
	}
}

func TestSimGoals(t *testing.T) {
	file := write(t, "goal.yaml", scenario+"goals:\n  - {metric: goodput, min: 0.01}\n  - {metric: goodput, min: 99}\n")
	out, _, err := run(NewSimCommand(), "", file)
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 1 || !strings.Contains(err.Error(), "1 of 2 goals") {
		t.Errorf("error %v, want exit code 1 for 1 of 2 goals", err)
	}
	if !strings.Contains(out, "MISSED") {
		t.Errorf("the report hides the miss:\n%s", out)
	}
}

func TestSimFaults(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"meaning", strings.Replace(scenario, "limit: 20", "limit: 20, min: 3", 1), []string{"bad.yaml:5:", "policy.gates.api.limit.min"}},
		{"several", "name: x\nbackend: B77\nphases: []\nnonsense: 1\n", []string{"bad.yaml:4:", "nonsense"}},
		{"syntax", "name:\n\tx\n", []string{"bad.yaml:2:1: ", "tab"}},
		{"no number", strings.Replace(scenario, "1.5", ".inf", 1), []string{"bad.yaml:8:", "phases[0].load"}},
		{"twice", scenario + "name: again\n", []string{"bad.yaml:10:", "written twice"}},
		{"cycle", "name: &a [*a]\n", []string{"bad.yaml:1:", "levels"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, errs, err := run(NewSimCommand(), "", write(t, "bad.yaml", tc.text))
			if err == nil || !strings.Contains(err.Error(), "cannot be used") {
				t.Fatalf("error %v, want one that says so", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(errs, w) {
					t.Errorf("the faults lack %q:\n%v", w, errs)
				}
			}
		})
	}
	if _, _, err := run(NewSimCommand(), "", "S99"); err == nil || !strings.Contains(err.Error(), "did you mean the built-in scenario S9?") {
		t.Errorf("unknown name: %v, want the nearest", err)
	}
}

func TestSimBuiltIn(t *testing.T) {
	s, err := readScenario("S1")
	if err != nil || s.Name == "" {
		t.Errorf("built-in scenario S1: %v", err)
	}
}

// TestProgressLine holds what a person sees while a run goes on.
func TestProgressLine(t *testing.T) {
	var b bytes.Buffer
	progressLine(&b)(sim.Progress{Run: 2, Runs: 4, Now: 30e9, End: 60e9})
	if want := clearLine + "seed 2 of 4, 30s of 1m0s, 38 %"; b.String() != want {
		t.Errorf("progress %q, want %q", b.String(), want)
	}
}
