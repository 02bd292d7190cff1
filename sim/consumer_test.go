package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// behind is a scenario of ten databases that ask for three times what a consumer applies, with
// more of the consumer and of its goals.
func behind(consumer, goals string) string {
	return fmt.Sprintf(`{"name": "behind", "seeds": [1], "phases": [{"for": "60s"}],
		"backend": {"law": "pool", "workers": 1000, "service": {"dist": "constant", "mean": "5ms"}},
		"policy": {
			"gates": {"db": {"limit": {"controller": "lag", "min": 1, "max": 50, "queue": {"len": -1}, "lag": {"signal": "behind", "target": 100, "critical": 1000, "interval": "1s"}}, "each": {}}},
			"routes": [{"match": ["/"], "gates": ["db"]}]},
		"traffic": [{"name": "db", "tenants": 10, "phases": [{"for": "60s", "rps": 600}]}],
		"consumer": {"every": "1s", "late": "1s", %s},
		"goals": [%s]}`, consumer, goals)
}

func playBehind(t *testing.T, consumer, goals string) *Report {
	t.Helper()
	s, err := ParseScenario([]byte(behind(consumer, goals)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(context.Background(), s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Reached() {
		t.Errorf("%s", r)
	}
	return r
}

// The line ends at its fixed point, n·(Min + k·Critical)/(1 + n·k): 358 here.
func TestConsumerFixedPoint(t *testing.T) {
	playBehind(t, `"holds": true, "phases": [{"for": "60s", "rps": 200}]`, `
		{"metric": "lag_mean", "from": "30s", "to": "60s", "min": 350, "max": 362},
		{"metric": "applied", "from": "30s", "to": "60s", "min": 0.99, "max": 1.01},
		{"metric": "inside_mean", "from": "30s", "to": "60s", "min": 350, "max": 365},
		{"metric": "limit_swing", "from": "30s", "to": "60s", "max": 0.1}`)
}

// Permits that end with the backend's answer bound what is in the backend, and not the backlog.
func TestConsumerWithoutHolding(t *testing.T) {
	playBehind(t, `"phases": [{"for": "60s", "rps": 200}]`, `
		{"metric": "p99", "max": 6},
		{"metric": "inside_max", "max": 30},
		{"metric": "lag_max", "min": 15000}`)
}

// While the consumer stands still nothing is applied. While nobody can read the lag the limit
// stays for three intervals and goes to its least.
func TestConsumerStopsUnread(t *testing.T) {
	playBehind(t, `"holds": true, "phases": [{"for": "30s", "rps": 200}, {"for": "10s"}, {"for": "1s", "rps": 200}], "unread": [{"from": "30s", "to": "50s"}]`, `
		{"metric": "applied", "from": "31s", "to": "40s", "max": 0},
		{"metric": "limit_min", "from": "31s", "to": "34s", "min": 30},
		{"metric": "limit_max", "from": "36s", "to": "50s", "max": 1},
		{"metric": "limit_max", "from": "53s", "to": "60s", "min": 30}`)
}

// Ten databases flood the consumer, 49 others ask for a third of what it applies. If those that hold most shrink first, the
// others get it. With one limit for all they do not. This is S16c, shortened.
func TestConsumerLargestFirst(t *testing.T) {
	for each, goal := range map[string]string{`{"by": "tenant"}`: `"min": 0.3`, `{"by": "tenant", "shrink": "largest_first"}`: `"max": 0.05`} {
		s, err := ParseScenario(fmt.Appendf(nil, `{"name": "flooded", "seeds": [1], "phases": [{"for": "60s"}],
			"backend": {"law": "pool", "workers": 100000, "service": {"dist": "constant", "mean": "5ms"}},
			"policy": {
				"gates": {"db": {"limit": {"controller": "lag", "min": 1, "max": 1000, "queue": {"len": -1}, "lag": {"signal": "behind", "target": 100, "critical": 1000, "interval": "1s"}}, "each": %s}},
				"routes": [{"match": ["/"], "gates": ["db"]}]},
			"traffic": [
				{"name": "quiet", "tenant": "quiet", "tenants": 49, "phases": [{"for": "60s", "rps": 60}]},
				{"name": "loud", "tenant": "loud", "tenants": 10, "phases": [{"for": "60s", "rps": 2000}]}],
			"consumer": {"every": "1s", "late": "1s", "holds": true, "phases": [{"for": "60s", "rps": 200}]},
			"goals": [
				{"metric": "applied", "from": "30s", "to": "60s", "min": 0.95},
				{"metric": "refused", "class": "quiet", "from": "30s", "to": "60s", %s}]}`, each, goal))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Reached() {
			t.Errorf("each %s: %s", each, r)
		}
	}
}

func TestConsumerFaults(t *testing.T) {
	phases := `"phases": [{"for": "1s", "rps": 5}]`
	for _, tt := range []struct{ consumer, goals, want string }{
		{`"phases": [{"for": "1s"}]`, "", "no phase has a rate"},
		{`"phases": []`, "", "at least one"},
		{phases + `, "signal": "lag"`, "", `there is no signal "behind"`},
		{phases + `, "unread": [{"from": "2s", "to": "1s"}]`, "", "must be after from"},
		{phases + `, "every": "0s", "late": "-1s"`, "", "late"},
	} {
		if _, err := ParseScenario([]byte(behind(tt.consumer, tt.goals))); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want a word of %q", tt.consumer, err, tt.want)
		}
	}
	text := behind(phases, `{"metric": "lag_max"}`)
	for what, tt := range map[string]struct{ from, to, want string }{
		"a pressure":       {`"controller": "lag"`, `"signals": ["cpu"], "controller": "lag"`, "there is no pressure in virtual time"},
		"without consumer": {`"consumer": {"every": "1s", "late": "1s", ` + phases + `},`, "", "needs a consumer"},
	} {
		changed := strings.Replace(text, tt.from, tt.to, 1)
		if _, err := ParseScenario([]byte(changed)); changed == text || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want a word of %q", what, err, tt.want)
		}
	}
}
