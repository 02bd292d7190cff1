// Package live is the scoreboard's second layer: real servers, real sockets,
// real processors, on loopback.
//
// Virtual time judges the algorithms. What it cannot see is judged here. HTTP parsing,
// connection pools and timers are real. Clients leave by closing their connection. Go's
// scheduler lets a handler that computes run to its end before the next request is
// counted.
//
// # Arrangement
//
// The system under test is a process of its own, pinned to one core. This
// process, which generates the load, and the backends behind proxies are pinned
// to the other. Load is open: requests leave at times drawn beforehand (Poisson), and
// latency counts from the time a request was due. A client whose patience ends closes
// its connection. If more than [loadgen.VoidAbove] of the requests left late, a run
// says more about the generator than about what it measures. It is void, and
// repeated. The report names it if it stays void.
//
// Each request says in a header, which only the backend reads, how much work it is. So all
// that compete in a round get the same requests at the same times.
//
// # Three parts
//
// In part one the limiter is in the server's own process (weirhttp around a handler).
// In part two it is in a proxy before backends that keep working for clients that
// left. The proxies are the gateway as its users build and start it, ReverseProxy
// alone, and ReverseProxy inside another limiter's handler.
//
// In part three the gateway knows who asks, and some clients must not suffer from
// others. There are priorities, tenants, weights, exempt work, a batch and tasks of
// several calls. Admitted work calls its own service, through the gateway or through a
// gate inside the server. Part three is not in the scoreboard's hour.
//
// All figures are ratios to something measured or known in the same round: the
// backend's capacity, or the best fixed limit.
package live

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/internal/testbed/cores"
)

// Main is the command: it measures what args ask for and writes the report.
func Main(ctx context.Context, args []string, in io.Reader, out, log io.Writer) error {
	flags := flag.NewFlagSet("live", flag.ContinueOnError)
	flags.SetOutput(log)
	spec := flags.String("role", "", "what this process is (used by the command itself)")
	quick := flags.Bool("quick", false, "a minute of it, to see that everything works; prints the report and writes nothing")
	plan := Plan{Parts: hour}
	flags.StringVar(&plan.Weir, "weir", "", "the gateway's binary")
	flags.StringVar(&plan.Envoy, "envoy", "", "the `program`, for the guards with an Envoy")
	flags.IntVar(&plan.Rounds, "rounds", 3, "values each figure is made of")
	flags.Float64Var(&plan.Pace, "pace", 1, "multiplies the length of every run")
	flags.IntVar(&plan.Retries, "retries", 2, "how often a void run is repeated")
	flags.Var(&plan.Parts, "parts", "which parts: "+strings.Join(parts, ", "))
	flags.Var((*kit.Scenarios)(&plan.Rows), "rows", "which rows, with commas between, such as S1 or steady-overload; empty for all")
	flags.Var(&plan.Laws, "backends", "which backends, with commas between; empty for all")
	flags.Var(&plan.Guards, "guards", "which guards, with commas between; empty for all")
	seeds := flags.Int("virtual", 0, "instead, play the gateway's rows in the simulator, with so many seeds, and print what the default has of the best fixed limit")
	dir := flags.String("o", "", "directory to write the report into; empty to print it")
	name := flags.String("name", "live", "name of the report's files, NAME.md and NAME.json")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *spec != "" {
		return playRole(*spec, in, out)
	}
	if *quick {
		plan = quickPlan(plan.Weir)
		*dir = ""
	}
	if *seeds != 0 {
		return virtual(ctx, plan, *seeds, out)
	}
	if info, err := os.Stat(*dir); *dir != "" && (err != nil || !info.IsDir()) {
		return fmt.Errorf("-o %s: is no directory to write the report into", *dir)
	}
	fmt.Fprintf(log, "about %v\n", plan.duration().Round(time.Second))
	results, err := measure(ctx, plan, log)
	if results == nil {
		return err
	}
	if *dir == "" || err != nil { // what there is of a run that broke off replaces nothing
		results.judge()
		_, werr := io.WriteString(out, results.Markdown())
		return errors.Join(err, werr)
	}
	return results.Write(*dir, *name)
}

