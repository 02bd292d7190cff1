// Command ratelimit compares weir with envoyproxy/ratelimit, both as Envoy's rate limit service, on
// one Redis and in one run:
//
//	make build parts && go run ./bench/ratelimit
//
// It starts a redis-server and three services on free ports: envoyproxy/ratelimit, weir, and weir with
// leases. All read the same file of limits. They take turns in short rounds, and the order moves on by
// one each round. A figure is the median of its rounds, with the smallest and the largest. A ratio is
// that of two rounds played one after the other. Everything shares the machine, so the figures compare
// what each costs in all together. CPU time is that of the service and of Redis for each decision; of all
// figures a busy machine disturbs it least.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
)

func main() {
	bin := flag.String("bin", ".cache/bin", "`directory` of redis-server and ratelimit")
	weir := flag.String("weir", "bin/weir", "path of the `program`")
	rounds := flag.Int("rounds", 15, "rounds of each subject")
	length := flag.Duration("length", 100*time.Millisecond, "length of a round")
	keys := flag.Int("keys", 100, "values of each key")
	flag.Parse()
	if err := run(*bin, *weir, *rounds, *length, *keys); err != nil {
		fmt.Fprintln(os.Stderr, "ratelimit:", err)
		os.Exit(1)
	}
}

// Who asks, and for how much.
var (
	callers     = []int{1, 16}
	descriptors = []int{1, 3}
)

// limits let everything through: what is measured is the way to the decision and back.
const limits = `domain: bench
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
  - {key: plan, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
`

func run(bin, weir string, rounds int, length time.Duration, keys int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	subjects, closeAll, err := startSubjects(ctx, bin, weir)
	defer closeAll()
	if err != nil {
		return err
	}
	table := kit.Table{{"descriptors", "callers", "subject", "decisions/s", "p50, µs", "p99, µs", "CPU, µs a decision"}}
	for _, d := range descriptors {
		for _, n := range callers {
			figures, err := compare(ctx, subjects, messages(d, keys), n, rounds, length)
			if err != nil {
				return err
			}
			head := []string{strconv.Itoa(d), strconv.Itoa(n)}
			for i, s := range subjects {
				f := &figures[i]
				table = append(table, append(slices.Clone(head), s.name, text("%.0f", f.perSecond), text("%.0f", f.p50), text("%.0f", f.p99), text("%.0f", f.cpu)))
			}
			for i, s := range subjects[1:] {
				ours, peer := &figures[i+1], &figures[0]
				table = append(table, append(slices.Clone(head), s.name+" over "+subjects[0].name, text("%.2f", kit.Over(ours.perSecond, peer.perSecond)),
					text("%.2f", kit.Over(ours.p50, peer.p50)), text("%.2f", kit.Over(ours.p99, peer.p99)), text("%.2f", kit.Over(ours.cpu, peer.cpu))))
			}
		}
	}
	fmt.Print(table.Plain(kit.Rule(len(table[0]))))
	return nil
}

func text(verb string, values []float64) string { return kit.Text(kit.SpreadOf(values), verb) }

// figures are those of a subject, one for each round.
type figures struct{ perSecond, p50, p99, cpu []float64 } // times in µs

