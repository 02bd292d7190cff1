package sim_test

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/sim"
)

// The retry storm and the chained calls, with clients that share a throttle and a budget: the goals are
// reached on every standard backend. Attempts stay at 1.1 for each request during the fault, too.
func TestClientsOfAProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("twelve boards of clients")
	}
	for _, name := range []string{"S5c", "S5d", "S15c"} {
		for _, backend := range []string{"B1", "B2", "B3", "B4"} {
			s, err := sim.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			if s, err = s.With(backend, "fixed"); err != nil {
				t.Fatal(err)
			}
			r, err := sim.Run(t.Context(), s, sim.Options{Seeds: []uint64{1, 2, 3}})
			if err != nil {
				t.Fatal(err)
			}
			if !r.Reached() {
				t.Errorf("%s on %s:\n%s", name, backend, r)
			}
		}
	}
}

// Three guards beside each other, before a backend that refuses half, and later everything.
func TestGuardsScenario(t *testing.T) {
	s, err := sim.Load("guards")
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(t.Context(), s, sim.Options{Seeds: []uint64{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Reached() {
		t.Errorf("%s", r)
	}
}

// dead is a backend that has been failing everything for a minute, after half a minute of health.
const dead = `
	"backend": {"law": "pool", "workers": 10, "service": {"dist": "constant", "mean": "10ms"}, "deadline": "1s"},
	"policy": "none",
	"phases": [{"for": "30s", "rps": 100}, {"for": "60s", "rps": 100, "errors": {"as": "overload"}}],
	"goals": [{"metric": "attempts", "from": "60s", "to": "90s"}, {"metric": "withheld", "from": "60s", "to": "90s"}],`

// What each guard makes of an outage: the throttle sends a few, the breaker its probes, and without a
// guard the budget alone bounds what is sent.
func TestGuardsInAnOutage(t *testing.T) {
	for _, tt := range []struct {
		guard       string
		least, most float64 // attempts for each request, long after the outage began
	}{
		{"throttle", 0.0001, 0.2},
		{"breaker", 0.001, 0.02},
		{"none", 1.05, 1.1},
	} {
		s, err := sim.ParseScenario([]byte(`{"name": "outage",` + dead + `
			"processes": {"shop": {"guard": "` + tt.guard + `"}}, "traffic": [{"process": "shop"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(t.Context(), s, sim.Options{Seeds: []uint64{1}})
		if err != nil {
			t.Fatal(err)
		}
		w := r.Runs[0].Windows[1]
		if got := float64(w.Attempts) / float64(w.Offered); got < tt.least || got > tt.most {
			t.Errorf("%s: %.4f attempts for each request, want %v to %v", tt.guard, got, tt.least, tt.most)
		}
		if sent := w.Attempts + w.Withheld; w.Withheld > 0 && sent < w.Offered {
			t.Errorf("%s: %d sent and %d not, of %d requests", tt.guard, w.Attempts, w.Withheld, w.Offered)
		}
	}
}

// A class that names a process has to find it, and leaves retries to it.
func TestProcessFaults(t *testing.T) {
	_, err := sim.ParseScenario([]byte(`{"name": "wrong",` + dead + `
		"processes": {"shop": {"guard": "fuse", "attempts": 11}},
		"traffic": [{"process": "show"}, {"process": "shop", "retry": {"attempts": 1}}]}`))
	for _, want := range []string{"processes.shop.guard", "processes.shop.attempts", "traffic[0].process", "traffic[1].retry"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}