// duration is about how long the plan takes if no run is void.
func (p *Plan) duration() time.Duration {
	r := &runner{plan: *p, log: io.Discard, results: new(Results), dry: true}
	for round := range p.Rounds {
		_ = r.round(context.Background(), round) // nothing is run that could fail
	}
	return r.spent
}

// measure runs the plan. It returns what there is, also with an error.
func measure(ctx context.Context, plan Plan, log io.Writer) (*Results, error) {
	if err := plan.check(); err != nil {
		return nil, err
	}
	r := &runner{plan: plan, log: log, results: newResults(plan)}
	var err error
	if r.test, r.rest, err = cores.Pair(); err != nil {
		return nil, err
	}
	if err := cores.PinSelf(r.rest); err != nil {
		return nil, err
	}
	r.results.Machine.Apart = r.test != r.rest
	for round := range plan.Rounds {
		if err := r.round(ctx, round); err != nil {
			return r.results, fmt.Errorf("round %d: %w", round+1, err)
		}
		r.results.Rounds++
	}
	return r.results, nil
}

func (r *runner) round(ctx context.Context, round int) error {
	if r.plan.wantsPart(partServer) {
		for _, s := range sites() {
			if r.plan.Laws.Has(s.law.Name) {
				if err := r.server(ctx, s, round); err != nil {
					return err
				}
			}
		}
	}
	if r.plan.wantsPart(partYield) {
		if err := r.yieldCost(ctx, round); err != nil {
			return err
		}
	}
	if r.plan.wantsPart(partGateway) {
		for _, u := range upstreams() {
			if r.plan.Laws.Has(u.law.Name) {
				if err := r.gateway(ctx, u, round); err != nil {
					return err
				}
			}
		}
	}
	if r.plan.wantsPart(partOrder) {
		return r.order(ctx, round)
	}
	return nil
}

// server runs one round of part one on one backend.
func (r *runner) server(ctx context.Context, s site, round int) error {
	c, err := r.capacity(ctx, s.law, s.procs)
	if err != nil {
		return fmt.Errorf("capacity of %s: %w", s.name, err)
	}
	r.results.Capacities = append(r.results.Capacities, Capacity{
		Backend: s.name, Round: round, Rate: c.rate, Clients: c.clients,
		RequestUS: us(c.request), RefusalUS: us(c.refusal), Foreign: c.foreign,
	})
	fmt.Fprintf(r.log, "%s: %.0f requests/s with %d clients; CPU µs: %.0f a request, %.1f a refusal; others used %.0f %%\n",
		s.name, c.rate, c.clients, us(c.request), us(c.refusal), 100*c.foreign)
	for _, row := range s.rows() {
		if !r.plan.Rows.Has(row.ID) {
			continue
		}
		t := staged{
			row: &row, law: &s.law, backend: s.name, unit: r.plan.turn(s.unit), patience: s.patience,
			capacity: c.rate, part: partServer, round: round,
		}
		if row.Impatient {
			t.patience = time.Duration(2.5 * float64(c.clients) / c.rate * float64(time.Second))
		}
		if s.law.Burns {
			t.bound = c.bound
		}
		for _, g := range kit.Turned(s.guards(row.ID, c.clients), round) {
			if !r.plan.Guards.Has(g.Name) {
				continue
			}
			start := func() ([]*lane, error) {
				return r.serving(role{Kind: "server", Procs: s.procs, Law: s.law, Guard: g})
			}
			if err := r.try(ctx, t.trial(r.results), start); err != nil {
				return err
			}
		}
	}
	return nil
}

