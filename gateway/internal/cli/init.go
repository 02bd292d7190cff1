package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/config"
)

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
