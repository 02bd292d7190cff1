// Package cli is the command line of weir. Each command reads its flags into a struct and
// passes it to a function, which the tests call too.
package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of weir.
const (
	exitOK    = 0
	exitError = 1 // the command failed
	exitUsage = 2 // the command line is wrong
)

// Main runs the command line and returns the exit code. 0 means that it worked, 1 that it did not,
// and 2 that the command line is wrong. An [ExitError] has its own code.
func Main(args []string, version string) int {
	root := NewRootCommand(versionOf(version))
	root.SetArgs(args)
	err := execute(root)
	var exit *ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		if exit.Err != nil {
			complain(os.Stderr, exit)
		}
		return exit.Code
	}
	complain(os.Stderr, err)
	return exitError
}

// execute runs a command line. Of help that could not be written cobra says nothing.
func execute(root *cobra.Command) error {
	var unwritten error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		_, unwritten = out.Write(text.Bytes())
	})
	return cmp.Or(root.Execute(), unwritten)
}

// complain prints an error. Each line of it says who speaks: a file may have many faults. What another
// process has answered may be in it.
func complain(to io.Writer, err error) {
	for line := range strings.Lines(escaped(err.Error())) {
		fmt.Fprintln(to, "weir: "+strings.TrimSuffix(line, "\n"))
	}
}

// NewRootCommand returns weir with all its commands.
func NewRootCommand(version string) *cobra.Command {
	var asked bool
	root := &cobra.Command{
		Use:   "weir",
		Short: "A gateway that admits what the servers behind it can carry",
		Long: `Weir stands in front of a service and lets in as many requests at a time as the
service can carry. The rest wait for a short time, or are refused and told when to
come back. Start with

  weir demo                                    to see it at work
  weir run --upstream http://127.0.0.1:3000    to guard a server of yours
  weir init weir.yaml                          to write a configuration to grow from`,
		Args:          knownCommand,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	// Not cobra's own Version: it prints by a template, and templates call methods by name. The linker then
	// keeps every exported method there is, 13 MB of them.
	root.Flags().BoolVarP(&asked, "version", "v", false, "version for weir")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if asked {
			return printVersion(cmd, version)
		}
		return cmd.Help()
	}
	root.AddCommand(
		NewRunCommand(version),
		NewStatusCommand(),
		NewReloadCommand(),
		NewExplainCommand(),
		NewQuotaCommand(),
		NewKafkaCommand(),
		NewCheckCommand(),
		NewInitCommand(),
		NewSchemaCommand(),
		NewSimCommand(),
		NewDemoCommand(),
		NewManCommand(version),
		NewCompletionCommand(),
		NewVersionCommand(version),
	)
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.Args = knownTopic
		}
	}
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.Long = longOf(cmd)
		help(cmd, args)
	})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.HasSubCommands() { // a flag after a command that is not known is one of that command
			if unknown := knownCommand(cmd, cmd.Flags().Args()); unknown != nil {
				return unknown
			}
		}
		problem := flagProblem(cmd, err)
		if strings.HasSuffix(problem, "?") {
			return usage("%s See %s --help", problem, cmd.CommandPath())
		}
		return usage("%s; see %s --help", problem, cmd.CommandPath())
	})
	return root
}

// longOf returns the long text of a command. That of weir sim goes on with its scenarios: to
// read them takes longer than most commands do.
func longOf(cmd *cobra.Command) string {
	if cmd.CommandPath() == "weir sim" {
		return cmd.Long + "\n\n" + builtIn() + simHelp
	}
	return cmd.Long
}

// knownTopic is knownCommand for weir help. Cobra's own prints the help of weir for a command that is not known.
func knownTopic(cmd *cobra.Command, args []string) error {
	of, rest, err := cmd.Root().Find(args)
	if err != nil || !of.HasSubCommands() { // what follows are arguments of its own, such as bash after completion
		return err
	}
	return knownCommand(of, rest)
}

// knownCommand refuses an unknown command and suggests a known one.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usage("there is no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return usage("there is no command %q; see %s --help", args[0], cmd.CommandPath())
}

// needs checks the number of arguments. Its error is the line to write instead.
func needs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		instead := strings.TrimSuffix(cmd.UseLine(), " [flags]")
		switch {
		case check(cmd, args) == nil:
			return nil
		case len(args) == 0:
			return usage("%s needs a file; write %s", cmd.CommandPath(), instead)
		}
		if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); instead == cmd.CommandPath() && strings.Contains(example, " --") {
			instead += " with flags alone, as in " + example
		}
		return usage("too many arguments; write %s", instead)
	}
}

// apart refuses a flag that is given together with one of others.
func apart(cmd *cobra.Command, flag string, others ...string) error {
	for _, other := range others {
		if cmd.Flags().Changed(flag) && cmd.Flags().Changed(other) {
			return usage("--%s and --%s do not go together; leave one out", flag, other)
		}
	}
	return nil
}

// usage returns an error about the command line.
func usage(format string, args ...any) error {
	return &ExitError{Code: exitUsage, Err: fmt.Errorf(format, args...)}
}

// ExitError is an error that asks for an exit code. The root command prints it,
// unless Err is nil, and exits with Code.
type ExitError struct {
	Code int
	Err  error // nil: everything is printed already
}

// Error returns the text of Err.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// NewVersionCommand returns weir version.
func NewVersionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of weir",
		Args:  needs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd, version) },
	}
}

func printVersion(cmd *cobra.Command, version string) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine(version))
	return err
}

func versionLine(version string) string {
	return fmt.Sprintf("weir %s %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionOf returns the linked version or, without one, that of the build information.
func versionOf(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
