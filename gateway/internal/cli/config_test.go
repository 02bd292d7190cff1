package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/weir-go/weir/gateway/internal/config"
)

// run executes a command and returns what it wrote to either output.
func run(cmd *cobra.Command, in string, args ...string) (out, errs string, err error) {
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetIn(strings.NewReader(in))
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true // as the root command does
	err = cmd.Execute()
	return o.String(), e.String(), err
}

// write puts a file into a new directory and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCheck(t *testing.T) {
	good := write(t, "good.yaml", config.Minimum+"      gates: [app]\n  gates: {app: {limit: {limit: 5}}}\n")
	bad := write(t, "bad.yaml", "upstreams: 5\nroutse: []\n")

	out, errs, err := run(NewCheckCommand(), "", good)
	want := good + ": ok: 1 listener, 1 gate, 1 route, 1 upstream with 1 target, admin on 127.0.0.1:8090\n"
	if err != nil || errs != "" || out != want {
		t.Errorf("good file: %q, %q, %v; want %q", out, errs, err, want)
	}

	var exit *ExitError
	_, errs, err = run(NewCheckCommand(), "", bad)
	if !errors.As(err, &exit) || exit.Code != 1 || exit.Err != nil || strings.Count(errs, "\n") != 2 {
		t.Errorf("a bad file alone: %q, %v; want its two faults, exit code 1 and no more words", errs, err)
	}

	out, errs, err = run(NewCheckCommand(), "", good, bad)
	if !errors.As(err, &exit) || exit.Code != 1 || !strings.Contains(err.Error(), "1 of 2 files") {
		t.Errorf("one bad file: error %v, want exit code 1 of 1 of 2 files", err)
	}
	if out != want || !strings.Contains(errs, bad+":1:12: upstreams: ") || !strings.Contains(errs, bad+":2:1: routse: ") {
		t.Errorf("one bad file: out %q, err %q", out, errs)
	}

	kafka := "kafka: {orders: {bootstrap: [10.0.0.1:9092], listen: {address: 127.0.0.1:19092}, nodes: {ports: 9100-9199, advertise: localhost}}}\n"
	for text, want := range map[string]string{
		kafka: "-: ok: 1 cluster of Kafka, 0 gates, admin on 127.0.0.1:8090\n",
		kafka + "upstreams: {app: {targets: [\"http://127.0.0.1:3000\"]}}\nroutes: [{match: [/], upstream: app}]\n": "-: ok: 1 cluster of Kafka, 1 listener, 0 gates, 1 route, 1 upstream with 1 target, admin on 127.0.0.1:8090\n",
	} {
		if out, _, err := run(NewCheckCommand(), text, "-"); err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s\n%q, %v; want %q", text, out, err, want)
		}
	}
	out, _, err = run(NewCheckCommand(), config.Minimum+"  admin: {address: off}\n", "-")
	if err != nil || !strings.Contains(out, "no admin listener") || !strings.Contains(out, "stdin:5:7: warning: routes[0] (/) passes no gate") {
		t.Errorf("standard input: %q, %v", out, err)
	}
	if _, errs, err = run(NewCheckCommand(), "", filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(errs, "weir init") {
		t.Errorf("a file that is not there: %q, %v; want a hint at weir init", errs, err)
	}
	if _, _, err = run(NewCheckCommand(), ""); err == nil {
		t.Error("no file: no error")
	}

	full, disk := io.Pipe()
	_ = full.CloseWithError(syscall.ENOSPC) // of what is written from now on
	for _, args := range [][]string{{good}, {"--json", good}} {
		cmd := NewCheckCommand()
		cmd.SetOut(disk)
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v, with no place for the summary: %v", args, err)
		}
	}
}

// TestCheckStrict: warnings are faults then, and standard output is empty.
func TestCheckStrict(t *testing.T) {
	good := write(t, "good.yaml", config.Minimum+"      gates: [app]\n  gates: {app: {limit: 5}}\n")
	open := write(t, "open.yaml", config.Minimum)

	if out, errs, err := run(NewCheckCommand(), "", "--strict", good); err != nil || errs != "" || !strings.Contains(out, ": ok: ") {
		t.Errorf("a file without warnings: %q, %q, %v", out, errs, err)
	}
	var exit *ExitError
	out, errs, err := run(NewCheckCommand(), "", "--strict", open)
	if want := open + ":5:7: warning: routes[0] (/) passes no gate: nothing is limited there\n"; !errors.As(err, &exit) || exit.Code != 1 || out != "" || errs != want {
		t.Errorf("a file with a warning: %q, %q, %v; want %q", out, errs, err, want)
	}
	if _, _, err := run(NewRootCommand("test"), "", "validate", good); err != nil {
		t.Errorf("weir validate: %v", err)
	}
}

