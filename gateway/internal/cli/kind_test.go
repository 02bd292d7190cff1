package cli

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// Each command says of the other's kind of file that it is one, and nothing else.
func TestOtherKindOfFile(t *testing.T) {
	scene := write(t, "scene.yaml", scenario)
	gateway := write(t, "gateway.yaml", config.Minimum)

	_, errs, err := run(NewCheckCommand(), "", scene)
	if want := scene + ": is a scenario, not a configuration of the gateway; weir sim " + scene + " runs it\n"; err == nil || errs != want {
		t.Errorf("check of a scenario: %q, %v; want %q", errs, err, want)
	}
	_, errs, err = run(NewCheckCommand(), scenario, "-")
	if want := "stdin: is a scenario for weir sim, not a configuration of the gateway\n"; err == nil || errs != want {
		t.Errorf("check of a scenario on standard input: %q, %v; want %q", errs, err, want)
	}
	_, _, err = run(NewRootCommand("test"), "", "run", scene)
	if err == nil || !strings.HasPrefix(err.Error(), scene+": is a scenario") {
		t.Errorf("run of a scenario: %v", err)
	}
	_, errs, err = run(NewSimCommand(), "", gateway)
	if err == nil || errs != "" || !strings.HasPrefix(err.Error(), gateway+": is a configuration of the gateway, not a scenario; weir check "+gateway) {
		t.Errorf("sim of a configuration: %q, %v", errs, err)
	}
}

func TestKindOf(t *testing.T) {
	for text, want := range map[string]kind{
		"upstreams: {}\n":          configFile,
		"{\"phases\": []}":         scenarioFile,
		"name: x\n":                unknownFile,
		"routes: []\nphases: []\n": unknownFile, // a mixture: its faults say more
		"gates: {}\n":              unknownFile,
		"- phases\n":               unknownFile,
		"phases:\n\tx\n":           unknownFile,
		"":                         unknownFile,
	} {
		if got := kindOf([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
