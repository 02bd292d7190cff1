package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/config"
)

// checkOptions are the settings of weir check.
type checkOptions struct {
	Files []string // "-" is In
	In    io.Reader
	Out   io.Writer // what is right
	Err   io.Writer // what is wrong
}

// NewCheckCommand returns weir check: exit code 0 if all files are right, else 1.
func NewCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE...",
		Short: "Say everything that is wrong with a configuration, line by line",
		Long: `Check reads configurations as weir run does, and prints every fault with its
line and what to write instead. It opens no port and connects to nothing, but it
looks for the files that a configuration names. Of a file that is right it says
what is in it, and notes what is probably not meant. FILE - is standard input.

The exit code is 0 if all files are right, and 1 if one is not.`,
		Example: "  weir check weir.yaml",
		Args:    needs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheck(checkOptions{Files: args, In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()})
		},
	}
}

func runCheck(o checkOptions) error {
	bad := 0
	for _, file := range o.Files {
		cfg, err := readConfig(file, o.In)
		if err != nil {
			fmt.Fprintln(o.Err, err)
			bad++
			continue
		}
		fmt.Fprintf(o.Out, "%s: ok: %s\n", file, summary(cfg))
		for _, note := range cfg.Notes() {
			fmt.Fprintf(o.Out, "%s: note: %s\n", file, note)
		}
	}
	switch {
	case bad == 0:
		return nil
	case len(o.Files) == 1:
		return &ExitError{Code: exitError} // its faults say it all
	}
	return &ExitError{Code: exitError, Err: fmt.Errorf("%d of %s cannot be used", bad, count(len(o.Files), "file"))}
}

func readConfig(file string, in io.Reader) (*config.Config, error) {
	if file != "-" {
		return loadConfig(file)
	}
	data, err := io.ReadAll(io.LimitReader(in, config.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	cfg, err := config.Parse("stdin", data)
	if err != nil && kindOf(data) == scenarioFile {
		return nil, fmt.Errorf("stdin: is a scenario for weir sim, not a configuration of the gateway")
	}
	return cfg, err
}

// summary is a configuration in one line, to see at a glance whether it is the
// one that was meant.
func summary(c *config.Config) string {
	parts := []string{
		count(len(c.Listeners), "listener"),
		count(len(c.Gates), "gate"),
		count(len(c.Routes), "route"),
		count(len(c.Upstreams), "upstream") + " with " + count(c.TargetCount(), "target"),
	}
	text := strings.Join(parts, ", ")
	if c.Admin.Enabled() {
		return text + ", admin on " + c.Admin.Address
	}
	return text + ", no admin listener"
}

// count is a number and a noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
