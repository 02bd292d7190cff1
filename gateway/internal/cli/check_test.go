package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
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
	want := good + ": ok: 1 listener, 1 gate, 1 route, 1 upstream with 1 target, admin on 127.0.0.1:9090\n"
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

	out, _, err = run(NewCheckCommand(), config.Minimum+"  admin: {address: off}\n", "-")
	if err != nil || !strings.Contains(out, "no admin listener") || !strings.Contains(out, "note: routes[0] (/) passes no gate") {
		t.Errorf("standard input: %q, %v", out, err)
	}
	if _, errs, err = run(NewCheckCommand(), "", filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(errs, "weir init") {
		t.Errorf("a file that is not there: %q, %v; want a hint at weir init", errs, err)
	}
	if _, _, err = run(NewCheckCommand(), ""); err == nil {
		t.Error("no file: no error")
	}
}
