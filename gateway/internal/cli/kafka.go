package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/quotas"
)

// NewKafkaCommand returns weir kafka with its commands.
func NewKafkaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "kafka",
		Short:   "Take over the quotas of a cluster of Kafka",
		Long:    "Kafka has commands about clusters of Kafka that the gateway stands before.",
		Example: "  weir kafka import weir.yaml",
		Args:    knownCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(kafkaImport())
	return cmd
}

// importOptions are the settings of weir kafka import.
type importOptions struct {
	quotaOptions // of how to ask the gateway
	File         string
	Cluster      string
	Factor       float64
	Apply        bool
	Remove       bool
}

// importPatience bounds an import: a cluster may have thousands of quotas.
const importPatience = 2 * time.Minute

func kafkaImport() *cobra.Command {
	o := new(importOptions)
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Bring the quotas of a cluster's brokers into the gateway",
		Long: `Import reads the quotas that the brokers of a cluster have, and sets those that a gate of
the gateway counts as rules there. These are controller_mutation_rate, producer_byte_rate,
consumer_byte_rate and connection_creation_rate. Others stay with the brokers. FILE is the
gateway's configuration. It says how to reach the brokers, and which gates count.

Each broker counts bytes and connections for itself, the gateway once for the cluster. So
these rates are multiplied by --factor. It is the number of brokers unless you say another,
which is as much as anybody could get before. controller_mutation_rate stays,
because one controller counts it for all brokers.

Without --apply it shows what would be done, and changes nothing. With --apply the rules are
set, in place of rules that match the same. With --remove the brokers' quotas are deleted
then, because both hold as long as there are both.

The gateway has to run. It wants its admin socket (--admin unix:/run/weir/admin.sock) or
its token (--token-file), as for weir quota set.`,
		Example: `  weir kafka import weir.yaml --admin unix:/run/weir/admin.sock
  weir kafka import weir.yaml --cluster orders --factor 1 --apply --remove --token-file /etc/weir/admin.token`,
		Args: needs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := emptyFlag(cmd); err != nil {
				return err
			}
			o.File, o.Out = args[0], cmd.OutOrStdout()
			if cmd.Flags().Changed("factor") && !(o.Factor > 0 && o.Factor <= mostFactor) {
				return usage("--factor %g multiplies rates of bytes and connections; write one above 0 and at most %d, or leave it out for the number of brokers", o.Factor, mostFactor)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), importPatience)
			defer cancel()
			return runKafkaImport(ctx, o)
		},
	}
	f := cmd.Flags()
	adminFlag(cmd, &o.Admin)
	f.StringVar(&o.TokenFile, "token-file", "", "file with the gateway's token")
	f.StringVar(&o.Cluster, "cluster", "", "cluster, by its name in FILE (default: the only one that clients reach through the gateway)")
	f.Float64Var(&o.Factor, "factor", 0, "what rates of bytes and connections are multiplied by (default: the number of brokers)")
	f.BoolVar(&o.Apply, "apply", false, "set the rules")
	f.BoolVar(&o.Remove, "remove", false, "delete the brokers' quotas, once the rules are set")
	cmd.ValidArgsFunction = completeFiles("yaml", "yml", "json")
	return cmd
}

// mostFactor is more brokers than a cluster has.
const mostFactor = 10_000

func runKafkaImport(ctx context.Context, o *importOptions) error {
	cfg, err := loadConfig(o.File)
	if err != nil {
		return err
	}
	name, err := o.cluster(cfg)
	if err != nil {
		return err
	}
	k := cfg.Kafka[name]
	client, err := brokersOf(cfg, name)
	if err != nil {
		return err
	}
	defer client.Close()
	all, factor, err := kafka.ReadBrokerQuotas(ctx, client, &k.Quotas, o.Factor)
	if err != nil {
		return fmt.Errorf("the brokers at %s do not say which quotas they have: %w", strings.Join(k.Bootstrap, ", "), err)
	}
	taken, err := o.set(ctx, name, all, factor)
	if err != nil || !o.Apply {
		return err
	}
	if !o.Remove || taken == 0 {
		return nil
	}
	if err := kafka.RemoveBrokerQuotas(ctx, client, all); err != nil {
		return fmt.Errorf("the rules are set, but not all quotas could be deleted at the brokers, and both hold: %w", err)
	}
	_, err = fmt.Fprintf(o.Out, "deleted at the brokers: %d\n", taken)
	return err
}

