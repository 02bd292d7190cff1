package cli

import (
	"context"
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
		Short: "Show what the gates would answer to a request, without sending it",
		Long: `Explain shows the route of a request, its sender as the gateway sees it, and the answer
of each gate on its way. For a quota it shows all rules that match, and the rule that
counts and why. It shows the bucket that would be charged, and what is left in it.
Nothing is sent, charged or counted.

With --config it reads a file, and answers as a gateway that has just started with it:
every bucket is full. It knows rules set at run time too, if they are kept in a file
that it can read. The last lines name what it has read. Without --config it asks a
running gateway what would happen now, over its socket too: --admin unix:PATH.
The sender follows from --from and --header by the identity of the configuration,
unless --user, --client, --tenant or --priority set it.

With --kafka and --api it is about a client of Kafka that stands before that cluster. It
shows which quota counts what the client asks, and whether that would be served, delayed
or refused. --cost is bytes, or the partitions of one topic. --version tells clients that
know the error of a quota from those that are only delayed. --api connect is about a new
connection, by --from.

The exit code is 0 if the request would go to the upstream, also after a wait, and 1 if
it would be refused.`,
		Example: "  weir explain --config weir.yaml --user alice --path /v1/items\n  weir explain --user alice --client web --path /v1/items\n  weir explain --method POST --path /v1/items --header 'X-User: alice' --from 10.0.0.7 --json\n  weir explain --kafka orders --api CreateTopics --user alice --client app --cost 30",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := emptyFlag(cmd); err != nil {
				return err
			}
			if o.File != "" && cmd.Flags().Changed("admin") {
				return usage("--config asks a file and --admin a running gateway; leave one out")
			}
			o.Out = cmd.OutOrStdout()
			return runExplain(cmd.Context(), o)
		},
	}
	flags, a := cmd.Flags(), &o.Ask
	flags.StringVarP(&o.File, "config", "c", "", "configuration file to read, in place of a running gateway")
	adminFlag(cmd, &o.Admin)
	flags.BoolVar(&o.JSON, "json", false, "print the answer as JSON")
	flags.StringVar(&a.Method, "method", http.MethodGet, "method of the request")
	flags.StringVar(&a.Path, "path", "/", "path, with a query if it has one")
	flags.StringVar(&a.Host, "host", "", "host that is asked")
	flags.StringVar(&a.From, "from", "127.0.0.1", "address that the request comes from")
	flags.StringArrayVar(&a.Header, "header", nil, "header of the request, as in 'X-User: alice'; may be given several times")
	flags.StringVar(&a.User, "user", "", "user, in place of the one from the identity")
	flags.StringVar(&a.Client, "client", "", "client, in place of the one from the identity")
	flags.StringVar(&a.Tenant, "tenant", "", "tenant, in place of the one from the identity")
	flags.StringVar(&a.Priority, "priority", "", "background, normal, high or critical, in place of the one from route and identity")
	flags.StringVar(&a.Descriptor, "descriptor", "", "ask about a descriptor of Envoy's rate limit service in place of a request, as in database=users,plan=free")
	flags.StringVar(&a.Domain, "domain", "", "domain of the descriptor, which is a gate (default: all gates with rules about descriptors)")
	flags.StringVar(&a.Kafka, "kafka", "", "cluster of Kafka whose client asks, in place of a request of HTTP")
	flags.StringVar(&a.API, "api", "", "what it asks, as in Produce, Fetch or CreateTopics; connect for a new connection")
	flags.StringVar(&a.Version, "version", "", "version of the API (default: the newest that clients are offered)")
	flags.Int64Var(&a.Cost, "cost", 0, "cost of the request (default: the route's, else 1)")
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
	if a.Refused() {
		return &ExitError{Code: exitError} // the answer is printed
	}
	return nil
}

func (o *explainOptions) print(a *explain.Answer) error {
	if o.JSON {
		return printJSON(o.Out, a)
	}
	return a.Print(legible{o.Out}, printable)
}

// offline answers from a file.
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
		return nil, fmt.Errorf("%w; --config answers from a file instead", err)
	case res.StatusCode == http.StatusBadRequest:
		return nil, usage("--%s", strings.TrimSpace(string(res.text)))
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s; is it the admin listener of a gateway, and as new as this weir?", o.Admin, res.Status)
	}
	a := new(explain.Answer)
	return a, res.decode(a, "gates")
}
