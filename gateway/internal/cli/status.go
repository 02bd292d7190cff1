package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"
)

// statusOptions are the settings of weir status.
type statusOptions struct {
	Admin string
	JSON  bool
	Top   int
	Out   io.Writer
}

// NewStatusCommand returns weir status.
func NewStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the gates of a running gateway: limits, who waits, what binds",
		Long: `Status asks a gateway's admin listener for its gates and prints a line for each:
the limit and what set it, what is in flight and waiting, what was admitted and
refused and how many left while they waited, the signal that binds the limit, and
why the limit last changed. There follow, where there are any: who waits, by
priority; exempt work; the pools of reads and of writes; the pools of gates with a
limit for each key, and the busiest of them; the buckets of quotas that were refused
most; the signals that gates go by; the connections of each listener, and TLS
handshakes that failed; and the tenants that ask most. The same as JSON, with more in it, is printed with --json and at /gates.`,
		Example: "  weir status\n  weir status --admin 10.0.0.5:9090 --top 20\n  weir status --json | jq '.gates[].waiting_by_class'",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			return runStatus(cmd.Context(), o)
		},
	}
	adminFlag(cmd, &o.Admin)
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print what the gateway says as JSON")
	cmd.Flags().IntVar(&o.Top, "top", 5, "how many pools and buckets of each gate, and how many tenants, are shown by name")
	cmd.MarkFlagsMutuallyExclusive("top", "json")
	return cmd
}

func runStatus(ctx context.Context, o statusOptions) error {
	if o.Top < 0 {
		return usage("--top %d: must be at least 0", o.Top)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := askAdmin(ctx, o.Admin, http.MethodGet, "/gates", nil, nil)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s; is it the admin listener of a gateway?", o.Admin, res.Status)
	}
	var l look
	if err := json.Unmarshal(res.text, &l); err != nil {
		return fmt.Errorf("%s does not answer as a gateway does: %w", o.Admin, err)
	}
	if o.JSON {
		_, err := o.Out.Write(res.text)
		return err
	}
	return l.print(o.Out, o.Top)
}
