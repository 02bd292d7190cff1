package server

import (
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// learning is a configuration with a limit that moves, and a state file.
func learning(t *testing.T, upstream, file string, l policy.LimitSpec) *config.Config {
	t.Helper()
	cfg := baseConfig(t, upstream)
	cfg.Gates[gateName] = policy.GateSpec{Limit: &l}
	cfg.State = config.State{File: file, MaxAge: policy.Duration(time.Hour)}
	return cfg
}

// What was learned holds from the start: before the first request.
func TestLearnedLimitsAreKept(t *testing.T) {
	for name, l := range map[string]policy.LimitSpec{
		"knee":         {},
		"aimd":         {Controller: "aimd", Limit: 20, Max: 100},
		"with signals": {Controller: "aimd", Signals: []string{"heap"}},
		"gradient2":    {Controller: "gradient2"},
	} {
		t.Run(name, func(t *testing.T) { keptLimit(t, l) })
	}
}

func keptLimit(t *testing.T, l policy.LimitSpec) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	file := filepath.Join(t.TempDir(), "state.json")
	g := start(t, learning(t, up.URL, file, l), Options{})
	saved := g.Policy().Save()
	learnt := saved.Gates[gateName]
	learnt.Limit = 42
	saved.Gates[gateName] = learnt
	if _, err := g.Policy().Restore(saved, 0); err != nil {
		t.Fatal(err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("state file: %v, %v; want mode 0600", info, err)
	}

	g = start(t, learning(t, up.URL, file, l), Options{})
	if again := g.Policy().Save().Gates[gateName].Limit; math.Abs(again-42) > 0.01 {
		t.Errorf("a limit of %v is learned after a restart, want 42", again)
	}
	// A controller that compares two limits holds one of the two beside it.
	if now := g.gate().Limit; now < 34 || now > 52 {
		t.Errorf("limit %d after a restart, want about the learned 42", now)
	}
	if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// A state that cannot be used is no reason not to start.
func TestBadState(t *testing.T) {
	f := func(what, text, want string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "state.json")
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g := start(t, learning(t, "http://127.0.0.1:1", file, policy.LimitSpec{Controller: "aimd"}), Options{})
		if g.gate().Limit != 20 || !strings.Contains(g.log.String(), want) {
			t.Errorf("%s: limit %d; want the configured 20, and a log line with %q", what, g.gate().Limit, want)
		}
	}
	f("missing", "", "no learned limits")
	f("broken", "{", "unexpected end of JSON")
	f("old", `{"saved_at":"2020-01-01T00:00:00Z","gates":{"upstream":{"controller":"aimd","limit":42}}}`, "more than the 1h0m0s allowed")
	f("huge", strings.Repeat(" ", maxState+1), "larger than")
}
