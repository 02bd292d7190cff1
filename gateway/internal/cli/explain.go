package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/explain"
)

// explainOptions are the settings of weir explain.
type explainOptions struct {
	Ask   explain.Ask
	File  string // empty: Admin
	Admin string
	JSON  bool
	Out   io.Writer
}

// NewExplainCommand returns weir explain.
func NewExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say what would become of a request, without sending it",
		Long: `Explain says which route a request takes, whom it is taken to be from, and what each
gate on its way says: of a quota all rules that match, the one that counts and why, the
bucket that it is charged to, and what is left there. Nothing is sent, no token is
taken, and nothing counts it.

With --config it goes by a file, as if the gateway had just been started with it: every
bucket is full. Rules that were set at run time are known too, if they are kept in a
file that can be read; the last lines say what was judged. Without --config it asks a
running gateway for what would happen now, over its socket too: --admin unix:PATH.
Who is asking is what the identity makes of --from and --header, unless --user,
--client, --tenant or --priority say it.

The exit code is 0 if the request would go to the upstream, also after a wait, and 1 if
it would be refused.`,
		Example: "  weir explain --config weir.yaml --user alice --path /v1/items\n  weir explain --user alice --client web --path /v1/items\n  weir explain --method POST --path /v1/items --header 'X-User: alice' --from 10.0.0.7 --json",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.File != "" && cmd.Flags().Changed("admin") {
				return usage("--config asks a file and --admin a running gateway; leave one out")
			}
			o.Out = cmd.OutOrStdout()
			return runExplain(cmd.Context(), o)
		},
	}
	flags, a := cmd.Flags(), &o.Ask
	flags.StringVarP(&o.File, "config", "c", "", "configuration file to go by, in place of a running gateway")
	adminFlag(cmd, &o.Admin)
	flags.BoolVar(&o.JSON, "json", false, "print the answer as JSON")
	flags.StringVar(&a.Method, "method", http.MethodGet, "method of the request")
	flags.StringVar(&a.Path, "path", "/", "path, with a query if it has one")
	flags.StringVar(&a.Host, "host", "", "host that is asked")
	flags.StringVar(&a.From, "from", "127.0.0.1", "address that the request comes from")
	flags.StringArrayVar(&a.Header, "header", nil, "header of the request, as in 'X-User: alice'; may be given several times")
	flags.StringVar(&a.User, "user", "", "user, in place of what the identity says")
	flags.StringVar(&a.Client, "client", "", "client, in place of what the identity says")
	flags.StringVar(&a.Tenant, "tenant", "", "tenant, in place of what the identity says")
	flags.StringVar(&a.Priority, "priority", "", "background, normal, high or critical, in place of what the route and the identity say")
	flags.Int64Var(&a.Cost, "cost", 0, "how much it takes (default: what the route says, else 1)")
	return cmd
}

func runExplain(ctx context.Context, o explainOptions) error {
	var a *explain.Answer
	var err error
	if o.File != "" {
		a, err = o.offline()
	} else {
		a, err = o.live(ctx)
	}
	if err != nil {
		return err
	}
	if err := o.print(a); err != nil {
		return err
	}
	if a.Status != 0 {
		return &ExitError{Code: exitError} // all has been said
	}
	return nil
}

func (o *explainOptions) print(a *explain.Answer) error {
	if !o.JSON {
		return a.Print(o.Out, printable)
	}
	text, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Out, "%s\n", text)
	return err
}

// offline asks a file.
func (o *explainOptions) offline() (*explain.Answer, error) {
	cfg, err := loadConfig(o.File)
	if err != nil {
		return nil, err
	}
	a, err := explain.Offline(cfg, o.Ask)
	switch {
	case errors.Is(err, explain.ErrRules):
		return nil, err
	case err != nil:
		return nil, usage("--%w", err)
	}
	return a, nil
}

// live asks a running gateway.
func (o *explainOptions) live(ctx context.Context) (*explain.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := askAdmin(ctx, o.Admin, http.MethodGet, "/explain?"+o.Ask.Values().Encode(), nil, nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; --config names a file to go by instead", err)
	case res.StatusCode == http.StatusBadRequest:
		return nil, usage("--%s", strings.TrimSpace(string(res.text)))
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s; is it the admin listener of a gateway, and as new as this weir?", o.Admin, res.Status)
	}
	a := new(explain.Answer)
	if err := json.Unmarshal(res.text, a); err != nil || a.Method == "" {
		return nil, fmt.Errorf("%s does not answer as a gateway does", o.Admin)
	}
	return a, nil
}
