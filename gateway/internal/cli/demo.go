package cli

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/demo"
)

// NewDemoCommand returns weir demo.
func NewDemoCommand() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a gate does: a small upstream, the gateway, and three times too much load",
		Long: `Demo starts a small upstream of known capacity, the gateway in front of it, and
a load that rises to three times that capacity. The same load goes to a second
upstream through the same gateway with its gate off. It shows both, second by
second, draws the wave, and ends with one sentence. Seconds in which this machine was
too busy to send on time are void; then it shows the same load in virtual time too.
It keeps the gateway running until Ctrl-C. Everything is on loopback.

NO_COLOR, set to anything, turns colours off. Output that goes to no terminal has none.`,
		Example: "  weir demo\n  weir demo --once --duration 10s --capacity 300",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("capacity") && o.Capacity == 0 || cmd.Flags().Changed("duration") && o.Duration == 0 {
				return usage("--capacity and --duration cannot be 0; leave them out for the defaults")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			o.Out = cmd.OutOrStdout()
			o.Terminal = redrawable(o.Out)
			o.Color = o.Terminal && os.Getenv("NO_COLOR") == ""
			err := demo.Run(ctx, o)
			if errors.As(err, new(demo.OptionsError)) {
				return usage("%w", err)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&o.Capacity, "capacity", demo.DefaultCapacity, "requests a second the upstream can do")
	addDuration(flags, &o.Duration, "duration", demo.DefaultDuration, "how long the load lasts, its five steps together")
	flags.BoolVar(&o.Once, "once", false, "end when the load has ended")
	flags.StringVar(&o.Listen, "listen", "", "address of the gateway (default "+demo.DefaultListen+", or a free port)")
	flags.StringVar(&o.Admin, "admin", "", "address of its admin listener (default "+demo.DefaultAdmin+", or a free port)")
	return cmd
}

// redrawable reports whether out is a terminal that moves its cursor.
func redrawable(out io.Writer) bool {
	term := os.Getenv("TERM")
	return term != "" && term != "dumb" && isTerminal(out)
}