// serving starts a server with its guard inside.
func (r *runner) serving(role role) ([]*lane, error) {
	p, err := startRole(r.test, role)
	return []*lane{{guard: role.Guard.Name, front: p, app: p}}, err
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// gateway runs one round of part two on one backend.
func (r *runner) gateway(ctx context.Context, u upstream, round int) error {
	_, rate := u.law.best()
	for _, row := range gatewayRows() {
		if !u.rows.Has(row.ID) || !r.plan.Rows.Has(row.ID) {
			continue
		}
		t := staged{
			row: &row, law: &u.law, backend: u.law.Name, unit: r.plan.turn(u.unit), patience: u.patience(row.Impatient),
			capacity: rate, part: partGateway, round: round,
		}
		guards := kit.Turned(r.plan.Guards.Of(r.plan.proxies(row.ID)), round)
		together := max(1, len(guards))
		if row.peak()*rate*float64(len(guards)) > sideBySide {
			together = 1
		}
		for group := range slices.Chunk(guards, together) {
			if err := r.try(ctx, t.trial(r.results), func() ([]*lane, error) { return r.lanes(ctx, u.law, group) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// peak is the row's highest load.
func (r *Row) peak() (load float64) {
	for _, s := range r.Stages {
		load = max(load, s.Load)
	}
	return load
}

// lanes starts proxies, each before a backend of its own.
func (r *runner) lanes(ctx context.Context, law Law, guards []string) ([]*lane, error) {
	var all []*lane
	for _, g := range guards {
		l, err := r.proxied(ctx, law, g)
		if err != nil {
			for _, started := range all {
				started.stop()
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (r *runner) proxied(ctx context.Context, law Law, guard string) (*lane, error) {
	return r.before(law, guard, false, func(addr, admin, url string) (*process, error) {
		switch guard {
		case guardFixed, guardWeir:
		case guardEnvoy:
			return r.startEnvoy(ctx, addr, url, "")
		case guardAsked:
			return r.startAsked(ctx, addr, admin, url, func(listen string) string { return askedConfig(listen, admin) })
		default:
			return startRole(r.test, role{Kind: "proxy", Procs: 1, Upstream: url, Guard: Guard{Name: guard}})
		}
		flags := []string{"--upstream", url, "--listen", addr, "--admin", admin}
		if guard == guardFixed {
			n, _ := law.best()
			flags = append(flags, "--limit", strconv.Itoa(n))
		}
		return startWeir(ctx, r.test, r.plan.Weir, addr, admin, "", flags...)
	})
}

// before starts a backend, and what start starts before it. A nested backend calls itself by way
// of that.
func (r *runner) before(law Law, guard string, nested bool, start func(addr, admin, url string) (*process, error)) (*lane, error) {
	addr, admin, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	backend := role{Kind: "backend", Procs: 1, Law: law}
	if nested {
		backend.Nested = "http://" + addr
	}
	app, err := startRole(r.rest, backend)
	if err != nil {
		return nil, err
	}
	front, err := start(addr, admin, "http://"+app.addr)
	if err != nil {
		app.stop()
		return nil, err
	}
	return &lane{guard: guard, front: front, app: app}, nil
}

// yieldCost measures what the yield costs a handler that has nothing to compute:
// CPU time of a request, with a closed loop of 32 clients.
func (r *runner) yieldCost(ctx context.Context, round int) error {
	fixed := Guard{Name: "gate", Kind: "fixed", Limit: 64}
	without := fixed
	without.Name, without.NoYield = "gate without yield", true
	for _, g := range kit.Turned([]Guard{{Name: guardNone, Kind: "none"}, fixed, without}, round) {
		if r.dry {
			r.spent += r.plan.turn(helloRunUp+helloTurn) + startUp
			continue
		}
		var one closedRun
		_, err := r.repeat(func() (why string, err error) {
			server := role{Kind: "server", Procs: 1, Law: lawB2, Guard: g}
			one, err = r.closedOn(ctx, server, 32, 0, r.plan.turn(helloRunUp), r.plan.turn(helloTurn))
			return void(0, one.foreign), err
		})
		if err != nil {
			return err
		}
		y := yieldCost{Guard: g.Name, Round: round, RequestUS: us(one.cpu()), Rate: float64(one.answers) / one.seconds(), Foreign: one.foreign}
		r.results.Yield = append(r.results.Yield, y)
		fmt.Fprintf(r.log, "hello, %s: %.2f µs of CPU a request, %.0f/s; others used %.0f %%\n", y.Guard, y.RequestUS, y.Rate, 100*y.Foreign)
	}
	return nil
}

// The lengths of a run of hello, at pace 1.
const (
	helloRunUp = 300 * time.Millisecond
	helloTurn  = 1500 * time.Millisecond
)
