package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// commandsPage returns docs/reference/commands.md.
func commandsPage() string {
	var b strings.Builder
	b.WriteString("# Commands\n\nWritten from the commands' own help by `go test ./internal/cli -run TestCommandsPage -update` in `gateway/`.\n" +
		"`weir COMMAND --help` shows the same, and so does `man weir-COMMAND` where a package is installed.\n")
	b.WriteString("\n| command | what it does |\n| --- | --- |\n")
	root := documented("")
	commands := withSubcommands(root)
	for _, cmd := range commands {
		path := cmd.CommandPath()
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), cmd.Short)
	}
	for _, cmd := range commands {
		writeSection(&b, cmd)
	}
	return b.String()
}

func withSubcommands(cmd *cobra.Command) (all []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if listed(sub) {
			all = append(append(all, sub), withSubcommands(sub)...)
		}
	}
	return all
}

func writeSection(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n    %s\n\n%s\n", cmd.CommandPath(), cmd.UseLine(), strings.TrimSpace(cmd.Long))
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nFor instance:\n\n%s\n", markdown(cmd.Example)[1:])
	}
	first := true
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			b.WriteString("\n| flag | what it is | default |\n| --- | --- | --- |\n")
			first = false
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value := f.DefValue
		if value == "false" || value == "[]" {
			value = ""
		}
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, strings.ReplaceAll(f.Usage, "|", `\|`), value)
	})
}

// The help and the manual name no default for a number that has none.
func TestNumbersWithoutDefault(t *testing.T) {
	for _, cmd := range withSubcommands(NewRootCommand("")) {
		if help := cmd.UsageString(); strings.Contains(help, "(default )") || strings.Contains(help, "(default 0)") {
			t.Errorf("the help of %s has an empty default:\n%s", cmd.CommandPath(), help)
		}
	}
	out, _, err := run(NewManCommand("test"), "", "kafka", "import")
	if err != nil || !strings.Contains(out, "\\fB--factor\\fP=\n") {
		t.Errorf("%v\n%s", err, out)
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
