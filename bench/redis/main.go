// Command redis compares the decisions of weirredis with those of redis_rate on one server,
// in one run:
//
//	go run ./bench/redis
//
// It starts a redis-server of its own on a free port. The subjects take turns in short
// rounds, and the order moves on by one each round. A figure is the median of its rounds,
// with the smallest and the largest. A ratio is that of two rounds played one after the
// other. Both clients may have as many connections as there are callers. Server, client
// and callers share the machine, so the figures compare what each costs on both sides
// together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

func main() {
	server := flag.String("server", ".cache/bin/redis-server", "path of the `program` to start")
	rounds := flag.Int("rounds", 15, "rounds of each subject")
	length := flag.Duration("length", 100*time.Millisecond, "length of a round")
	flag.Parse()
	if err := run(*server, *rounds, *length); err != nil {
		fmt.Fprintln(os.Stderr, "redis:", err)
		os.Exit(1)
	}
}

func run(program string, rounds int, length time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	server, addr, err := startServer(ctx, program)
	if err != nil {
		return err
	}
	defer server.Stop()
	subjects, closeAll, err := newSubjects(addr)
	if err != nil {
		return err
	}
	defer closeAll()
	table := kit.Table{{"load", "callers", "subject", "decisions/s", "p50, µs", "p99, µs", "let through"}}
	for _, l := range loads {
		for _, n := range callers {
			figures, err := compare(ctx, subjects, l, n, rounds, length)
			if err != nil {
				return err
			}
			head := []string{l.name, strconv.Itoa(n)}
			for i, s := range subjects {
				f := &figures[i]
				passed := fmt.Sprintf("%.1f %%", 100*kit.SpreadOf(f.passed).Median)
				table = append(table, append(slices.Clone(head), s.name, text("%.0f", f.perSecond), text("%.1f", f.p50), text("%.0f", f.p99), passed))
			}
			ours, peer := &figures[0], &figures[1]
			table = append(table, append(head, "weirredis over redis_rate", text("%.2f", kit.Over(ours.perSecond, peer.perSecond)),
				text("%.2f", kit.Over(ours.p50, peer.p50)), text("%.2f", kit.Over(ours.p99, peer.p99)), ""))
		}
	}
	fmt.Print(table.Plain(kit.Rule(len(table[0]))))
	return costs(addr, subjects)
}

func text(verb string, values []float64) string { return kit.Text(kit.SpreadOf(values), verb) }

// figures are those of a subject, one for each round.
type figures struct{ perSecond, passed, p50, p99 []float64 } // times in µs

// compare lets the subjects take turns, and returns the figures of each.
func compare(ctx context.Context, subjects []subject, l load, callers, rounds int, length time.Duration) ([]figures, error) {
	all := make([]figures, len(subjects))
	order := make([]int, len(subjects))
	for i := range order {
		order[i] = i
	}
	for round := range rounds {
		for _, i := range kit.Turned(order, round) {
			if err := play(ctx, subjects[i], l, callers, length, &all[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", subjects[i].name, err)
			}
		}
	}
	return all, nil
}

// play lets callers ask without a pause, and adds the figures of a round.
func play(ctx context.Context, s subject, l load, callers int, length time.Duration, f *figures) error {
	timed, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var mu sync.Mutex
	took, passed := hist.New(7), 0
	begin := time.Now()
	err := loadgen.Closed(timed, callers, func(c int) (func() error, func()) {
		i, mine, let := c-callers, hist.New(7), 0
		return func() error {
				i += callers
				at := time.Now()
				ok, err := s.decide(ctx, l.name+strconv.Itoa(i*7919%l.keys), l)
				mine.Record(time.Since(at))
				if ok {
					let++
				}
				return err
			}, func() {
				mu.Lock()
				defer mu.Unlock()
				took.Add(&mine)
				passed += let
			}
	})
	span, n := time.Since(begin), float64(took.Count())
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("not one decision in %v; run it on a machine that does less", span)
	}
	f.perSecond, f.passed = append(f.perSecond, n/span.Seconds()), append(f.passed, float64(passed)/n)
	f.p50, f.p99 = append(f.p50, microseconds(took.Quantile(0.5))), append(f.p99, microseconds(took.Quantile(0.99)))
	return nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// load is who asks for what.
type load struct {
	name        string
	keys        int
	rate, burst int
}

var loads = []load{
	// A rate at which no key is full again, and goes by itself, before it is asked for again.
	{name: "10,000 keys, let through", keys: 10_000, rate: 100, burst: 1_000_000},
	{name: "one key, let through", keys: 1, rate: 1_000_000, burst: 1_000_000},
	{name: "one key, refused", keys: 1, rate: 100, burst: 100},
}

// callers are how many ask at once.
var callers = []int{1, 16, 64}

// subject is something that decides.
type subject struct {
	name   string
	decide func(ctx context.Context, key string, l load) (bool, error)
}

// patience is the deadline of decisions: with the default, 50 ms, one that is late on a
// busy machine would end the run. The peer has none.
const patience = time.Second

func newSubjects(addr string) (subjects []subject, closeAll func(), err error) {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: slices.Max(callers)})
	limiter := redis_rate.NewLimiter(client)
	plain, err := weirredis.New(weirredis.Config{Addrs: []string{addr}, Deadline: patience})
	if err != nil {
		return nil, nil, err
	}
	leased, err := weirredis.New(weirredis.Config{
		Addrs: []string{addr}, Deadline: patience, Prefix: "leased:", Lease: weirredis.Lease{Tokens: 100},
	})
	if err != nil {
		return nil, nil, err
	}
	closeAll = func() {
		plain.Close()
		leased.Close()
		client.Close()
	}
	return []subject{
		{"weirredis", of(plain)},
		{"redis_rate v10", func(ctx context.Context, key string, l load) (bool, error) {
			r, err := limiter.Allow(ctx, key, redis_rate.Limit{Rate: l.rate, Burst: l.burst, Period: time.Second})
			if err != nil {
				return false, err
			}
			return r.Allowed > 0, nil
		}},
		{"weirredis, leases of 100", of(leased)},
	}, closeAll, nil
}

