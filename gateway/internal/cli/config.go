package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/internal/fault"
)

// checkOptions are the settings of weir check.
type checkOptions struct {
	Files []string // "-" is In
	In    io.Reader
	Out   io.Writer // summaries
	Err   io.Writer // faults
}

// NewCheckCommand returns weir check.
func NewCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE...",
		Short: "List all faults of a configuration, line by line",
		Long: `Check reads configurations as weir run does, and prints every fault with its
line and what to write instead. It opens no port and connects to nothing, but it
reads the files that a configuration names. For a file without faults it prints a
summary, and notes on settings that are probably a mistake. FILE - is standard input.

The exit code is 0 if no file has a fault, and 1 if one has.`,
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
		return &ExitError{Code: exitError} // its faults are printed
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

// summary describes a configuration in one line. It shows at a glance whether it is the
// right one.
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

// count returns a number and its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// initOptions are the settings of weir init.
type initOptions struct {
	File  string // empty or "-": Out
	Force bool   // overwrite
	Out   io.Writer
}

// NewInitCommand returns weir init, which writes a configuration to grow from.
func NewInitCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented configuration to grow from",
		Long: `Init writes a configuration with every setting in it, most of them commented out
at their defaults. It guards http://127.0.0.1:3000; put your own upstream there.
Without FILE, or with -, it goes to standard output. A file that exists already is
left alone, unless --force is given.`,
		Example: "  weir init weir.yaml\n  weir init > weir.yaml",
		Args:    needs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.File = args[0]
			}
			o.Out = cmd.OutOrStdout()
			return runInit(o)
		},
	}
	cmd.Flags().BoolVar(&o.Force, "force", false, "overwrite a file that exists")
	return cmd
}

func runInit(o initOptions) error {
	if o.File == "" || o.File == "-" {
		_, err := o.Out.Write(config.Starter)
		return err
	}
	if err := writeStarter(o.File, o.Force); err != nil {
		return err
	}
	_, err := fmt.Fprintf(o.Out, "wrote %s: set the upstream's URL in it, then run weir check %s\n", o.File, o.File)
	return err
}

func writeStarter(file string, force bool) error {
	flags := os.O_WRONLY | os.O_CREATE
	if force {
		flags |= os.O_TRUNC
	} else {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("init: %s exists already; give another name, or --force to overwrite it", file)
	}
	if err != nil {
		return fmt.Errorf("init: %w", err)
	}
	_, err = f.Write(config.Starter)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("init: %s is incomplete: %w", file, err)
	}
	return nil
}

// NewSchemaCommand returns weir schema, which prints the JSON schema of the file.
func NewSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration, for editors",
		Long: `Schema prints the JSON schema (2020-12) of the configuration. An editor that
understands schemas completes keys with it, shows their meaning, and marks
mistakes while you type. It knows the form only; weir check knows the rest.`,
		Example: "  weir schema > weir.schema.json",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema)
			return err
		},
	}
}

// loadConfig reads a configuration of the gateway. For a scenario its error says only that
// it is one, for all of its fields would be faults.
func loadConfig(file string) (*config.Config, error) {
	cfg, err := config.Load(file)
	var faults *fault.Faults
	if !errors.As(err, &faults) {
		return cfg, err
	}
	if data, readErr := config.ReadFile(file); readErr == nil && kindOf(data) == scenarioFile {
		return nil, fmt.Errorf("%s: is a scenario, not a configuration of the gateway; weir sim %s runs it", file, file)
	}
	return nil, err
}

// kind is what a file seems to be for.
type kind int

const (
	unknownFile kind = iota
	configFile
	scenarioFile
)

// kindOf guesses the kind by the fields at the top level: the two kinds of file share none.
// A file with fields of both kinds, or of neither, is unknown.
func kindOf(data []byte) kind {
	root, _ := config.ParseDocument("", data)
	if root == nil {
		return unknownFile
	}
	has := func(names ...string) bool {
		for _, name := range names {
			if root.Get(name) != nil {
				return true
			}
		}
		return false
	}
	gateway := has("upstreams", "listeners", "routes")
	scenario := has("phases", "backend", "traffic")
	switch {
	case gateway && !scenario:
		return configFile
	case scenario && !gateway:
		return scenarioFile
	}
	return unknownFile
}
