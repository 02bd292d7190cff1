package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The reference of commands is what the commands say of themselves.
func TestCommandsPage(t *testing.T) {
	const file = "../../../docs/reference/commands.md"
	want := []byte(commandsPage())
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is out of date (%v); run go test ./internal/cli -run TestCommandsPage -update", file, err)
	}
}

// Every command has a manual page, and the same one each time.
func TestManuals(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dirs := []string{t.TempDir(), filepath.Join(t.TempDir(), "share", "man1")}
	for _, dir := range dirs {
		if _, _, err := run(NewManCommand("v1.2.3"), "", "--dir", dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, cmd := range append(withSubcommands(documented("")), documented("")) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(dirs[0], name))
		if err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(filepath.Join(dirs[1], name))
		if err != nil || !bytes.Equal(page, again) {
			t.Errorf("%s is another the second time (%v)", name, err)
		}
		for _, part := range []string{`"Nov 2023" "weir v1.2.3"`, ".SH NAME\n", cmd.Short} {
			if !strings.Contains(string(page), part) {
				t.Errorf("%s has no %q:\n%.300s", name, part, page)
			}
		}
	}
	if page, err := os.ReadFile(filepath.Join(dirs[0], "weir-run.1")); err != nil || !strings.Contains(string(page), ".EX\nSIGHUP    ") {
		t.Errorf("a table of the help is no table (%v):\n%s", err, page)
	}
}

func TestManMistakes(t *testing.T) {
	for _, args := range [][]string{{"frobnicate"}, {"run", "x"}, {"--dir", t.TempDir(), "run"}} {
		_, _, err := run(NewManCommand("test"), "", args...)
		if exit := (*ExitError)(nil); !errors.As(err, &exit) || exit.Code != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, _, err := run(NewManCommand("test"), "", "--dir", filepath.Join(write(t, "file", ""), "man1")); err == nil {
		t.Error("pages were written below a file")
	}
	if out, _, err := run(NewManCommand("test"), "", "quota", "set"); err != nil || !strings.Contains(out, "WEIR-QUOTA-SET") {
		t.Errorf("%v %.100s", err, out)
	}
}

// Shells complete commands, flags, files and scenarios.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, _, err := run(NewRootCommand("test"), "", "completion", shell); err != nil || !strings.Contains(out, "weir") {
			t.Errorf("%s: %v %.100s", shell, err, out)
		}
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"reload\t", []string{"rel"}},
		{"--upstream\t", []string{"run", "--ups"}},
		{"yaml\n", []string{"run", ""}},
		{"debug\n", []string{"run", "--log-level", ""}},
		{"retry-storm\n", []string{"sim", "r"}},
		{"bash\n", []string{"completion", ""}},
	} {
		out, _, err := run(NewRootCommand("test"), "", append([]string{"__complete"}, tt.args...)...)
		if err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("%v: %v, %q, want %q", tt.args, err, out, tt.want)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "csh"}, {"completion", "bash", "zsh"}} {
		if _, _, err := run(NewRootCommand("test"), "", args...); err == nil || !strings.Contains(err.Error(), "Write weir completion bash, or zsh") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
