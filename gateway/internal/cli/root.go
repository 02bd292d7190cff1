// Package cli is the command line of weir: one file for each command. Each
// command reads its flags into a struct and hands it to a function, which is
// what the tests call.
package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// Exit codes of weir.
const (
	exitOK    = 0
	exitError = 1 // it did not work
	exitUsage = 2 // the command line is wrong
)

// NewRootCommand returns weir with all its commands.
func NewRootCommand(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A gateway that admits what the servers behind it can carry",
		Long: `Weir stands in front of a service and lets in as many requests at a time as the
service can carry. The rest wait in a bounded room, or are told at once when to
come back. Start with

  weir demo                                    to see it at work
  weir run --upstream http://127.0.0.1:3000    to guard a server of yours
  weir init weir.yaml                          to write a configuration to grow from`,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(
		NewRunCommand(version),
		NewCheckCommand(),
		NewInitCommand(),
		NewSchemaCommand(),
		NewSimCommand(),
		NewDemoCommand(),
		NewVersionCommand(version),
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &ExitError{Code: exitUsage, Err: fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	return root
}

// Main runs the command line and returns the exit code: 0, 1 when it did not
// work, 2 when the command line is wrong, or what the command asks for.
func Main(args []string, version string) int {
	root := NewRootCommand(versionOf(version))
	root.SetArgs(args)
	err := root.Execute()
	var exit *ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		if exit.Err != nil {
			fmt.Fprintln(os.Stderr, "weir: "+exit.Error())
		}
		return exit.Code
	}
	fmt.Fprintln(os.Stderr, "weir: "+err.Error())
	return exitError
}
