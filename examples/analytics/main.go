// Command analytics shows an analytical service in a wave of heavy queries, as Klaviyo told of
// theirs. Callers with deadlines of their own ask an Envoy, two gRPC pods, and one PostgreSQL. Six
// ways to protect it get the same load: no limit, the limits of that story, and a default gate in
// each pod. The others are before both pods: one gate with slots for each caller or for all together,
// or two gates. Two of the six run once more with random balancing.
//
// Everything runs on this machine, on loopback, and ends with the command. The load is measured out
// by what the database can do here. docs/howto/protect-an-analytics-service.md tells what comes out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if spec := os.Getenv(podVariable); spec != "" {
		exit(servePod(ctx, spec))
		return
	}
	o := options{out: os.Stdout}
	var names string
	flag.StringVar(&o.weir, "weir", "bin/weir", "the gateway's binary")
	flag.StringVar(&o.envoy, "envoy", ".cache/bin/envoy", "Envoy")
	flag.StringVar(&o.postgres, "postgres", ".cache/bin/postgres", "PostgreSQL's server; initdb is beside it")
	flag.StringVar(&o.plots, "plot", "", "a folder for the plots, one for each run")
	flag.StringVar(&o.metrics, "metrics", "127.0.0.1:0", "address for /metrics: latency by run, caller and answer")
	flag.StringVar(&names, "runs", "", "only these runs, by name, with commas between: "+strings.Join(runNames(), ", "))
	flag.IntVar(&o.hostAttempts, "host-attempts", 50, "how often Envoy looks for a pod that has not refused the call (host_selection_retry_max_attempts)")
	flag.BoolVar(&o.quick, "quick", false, "a minute in all, with clients that never leave; its figures mean nothing")
	flag.Parse()
	err := o.choose(names)
	if err == nil {
		_, err = analytics(ctx, &o)
	}
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "interrupted: everything has been stopped")
		err = nil
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "analytics:", err)
		os.Exit(1)
	}
}

// options are what the command is told.
type options struct {
	weir, envoy, postgres string // programs
	plots, metrics        string
	runs                  []setup
	hostAttempts          int
	quick                 bool
	out                   io.Writer
}

// setup is one run: who limits what.
type setup struct {
	name, about string
	podGate     string // in each pod: gateNone, gateSeed or gateDefault
	gateway     string // what the gateway that Envoy asks does; empty: there is none
	balance     string // Envoy's lb_policy
}

var setups = []setup{
	{"nothing", "no limit but 20 connections of each pod to the database", gateNone, "", "LEAST_REQUEST"},
	{"seed", "in each pod AIMD on the p95 of 3 s, and at most 2 reports", gateSeed, "", "LEAST_REQUEST"},
	{"gateway", "one gate in ext_proc, before both pods: 2 slots for reports, what is found out for each of the others", gateNone, oneGate, "LEAST_REQUEST"},
	{"gateway-plain", "one default gate in ext_proc for all callers together, by priority", gateNone, plainGate, "LEAST_REQUEST"},
	{"gateway-two", "two gates in ext_proc: 2 slots for reports, a default gate for the rest", gateNone, twoGates, "LEAST_REQUEST"},
	{"pods", "a default gate in each pod: each learns from its own share", gateDefault, "", "LEAST_REQUEST"},
	{"seed-random", "as seed, with random balancing", gateSeed, "", "RANDOM"},
	{"pods-random", "as pods, with random balancing", gateDefault, "", "RANDOM"},
}

func runNames() (names []string) {
	for _, s := range setups {
		names = append(names, s.name)
	}
	return names
}

// choose keeps the runs with these names, all of them if there are none.
func (o *options) choose(names string) error {
	o.runs = setups
	if names == "" {
		return nil
	}
	o.runs = nil
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(setups, func(s setup) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("-runs: there is no run %q; there are %s", name, strings.Join(runNames(), ", "))
		}
		o.runs = append(o.runs, setups[i])
	}
	return nil
}

// check looks for what the runs start, and whether plots can be written, before the database takes its time.
func (o *options) check() error {
	needed := []struct{ option, program string }{{"postgres", o.postgres}, {"envoy", o.envoy}}
	if slices.ContainsFunc(o.runs, func(s setup) bool { return s.gateway != "" }) {
		needed = append(needed, struct{ option, program string }{"weir", o.weir})
	}
	var errs []error
	for _, n := range needed {
		if _, err := exec.LookPath(n.program); err != nil {
			errs = append(errs, fmt.Errorf("-%s: %w; make build parts brings it", n.option, err))
		}
	}
	if o.plots != "" {
		if err := writable(o.plots); err != nil {
			errs = append(errs, fmt.Errorf("-plot: %w", err))
		}
	}
	return errors.Join(errs...)
}

// writable makes a folder, and a file in it for a moment: only that shows whether plots can be written there.
func writable(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".analytics-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// analytics starts the database and sends each run its load. It returns what came out of the runs
// that were whole.
func analytics(ctx context.Context, o *options) (results []*result, err error) {
	p := fullPlan
	if o.quick {
		p = quickPlan
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	watched, err := serveMetrics(o.metrics)
	if err != nil {
		return nil, err
	}
	defer watched.Close()
	fmt.Fprintf(o.out, "metrics: http://%s/metrics\nstarting PostgreSQL, with %d rows\n", watched.addr, p.customers*days)
	db, err := startDatabase(ctx, o.postgres, p.customers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	capacity, err := db.calibrate(ctx, p.calibrate, callers...)
	if err != nil {
		return nil, err
	}
	p.measureOut(capacity)
	introduce(o.out, p, capacity)
	for _, s := range o.runs {
		r, err := runOnce(ctx, o, s, p, db)
		if err != nil {
			return results, fmt.Errorf("%s: %w", s.name, err)
		}
		results = append(results, r)
		r.print(o.out)
		now, err := db.calibrate(ctx, p.calibrate, reports)
		if err != nil {
			return results, err
		}
		warnOfDrift(o.out, capacity[reports.name], now[reports.name])
		if o.plots != "" {
			if err := r.draw(o.plots); err != nil {
				return results, err
			}
		}
	}
	return results, nil
}

// runOnce sends one load through a system of its own.
func runOnce(ctx context.Context, o *options, s setup, p *plan, db *database) (*result, error) {
	sys, err := startSystem(ctx, o, s, db)
	if err != nil {
		return nil, err
	}
	defer sys.stop()
	r, err := send(ctx, s, p, sys)
	if err != nil {
		return nil, err
	}
	if err := sys.count(ctx, r); err != nil {
		return nil, err
	}
	return r, sys.alive()
}

// calls is the latency of calls by run, caller and answer: some hundred series at most. A time-out
// counts with the caller's whole patience.
var calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name: "analytics_call_seconds", Help: "Time from when a call was due to its answer.",
	Buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30},
}, []string{"run", "caller", "answer"})

// metricsServer serves /metrics until it is closed.
type metricsServer struct {
	*http.Server
	addr net.Addr
}

func serveMetrics(addr string) (*metricsServer, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(calls)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &metricsServer{&http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, l.Addr()}
	go func() { _ = s.Serve(l) }() // it returns when s is closed
	return s, nil
}
