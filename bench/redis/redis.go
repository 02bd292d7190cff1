// Command redis compares the decisions of weirredis with those of redis_rate on one server,
// in one run:
//
//	go run ./bench/redis
//
// It starts a redis-server of its own on a free port. The subjects take turns in short
// rounds, each in front in its turn; a figure is the median of its rounds, with the least
// and the greatest, and a ratio is that of two rounds played one after the other. Both
// clients may have as many connections as there are callers. The server, the client and
// the callers share the machine, so what the figures compare is what each costs on both
// sides together.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

func main() {
	server := flag.String("server", ".cache/bin/redis-server", "path of the `program` to start")
	rounds := flag.Int("rounds", 15, "rounds of each subject")
	length := flag.Duration("length", 100*time.Millisecond, "length of a round")
	flag.Parse()
	if err := run(*server, *rounds, *length); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(program string, rounds int, length time.Duration) error {
	addr, stop, err := startServer(program)
	if err != nil {
		return err
	}
	defer stop()
	subjects, closeAll, err := newSubjects(addr)
	if err != nil {
		return err
	}
	defer closeAll()
	fmt.Println("| load | callers | subject | decisions/s | p50, µs | p99, µs | let through |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, l := range loads {
		for _, n := range callers {
			results, err := compare(subjects, l, n, rounds, length)
			if err != nil {
				return err
			}
			for i, s := range subjects {
				passed := sorted(results[i], func(r result) float64 { return 100 * r.passed })
				show(l, n, s.name, results[i], [3]string{"%.0f", "%.1f", "%.0f"}, fmt.Sprintf("%.1f %%", passed[len(passed)/2]))
			}
			show(l, n, "weirredis over redis_rate", over(results[0], results[1]), [3]string{"%.2f", "%.2f", "%.2f"}, "")
		}
	}
	return costs(addr, subjects)
}

// compare lets the subjects take turns, and returns the rounds of each.
func compare(subjects []subject, l load, callers, rounds int, length time.Duration) ([][]result, error) {
	results := make([][]result, len(subjects))
	for round := range rounds {
		for i := range subjects {
			i = (round + i) % len(subjects)
			r, err := play(context.Background(), subjects[i], l, callers, length)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", subjects[i].name, err)
			}
			results[i] = append(results[i], r)
		}
	}
	return results, nil
}

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

// result is a round.
type result struct {
	perSecond, passed float64
	p50, p99          float64 // µs
}

// over returns the rounds of one subject over those of another, played at about the same
// time: what else the machine does concerns both.
func over(all, peer []result) []result {
	ratios := make([]result, len(all))
	for i, r := range all {
		p := peer[i]
		ratios[i] = result{perSecond: r.perSecond / p.perSecond, p50: r.p50 / p.p50, p99: r.p99 / p.p99}
	}
	return ratios
}

// show prints the rounds of a subject as a row; the forms are those of decisions per
// second, p50 and p99.
func show(l load, callers int, name string, all []result, forms [3]string, passed string) {
	fmt.Printf("| %s | %d | %s | %s | %s | %s | %s |\n", l.name, callers, name,
		spread(forms[0], all, func(r result) float64 { return r.perSecond }),
		spread(forms[1], all, func(r result) float64 { return r.p50 }),
		spread(forms[2], all, func(r result) float64 { return r.p99 }), passed)
}

// spread is a median of rounds, with the least and the greatest.
func spread(form string, all []result, of func(result) float64) string {
	values := sorted(all, of)
	return fmt.Sprintf(form+" ("+form+" to "+form+")", values[len(values)/2], values[0], values[len(values)-1])
}

func sorted(all []result, of func(result) float64) []float64 {
	values := make([]float64, len(all))
	for i, r := range all {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values
}

// play lets callers ask without a pause.
func play(ctx context.Context, s subject, l load, callers int, length time.Duration) (result, error) {
	var wait sync.WaitGroup
	var passed atomic.Int64
	took := make([][]time.Duration, callers)
	faults := make([]error, callers)
	begin := time.Now()
	for c := range callers {
		wait.Go(func() {
			for i := c; time.Since(begin) < length; i += callers {
				at := time.Now()
				ok, err := s.take(ctx, l.name+strconv.Itoa(i*7919%l.keys), l)
				if err != nil {
					faults[c] = err
					return
				}
				took[c] = append(took[c], time.Since(at))
				if ok {
					passed.Add(1)
				}
			}
		})
	}
	wait.Wait()
	span := time.Since(begin)
	for _, err := range faults {
		if err != nil {
			return result{}, err
		}
	}
	all := slices.Concat(took...)
	if len(all) == 0 {
		return result{}, fmt.Errorf("%s: not one decision in %v; run it on a machine that does less", s.name, span)
	}
	slices.Sort(all)
	return result{
		perSecond: float64(len(all)) / span.Seconds(),
		passed:    float64(passed.Load()) / float64(len(all)),
		p50:       microseconds(all[len(all)/2]),
		p99:       microseconds(all[len(all)*99/100]),
	}, nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// subject is something that decides.
type subject struct {
	name string
	take func(ctx context.Context, key string, l load) (bool, error)
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
func startServer(program string) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w: run scripts/parts, or name another with -server", err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr, stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("%s does not accept connections at %s", program, addr)
}

// costs prints what a decision costs on the server alone, as the server tells it,
// and what a key takes of its memory.
func costs(addr string, subjects []subject) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	fmt.Println("\n| subject | script, let through | script, refused | memory of a key |")
	fmt.Println("| --- | --- | --- | --- |")
	for _, s := range subjects[:2] {
		open, err := scriptTime(client, s, load{name: "open", keys: 1000, rate: 1_000_000, burst: 1_000_000})
		if err != nil {
			return err
		}
		shut, err := scriptTime(client, s, load{name: "shut", keys: 1, rate: 1, burst: 1})
		if err != nil {
			return err
		}
		bytes, err := keySize(client, s)
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %.1f µs | %.1f µs | %.0f B |\n", s.name, open, shut, bytes)
	}
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
			if _, err := s.take(ctx, l.name+strconv.Itoa(i%l.keys), l); err != nil {
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
		if _, err := s.take(ctx, fmt.Sprintf("%016d", i), load{rate: 1, burst: 1000}); err != nil {
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