// cluster returns the cluster that the flags name, or the only one.
func (o *importOptions) cluster(cfg *config.Config) (string, error) {
	names := slices.DeleteFunc(cfg.KafkaListeners(), func(name string) bool {
		q := cfg.Kafka[name].Quotas
		return !q.Counts()
	})
	switch _, known := cfg.Kafka[o.Cluster]; {
	case slices.Contains(names, o.Cluster):
		return o.Cluster, nil
	case known:
		return "", fmt.Errorf("%s counts nothing for cluster %s; add listen, nodes and quotas: {produce: in, fetch: out} to it", o.File, o.Cluster)
	case o.Cluster != "":
		return "", usage("--cluster %s: %s has no such cluster; it has %s", o.Cluster, o.File, strings.Join(slices.Sorted(maps.Keys(cfg.Kafka)), ", "))
	case len(names) == 0:
		return "", fmt.Errorf("%s counts nothing for a cluster of Kafka; add quotas: {produce: in, fetch: out} to one, with gates of these names", o.File)
	case len(names) > 1:
		return "", usage("%s has several clusters; add --cluster, one of %s", o.File, strings.Join(names, ", "))
	}
	return names[0], nil
}

// brokersOf returns a client of a cluster's brokers, as the gateway itself connects to them.
func brokersOf(cfg *config.Config, name string) (*kgo.Client, error) {
	conf, mechanisms, err := cfg.KafkaLogin(name)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{kgo.SeedBrokers(cfg.Kafka[name].Bootstrap...), kgo.ClientID("weir"), kgo.SASL(mechanisms...), kgo.RequestRetries(2)}
	if conf != nil {
		opts = append(opts, kgo.DialTLSConfig(conf))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka.%s: %w", name, err)
	}
	return client, nil
}

// set sets the rules for quotas of brokers, or says what would be set, and prints both. It returns how many there are.
func (o *importOptions) set(ctx context.Context, cluster string, all []kafka.BrokerQuota, factor float64) (taken int, err error) {
	if len(all) == 0 {
		_, err := fmt.Fprintf(o.Out, "the brokers of %s have no quotas that the gateway counts\n", cluster)
		return 0, err
	}
	var ops []quotas.Op
	for i := range all {
		if all[i].Err == nil {
			ops = append(ops, all[i].Op)
		}
	}
	var steps []quotas.Step
	for chunk := range slices.Chunk(ops, quotas.MaxOps) {
		var res quotas.Result
		if _, err := o.ask(ctx, "/quotas", &quotas.Change{Ops: chunk, ValidateOnly: !o.Apply}, &res, "steps"); err != nil {
			if len(steps) > 0 && o.Apply {
				return 0, fmt.Errorf("%d of %d rules are set, the others are not: %w", len(steps), len(ops), err)
			}
			return 0, err
		}
		steps = append(steps, res.Steps...)
	}
	fmt.Fprintf(o.Out, "cluster %s, rates of bytes and connections × %g\n", cluster, factor)
	if err := printImport(o.Out, all, steps); err != nil {
		return 0, err
	}
	end := "nothing is changed; --apply sets these rules, and with --remove the brokers' quotas are deleted then"
	if o.Apply {
		end = fmt.Sprintf("in force at the gateway: %d; the brokers' own hold too until they are deleted (--remove)", len(steps))
	}
	if o.Apply && o.Remove {
		end = fmt.Sprintf("in force at the gateway: %d", len(steps))
	}
	_, err = fmt.Fprintf(o.Out, "\n%s\n", end)
	return len(steps), err
}

// printImport prints what the brokers have, and what each comes to at the gateway.
func printImport(out io.Writer, all []kafka.BrokerQuota, steps []quotas.Step) error {
	p := newPage(out)
	for i := range all {
		b := &all[i]
		here, gate := "not imported: "+fmt.Sprint(b.Err), ""
		if b.Err == nil && len(steps) > 0 {
			here, gate = steps[0].Gives, steps[0].Gate
			if was := steps[0].Before; was != nil {
				here += " (set before: " + quotas.FullTerms(&was.QuotaRuleSpec) + ")"
			}
			steps = steps[1:]
		}
		p.row("WHO|QUOTA|AT THE BROKERS|GATE|HERE", b.Entity(), b.Key, strconv.FormatFloat(b.Value, 'f', -1, 64), gate, here)
	}
	return p.Flush()
}