// compare lets the subjects take turns, and returns the figures of each.
func compare(ctx context.Context, subjects []subject, ask [][]byte, callers, rounds int, length time.Duration) ([]figures, error) {
	all := make([]figures, len(subjects))
	order := make([]int, len(subjects))
	for i := range order {
		order[i] = i
	}
	for round := range rounds {
		for _, i := range kit.Turned(order, round) {
			if err := play(ctx, subjects[i], ask, callers, length, &all[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", subjects[i].name, err)
			}
		}
	}
	return all, nil
}

// play lets callers ask without a pause, and adds the figures of a round.
func play(ctx context.Context, s subject, ask [][]byte, callers int, length time.Duration, f *figures) error {
	timed, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var mu sync.Mutex
	took := hist.New(7)
	begin, before := time.Now(), s.cpu()
	err := loadgen.Closed(timed, callers, func(c int) (func() error, func()) {
		i, mine := c, hist.New(7)
		return func() error {
				i += callers
				at := time.Now()
				err := s.decide(ctx, ask[i*7919%len(ask)])
				mine.Record(time.Since(at))
				return err
			}, func() {
				mu.Lock()
				defer mu.Unlock()
				took.Add(&mine)
			}
	})
	span, n := time.Since(begin), float64(took.Count())
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("not one decision in %v; run it on a machine that does less", span)
	}
	f.perSecond, f.cpu = append(f.perSecond, n/span.Seconds()), append(f.cpu, microseconds(s.cpu()-before)/n)
	f.p50, f.p99 = append(f.p50, microseconds(took.Quantile(0.5))), append(f.p99, microseconds(took.Quantile(0.99)))
	return nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// messages are RateLimitRequests about so many descriptors each.
func messages(descriptors, keys int) (all [][]byte) {
	for i := range keys {
		m := field(nil, 1, []byte("bench"))
		for _, key := range []string{"user", "path", "plan"}[:descriptors] {
			entry := field(field(nil, 1, []byte(key)), 2, fmt.Appendf(nil, "value-%d", i))
			m = field(m, 2, field(nil, 1, entry))
		}
		all = append(all, m)
	}
	return all
}

func field(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// subject is a service that decides.
type subject struct {
	name      string
	conn      *grpc.ClientConn
	processes [2]*rig.Process // the service and its Redis
}

// cpu is the CPU time of a subject's processes so far.
func (s *subject) cpu() time.Duration {
	return s.processes[0].Usage().CPU + s.processes[1].Usage().CPU
}

// patience is the deadline of a decision. Envoy's own of 20 ms would end the run on a busy machine.
const patience = 5 * time.Second

// decide asks. An answer that is not OK is an error: every limit is far away.
func (s *subject) decide(ctx context.Context, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var answer []byte
	if err := s.conn.Invoke(ctx, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &message, &answer); err != nil {
		return err
	}
	if len(answer) < 2 || answer[0] != 1<<3 || answer[1] != 1 { // overall_code: OK
		return fmt.Errorf("the answer %q is not OK", answer)
	}
	return nil
}

// raw is a codec for messages that are bytes already.
type raw struct{}

func (raw) Name() string                       { return "proto" }
func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }

// startSubjects starts a server of Redis and the services on it. closeAll ends what has been started.
func startSubjects(ctx context.Context, bin, weir string) (subjects []subject, closeAll func(), err error) {
	var started []*rig.Process
	closeAll = func() {
		for _, s := range subjects {
			_ = s.conn.Close() // nothing is under way
		}
		for _, p := range slices.Backward(started) {
			p.Stop()
		}
	}
	launch := func(addr, program string, args ...string) error {
		p, err := rig.StartListening(ctx, addr, program, args...)
		if err != nil {
			return fmt.Errorf("%w: run make build parts, or name others with -bin and -weir", err)
		}
		started = append(started, p)
		return nil
	}
	dir, err := os.MkdirTemp("", "ratelimit")
	if err != nil {
		return nil, closeAll, err
	}
	end := closeAll
	closeAll = func() { end(); _ = os.RemoveAll(dir) } // what stays is in a directory for such
	folder := filepath.Join(dir, "ratelimit", "config")
	if err = errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, "limits.yaml"), []byte(limits), 0o600)); err != nil {
		return nil, closeAll, err
	}
	addrs := make([]string, 7)
	for i := range addrs {
		if addrs[i], err = rig.Ports.Addr(); err != nil {
			return nil, closeAll, err
		}
	}
	redis := addrs[0]
	if err = launch(redis, filepath.Join(bin, "redis-server"), "--port", port(redis), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning"); err != nil {
		return nil, closeAll, err
	}
	peer := addrs[1]
	if err = launch(peer, "env", "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error", "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis,
		"RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "REDIS_POOL_SIZE="+strconv.Itoa(slices.Max(callers)),
		"GRPC_HOST=127.0.0.1", "GRPC_PORT="+port(peer), "HOST=127.0.0.1", "PORT="+port(addrs[2]), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+port(addrs[3]),
		filepath.Join(bin, "ratelimit")); err != nil {
		return nil, closeAll, err
	}
	services := []struct{ name, addr string }{{"envoyproxy/ratelimit", peer}, {"weir", addrs[4]}, {"weir, leases of 100", addrs[5]}}
	for i, s := range services {
		if i > 0 {
			config := filepath.Join(dir, fmt.Sprintf("weir%d.yaml", i))
			text := fmt.Sprintf("listeners: [{address: %q, serve: [ratelimit]}]\nadmin: {address: off}\nstores: {shared: {redis: \"redis://%s\", prefix: \"weir%d:\", timeout: 5s%s}}\nrate_limit_service: {files: [%s], store: shared, on_store_error: closed}\nroutes: []\n",
				s.addr, redis, i, []string{"", "", ", lease: {tokens: 100}"}[i], folder)
			if err = os.WriteFile(config, []byte(text), 0o600); err == nil {
				err = launch(s.addr, weir, "run", "--config", config)
			}
			if err != nil {
				return nil, closeAll, err
			}
		}
		conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		if err != nil {
			return nil, closeAll, err
		}
		service := started[i+1] // after Redis, in their order
		subjects = append(subjects, subject{s.name, conn, [2]*rig.Process{service, started[0]}})
	}
	return subjects, closeAll, nil
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr) // it is one of rig.Ports
	return p
}
