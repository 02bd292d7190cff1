// Command kafka measures the gateway before Kafka, beside a direct connection and beside nginx as a relay of TCP. The
// broker is a real one, and all are measured in one run:
//
//	make bench-kafka                                every part; ten minutes
//	go run ./bench/kafka -parts plain -rounds 3
//
// Its parts:
//
//   - quota: what a principal gets that produces and fetches at full speed. It goes through two gateways with one Redis before three
//     brokers, and to brokers with that quota of their own.
//   - shared: throughput of a producer and of a consumer, and a small round trip. Relay, broker and client share all cores.
//   - plain: the same, where the gateway, or nginx, has a core of its own. Broker and client share the other one, with nothing between
//     them too. tls is that with TLS.
//   - idle: memory of connections that rest.
//   - slow: memory while many clients read large answers slowly.
//
// On two cores a relay takes from its clients what it needs in shared. In plain it takes nothing: there a ratio says what it holds
// up, and its CPU time what it takes. The ways take turns, the order moves on by one each round, and ratios are taken within a
// round. The client is franz-go as it comes, without compression.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{out: os.Stdout, java: []string{"-XX:TieredStopAtLevel=4"}} // a broker that is measured compiles as it ships
	flag.StringVar(&b.weir, "weir", "bin/weir", "the gateway's `program`; make build builds it")
	flag.StringVar(&b.nginx, "nginx", ".cache/bin/nginx", "nginx's `program`, with ngx_stream_module.so beside it; make parts fetches both")
	flag.Var(&b.parts, "parts", "only these, with commas between: quota, shared, plain, tls, idle, slow")
	flag.IntVar(&b.rounds, "rounds", 15, "rounds of shared, plain and tls")
	flag.DurationVar(&b.turn, "turn", time.Second, "how long each way is used in each round, 100ms to 1m; connections rest for three of it, and clients read slowly for ten")
	flag.IntVar(&b.rate, "rate", 10_000_000, "bytes a second of a principal with a quota, from 100000 on")
	flag.DurationVar(&b.window, "window", 30*time.Second, "in any such time a quota holds, 1s to 5m")
	flag.StringVar(&b.redis, "redis", ".cache/bin/redis-server", "Redis' `program`")
	flag.IntVar(&b.idle, "idle", 5000, "connections that rest, at most 9000")
	flag.IntVar(&b.slow, "slow", 200, "clients that read slowly, at most 1000")
	flag.Parse()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kafka:", err)
		os.Exit(1)
	}
}

// bench is what the command is told.
type bench struct {
	weir, nginx, redis string
	parts              kit.Names
	rounds, rate       int
	turn, window       time.Duration
	idle, slow         int
	java               []string // flags of a broker whose speed counts
	out                io.Writer
}

// part is something to be measured on a site.
type part struct {
	name    string
	shared  bool // by all processes: the cores
	measure func(context.Context, *site) error
}

// quotaPart is measured on a cluster.
const quotaPart = "quota"

func (b *bench) run(ctx context.Context) error {
	parts := []part{{"shared", true, b.plain}, {"plain", false, b.plain}, {"tls", false, b.tls}, {"idle", false, b.rest}, {"slow", false, b.stall}}
	for _, name := range b.parts {
		if name != quotaPart && !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("-parts: there is no %q", name)
		}
	}
	if b.rounds < 1 || b.turn < 100*time.Millisecond || b.turn > time.Minute || b.idle < 1 || b.idle > 9000 || b.slow < 1 || b.slow > 1000 || b.window < time.Second || b.window > 5*time.Minute || b.rate < 100_000 {
		return errors.New("-rounds is at least 1, -rate at least 100000, -turn from 100ms to 1m, -window from 1s to 5m, -idle from 1 to 9000, -slow from 1 to 1000")
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return !b.parts.Has(p.name) })
	fmt.Fprintf(b.out, "%s, %s, %d cores; median (min–max)\n", runtime.Version(), rig.Kernel(), runtime.NumCPU())
	if b.parts.Has(quotaPart) {
		if err := b.quota(ctx); err != nil {
			return fmt.Errorf("%s: %w", quotaPart, err)
		}
	}
	for _, some := range kit.Groups(parts, func(p *part) bool { return p.shared }) { // those that share first: the others pin this process
		if err := b.measure(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// measure measures parts on one site.
func (b *bench) measure(ctx context.Context, parts []part) (err error) {
	s, err := newSite(ctx, b, parts[0].shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, p := range parts {
		if err := p.measure(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// print writes a table below a heading.
func (b *bench) print(heading string, table kit.Table) {
	fmt.Fprintf(b.out, "\n## %s\n\n%s", heading, table.Plain(kit.Rule(len(table[0]))))
}

func text(verb string, values []float64) string { return kit.Text(kit.SpreadOf(values), verb) }
