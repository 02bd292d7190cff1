// Command gateway compares the gateway with a bare [httputil.ReverseProxy] on the
// same transport, before the same upstream, in one run:
//
//	make build && go run ./bench/gateway
//
// Each proxy is a process of its own on one core (GOMAXPROCS=1). One more process
// is the client and the upstream. These do as little as they can, with fixed bytes
// over kept connections, so the proxy is what limits the throughput. The proxies
// take turns; the order moves on by one each round, and ratios are taken within a
// round. CPU time is the kernel's account of the proxy's process. It scatters far
// less than throughput on a busy machine. Only Linux lets others read it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
)

func main() {
	var p plan
	flag.IntVar(&p.rounds, "rounds", 25, "values each figure is made of")
	flag.DurationVar(&p.turn, "turn", 250*time.Millisecond, "how long a proxy works in each round")
	flag.IntVar(&p.conns, "conns", 32, "client connections, each with one request at a time")
	flag.StringVar(&p.weir, "weir", "bin/weir", "the gateway's binary; make build builds it")
	serve := flag.String("serve", "", "be the bare proxy at that address (used by the command itself)")
	upstream := flag.String("upstream", "", "upstream of that proxy")
	flag.Parse()
	var err error
	if *serve != "" {
		err = serveBare(*serve, *upstream)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		err = p.compare(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// plan is how often, how long and how hard.
type plan struct {
	rounds, conns int
	turn          time.Duration
	weir          string
}

// goal is the share of the bare proxy's throughput that the gateway must keep. Its
// inverse bounds the CPU time of a request.
const goal = 0.95

// saturated is the share of its core that a proxy must use, and so must the bare one
// that it is compared with. Below it, throughput says something about what the proxy waited for.
const saturated = 0.9

func (p *plan) compare(ctx context.Context) error {
	if p.rounds < 1 || p.conns < 1 || p.conns > 1000 || p.turn < 100*time.Millisecond || p.turn > time.Minute {
		return fmt.Errorf("rounds must be positive, connections from 1 to 1000, turns from 100ms to 1m")
	}
	stub, err := rig.StartUpstream()
	if err != nil {
		return err
	}
	defer stub.Close()
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.stop()
		}
	}()
	for _, name := range proxies {
		s, err := start(ctx, name, p, "http://"+stub.Addr().String())
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		subjects = append(subjects, s)
		if err := s.work(ctx, p.turn/2); err != nil { // connections, caches, heap
			return fmt.Errorf("%s: %w", name, err)
		}
		s.rates, s.cpus, s.used = nil, nil, nil
	}
	for round := range p.rounds {
		for _, s := range kit.Turned(subjects, round) {
			if err := s.work(ctx, p.turn); err != nil {
				return fmt.Errorf("%s in round %d of %d: %w", s.name, round+1, p.rounds, err)
			}
		}
	}
	fmt.Printf("%s, %d cores, %d connections, %d rounds of %v each; median (min–max); ratios to the first line, within a round\n\n",
		runtime.Version(), runtime.NumCPU(), p.conns, p.rounds, p.turn)
	fmt.Print(report(subjects).Padded())
	fmt.Printf("\nA throughput is void where the proxy or the bare one used less than %.0f %% of its core: then something else was the limit.\n", 100*saturated)
	return nil
}

func report(subjects []*subject) kit.Table {
	table := kit.Table{{"", "requests/s", "core used", "CPU µs/request", "goals"}}
	floor := subjects[0]
	for i, s := range subjects {
		goals := ""
		if i > 0 {
			rate := (&kit.Goal{What: "throughput ratio", Bound: goal}).Judge(kit.SpreadOf(kit.Over(s.rates, floor.rates)))
			cpu := (&kit.Goal{What: "CPU ratio", Bound: 1 / goal, AtMost: true}).Judge(kit.SpreadOf(kit.Over(s.cpus, floor.cpus)))
			goals = rate.String()
			if min(kit.SpreadOf(s.used).Median, kit.SpreadOf(floor.used).Median) < saturated {
				goals = "throughput void"
			}
			goals += "; " + cpu.String() + ", from " + kit.Text(cpu.Spread, "%.3f")
		}
		table = append(table, []string{s.name, kit.Text(kit.SpreadOf(s.rates), "%.0f"),
			fmt.Sprintf("%.0f %%", 100*kit.SpreadOf(s.used).Median), kit.Text(kit.SpreadOf(s.cpus), "%.1f"), goals})
	}
	return table
}

// The proxies that are compared. The first is the floor.
const (
	bare  = "bare ReverseProxy"
	off   = "weir, gate off"
	fixed = "weir, fixed limit"
	learn = "weir, defaults"
)

var proxies = []string{bare, off, fixed, learn}

// gateOff is the gateway's file with its gate off.
const gateOff = `listeners: [{address: "%s"}]
admin: {address: off}
upstreams: {app: {targets: ["%s"]}}
gates: {all: {mode: off, limit: {}}}
routes: [{match: [/], gates: [all], upstream: app}]
`

// subject is a proxy under measurement, and its clients.
type subject struct {
	*rig.Process
	name, addr string
	conns      []*rig.Conn

	// The figures of each turn: requests a second, µs of CPU time a request, and
	// the part of its core that the proxy used.
	rates, cpus, used []float64
}

// start starts the proxy called name, on one core.
func start(ctx context.Context, name string, p *plan, upstream string) (*subject, error) {
	addr, err := rig.Ports.Addr()
	if err != nil {
		return nil, err
	}
	s := &subject{name: name, addr: addr}
	flags := []string{"--upstream", upstream, "--listen", addr, "--admin", "off"}
	switch name {
	case bare:
		var self string
		if self, err = os.Executable(); err == nil {
			s.Process, err = rig.StartListening(ctx, addr, self, "-serve", addr, "-upstream", upstream)
		}
	case off:
		s.Process, err = rig.StartWeir(ctx, p.weir, addr, fmt.Sprintf(gateOff, addr, upstream))
	case fixed:
		s.Process, err = rig.StartWeir(ctx, p.weir, addr, "", append(flags, "--limit", "256")...)
	case learn:
		s.Process, err = rig.StartWeir(ctx, p.weir, addr, "", flags...)
	}
	for range p.conns {
		s.conns = append(s.conns, new(rig.Conn))
	}
	return s, err
}

func (s *subject) stop() {
	for _, c := range s.conns {
		c.Close()
	}
	s.Stop()
}

var request = []byte("GET / HTTP/1.1\r\nHost: bench\r\n\r\n")

// work keeps every connection busy for d.
func (s *subject) work(ctx context.Context, d time.Duration) error {
	timed, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var answers atomic.Int64
	before, begin := s.Usage().CPU, time.Now()
	err := loadgen.Closed(timed, len(s.conns), func(i int) (func() error, func()) {
		return func() error {
			if a := s.conns[i].RoundTrip(s.addr, request, begin.Add(d+10*time.Second)); a != loadgen.OK {
				return errors.New("a request was not answered with 200")
			}
			answers.Add(1)
			return nil
		}, func() {}
	})
	cpu, took, n := (s.Usage().CPU - before).Seconds(), time.Since(begin).Seconds(), float64(answers.Load())
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	s.rates, s.cpus, s.used = append(s.rates, n/took), append(s.cpus, 1e6*cpu/n), append(s.used, cpu/took)
	return nil
}

// serveBare serves a ReverseProxy with nothing around it, with the gateway's
// time-outs.
func serveBare(addr, upstream string) error {
	proxy, err := rig.ReverseProxy(upstream)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Addr: addr, Handler: proxy, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	return srv.ListenAndServe()
}