// TestCheckJSON: programs get faults and warnings with their places.
func TestCheckJSON(t *testing.T) {
	open := write(t, "open.yaml", config.Minimum)
	bad := write(t, "bad.yaml", "upstreams: 5\nroutse: []\n")
	none := filepath.Join(t.TempDir(), "none.yaml")
	out, errs, err := run(NewCheckCommand(), "", "--json", open, bad, none)
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Err != nil || errs != "" {
		t.Errorf("%q, %v", errs, err)
	}
	var list []checked
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 3 {
		t.Fatalf("%v in\n%s", err, out)
	}
	if c := list[0]; c.File != open || !c.OK || c.Summary == "" || len(c.Warnings) != 1 || c.Warnings[0].Line != 5 || c.Warnings[0].Path != "routes[0]" || len(c.Faults) != 0 {
		t.Errorf("a file with a warning: %+v", c)
	}
	if c := list[1]; c.OK || len(c.Faults) != 2 || c.Faults[1].Line != 2 || c.Faults[1].Path != "routse" || c.Faults[1].Instead != "write routes" {
		t.Errorf("a file with faults: %+v", c)
	}
	if c := list[2]; c.OK || !strings.Contains(c.Error, "no such file") {
		t.Errorf("no file: %+v", c)
	}
}

func TestInit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	out, _, err := run(NewInitCommand(), "", file)
	if err != nil || !strings.Contains(out, "wrote "+file) {
		t.Fatalf("init: %q, %v", out, err)
	}
	if _, errs, err := run(NewCheckCommand(), "", file); err != nil {
		t.Errorf("check refuses what init wrote: %v\n%s", err, errs)
	}
	text, _, err := run(NewInitCommand(), "")
	if written, _ := os.ReadFile(file); err != nil || text != string(written) || text == "" {
		t.Errorf("standard output differs from the file (%v):\n%s", err, text)
	}
}

// TestInitForAnUpstream: what is written for a server is right, short or full.
func TestInitForAnUpstream(t *testing.T) {
	for _, extra := range [][]string{nil, {"--full"}} {
		file := filepath.Join(t.TempDir(), "weir.yaml")
		out, _, err := run(NewInitCommand(), "", append(extra, file, "--upstream", "http://10.1.2.3:4000")...)
		if err != nil || out != "wrote "+file+": run weir check "+file+"\n" {
			t.Fatalf("%q, %v", out, err)
		}
		if _, errs, err := run(NewCheckCommand(), "", "--strict", file); err != nil {
			t.Errorf("check --strict refuses what init wrote: %v\n%s", err, errs)
		}
		if text, _ := os.ReadFile(file); !strings.Contains(string(text), "[http://10.1.2.3:4000]") {
			t.Errorf("another upstream in\n%s", text)
		}
	}
	var exit *ExitError
	_, _, err := run(NewInitCommand(), "", "--upstream", "localhost:3000")
	if want := `--upstream "localhost:3000" is not an http, https, h2c or unix URL; write http://localhost:3000`; !errors.As(err, &exit) || exit.Code != 2 || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, _, err = run(NewInitCommand(), "", "http://localhost:3000"); err == nil || !strings.Contains(err.Error(), "--upstream http://localhost:3000") {
		t.Errorf("a URL for a file: %v", err)
	}
}

func TestInitOverwritesOnlyByForce(t *testing.T) {
	file := write(t, "weir.yaml", "mine")
	_, _, err := run(NewInitCommand(), "", file)
	if err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("init over a file: %v, want a hint at --force", err)
	}
	if text, _ := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("init changed the file: %q", text)
	}
	if _, _, err := run(NewInitCommand(), "", "--force", file); err != nil {
		t.Errorf("init --force: %v", err)
	}
	if text, _ := os.ReadFile(file); !strings.Contains(string(text), "upstreams:") {
		t.Errorf("init --force wrote %q", text)
	}
	if _, _, err := run(NewInitCommand(), "", filepath.Join(file, "x")); err == nil {
		t.Error("init below a file: no error")
	}
}

func TestSchema(t *testing.T) {
	out, _, err := run(NewSchemaCommand(), "")
	if err != nil || !strings.Contains(out, `"$schema": "https://json-schema.org/draft/2020-12/schema"`) {
		t.Errorf("schema: %v\n%.200s", err, out)
	}
}

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