func of(s *weirredis.Store) func(context.Context, string, load) (bool, error) {
	return func(ctx context.Context, key string, l load) (bool, error) {
		limits := [1]quota.Window{{Rate: float64(l.rate), Burst: float64(l.burst)}}
		r, err := s.Decide(ctx, &quota.Request{Key: key, Windows: limits[:], Cost: 1})
		return r.OK, err
	}
}

// startServer starts a server that keeps nothing on disk, on a free port.
func startServer(ctx context.Context, program string) (*rig.Process, string, error) {
	addr, err := rig.Ports.Addr()
	if err != nil {
		return nil, "", err
	}
	_, port, _ := net.SplitHostPort(addr)
	p, err := rig.StartListening(ctx, addr, program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")
	if err != nil {
		return nil, "", fmt.Errorf("%w: run scripts/parts, or name another with -server", err)
	}
	return p, addr, nil
}

// costs prints what a decision costs on the server alone, as the server tells it,
// and what a key takes of its memory.
func costs(addr string, subjects []subject) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	table := kit.Table{{"subject", "script, let through", "script, refused", "memory of a key"}}
	for _, s := range subjects[:2] {
		open, err1 := scriptTime(client, s, load{name: "open", keys: 1000, rate: 1_000_000, burst: 1_000_000})
		shut, err2 := scriptTime(client, s, load{name: "shut", keys: 1, rate: 1, burst: 1})
		bytes, err3 := keySize(client, s)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		table = append(table, []string{s.name, fmt.Sprintf("%.1f µs", open), fmt.Sprintf("%.1f µs", shut), fmt.Sprintf("%.0f B", bytes)})
	}
	fmt.Print("\n" + table.Plain(kit.Rule(len(table[0]))))
	return nil
}

// scriptTime returns the mean time of a script in the best of several runs, in
// microseconds: whatever else the machine does only adds to it.
func scriptTime(client *redis.Client, s subject, l load) (best float64, err error) {
	ctx := context.Background()
	for range 10 {
		if err := client.ConfigResetStat(ctx).Err(); err != nil {
			return 0, err
		}
		for i := range 2000 {
			if _, err := s.decide(ctx, l.name+strconv.Itoa(i%l.keys), l); err != nil {
				return 0, err
			}
		}
		us, err := field(client, "commandstats", "cmdstat_evalsha", "usec_per_call=")
		if err != nil {
			return 0, err
		}
		if best == 0 || us < best {
			best = us
		}
	}
	return best, nil
}

// keySize returns by how many bytes a key makes the server larger. Its name has 16
// bytes.
func keySize(client *redis.Client, s subject) (float64, error) {
	const keys = 5000 // in less than the second after which the first ones expire
	ctx := context.Background()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return 0, err
	}
	before, err := field(client, "memory", "used_memory:", "used_memory:")
	if err != nil {
		return 0, err
	}
	for i := range keys {
		if _, err := s.decide(ctx, fmt.Sprintf("%016d", i), load{rate: 1, burst: 1000}); err != nil {
			return 0, err
		}
	}
	after, err := field(client, "memory", "used_memory:", "used_memory:")
	return (after - before) / keys, err
}

// field returns the number after a word in a line of INFO.
func field(client *redis.Client, section, line, word string) (float64, error) {
	info, err := client.Info(context.Background(), section).Result()
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(info) {
		if !strings.HasPrefix(l, line) {
			continue
		}
		_, rest, _ := strings.Cut(l, word)
		rest, _, _ = strings.Cut(rest, ",")
		return strconv.ParseFloat(strings.TrimSpace(rest), 64)
	}
	return 0, fmt.Errorf("INFO %s has no %s", section, line)
}
