package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
)

// statusOptions are the settings of weir status.
type statusOptions struct {
	Admin string
	Out   io.Writer
}

// NewStatusCommand returns weir status.
func NewStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the gates of a running gateway: limits, what is in flight, what binds",
		Long: `Status asks a gateway's admin listener for its gates and prints a line for each:
the limit and what set it, what is in flight and waiting, what was admitted and
refused and how many left while they waited, the signal that binds the limit, and
why the limit last changed. The signals that gates go by follow. The same as
JSON, with more in it, is at /gates.`,
		Example: "  weir status\n  weir status --admin 10.0.0.5:9090",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			return runStatus(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Admin, "admin", config.DefaultAdmin, "address of the gateway's admin listener")
	return cmd
}

// look is what status reads of /gates.
type look struct {
	Ready    bool  `json:"ready"`
	InFlight int64 `json:"requests_in_flight"`
	Gates    []struct {
		Name       string            `json:"name"`
		Mode       string            `json:"mode"`
		Limit      int64             `json:"limit"`
		InFlight   int64             `json:"in_flight"`
		Waiting    int64             `json:"waiting"`
		Admitted   uint64            `json:"admitted"`
		Rejected   map[string]uint64 `json:"rejected"`
		Controller string            `json:"controller"`
		Reason     string            `json:"limit_reason"`
		Signal     string            `json:"signal"`
	} `json:"gates"`
	Signals []struct {
		Name  string   `json:"name"`
		State string   `json:"state"`
		Value *float64 `json:"value"`
		Error string   `json:"error"`
	} `json:"signals"`
}

// patience is how long status waits for an answer, and most how much it reads.
const (
	patience = 5 * time.Second
	most     = 16 << 20
)

func runStatus(ctx context.Context, o statusOptions) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	url := o.Admin
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/gates", nil)
	if err != nil {
		return usage("--admin %q is no address; write host:port, for instance %s", o.Admin, config.DefaultAdmin)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no gateway answers at %s: %w; --admin names the address of its admin listener", o.Admin, errors.Unwrap(err))
	}
	defer res.Body.Close()
	var l look
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s; is it the admin listener of a gateway?", o.Admin, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, most)).Decode(&l); err != nil {
		return fmt.Errorf("%s does not answer as a gateway does: %w", o.Admin, err)
	}
	return l.print(o.Out)
}

func (l *look) print(out io.Writer) error {
	state := "ready"
	if !l.Ready {
		state = "shutting down"
	}
	fmt.Fprintf(out, "%s, %d requests in progress\n\n", state, l.InFlight)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GATE\tMODE\tLIMIT\tIN FLIGHT\tWAITING\tADMITTED\tREFUSED\tLEFT\tCONTROLLER\tBOUND BY\tWHY")
	for _, g := range l.Gates {
		// Those who left the wait room were refused by nobody.
		left := g.Rejected[weir.ReasonCanceled.String()]
		var refused uint64
		for _, n := range g.Rejected {
			refused += n
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", g.Name, g.Mode, g.Limit, g.InFlight, g.Waiting, g.Admitted,
			refused-left, left, g.Controller, orDash(g.Signal), orDash(g.Reason))
	}
	if len(l.Signals) > 0 {
		fmt.Fprintln(w, "\nSIGNAL\tSTATE\tVALUE\tTROUBLE")
	}
	for _, s := range l.Signals {
		value := "-"
		if s.Value != nil {
			value = fmt.Sprintf("%.3g", *s.Value)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, s.State, value, orDash(s.Error))
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
