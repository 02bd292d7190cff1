package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Measure runs the plan. It returns what there is, also with an error.
func Measure(ctx context.Context, plan Plan, log io.Writer) (*Results, error) {
	if err := plan.check(); err != nil {
		return nil, err
	}
	r := &runner{plan: plan, log: log, results: newResults(plan)}
	var err error
	if r.test, r.rest, err = cores(); err != nil {
		return nil, err
	}
	if err := pinSelf(r.rest); err != nil {
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
			if r.plan.wants(r.plan.Laws, s.law.Name) {
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
			if r.plan.wants(r.plan.Laws, u.law.Name) {
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
	for _, row := range serverRows() {
		if !s.has(row.ID) || !r.plan.wants(r.plan.Rows, row.ID) {
			continue
		}
		t := trial{
			row: &row, law: &s.law, backend: s.name, unit: r.plan.turn(s.unit), patience: s.patience,
			capacity: c.rate, part: partServer, round: round, procs: s.procs,
		}
		if row.Impatient {
			t.patience = time.Duration(2.5 * float64(c.clients) / c.rate * float64(time.Second))
		}
		if s.law.Kind == "burn" {
			t.bound = c.bound
		}
		for _, g := range turned(s.guards(row.ID, c.clients), round) {
			if !r.plan.wants(r.plan.Guards, g.Name) {
				continue
			}
			start := func() ([]*lane, error) {
				p, err := startRole(r.test, role{Kind: "server", Procs: s.procs, Law: s.law, Guard: g})
				if err != nil {
					return nil, err
				}
				return []*lane{{guard: g.Name, front: p, app: p}}, nil
			}
			if err := r.try(ctx, &t, start); err != nil {
				return err
			}
		}
	}
	return nil
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// gateway runs one round of part two on one backend.
func (r *runner) gateway(ctx context.Context, u upstream, round int) error {
	_, rate := u.law.best()
	for _, row := range gatewayRows() {
		if !r.plan.wants(u.rows, row.ID) || !r.plan.wants(r.plan.Rows, row.ID) {
			continue
		}
		t := trial{
			row: &row, law: &u.law, backend: u.law.Name, unit: r.plan.turn(u.unit), patience: u.patience(row.Impatient),
			capacity: rate, part: partGateway, round: round, procs: 1,
		}
		guards := turned(r.plan.chosen(proxies(row.ID)), round)
		groups := [][]string{guards}
		if row.peak()*rate*float64(len(guards)) > sideBySide {
			groups = nil
			for _, g := range guards {
				groups = append(groups, []string{g})
			}
		}
		for _, group := range groups {
			if err := r.try(ctx, &t, func() ([]*lane, error) { return r.lanes(ctx, u.law, group) }); err != nil {
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
				err = errors.Join(err, started.stop())
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (r *runner) proxied(ctx context.Context, law Law, guard string) (*lane, error) {
	app, err := startRole(r.rest, role{Kind: "backend", Procs: 1, Law: law})
	if err != nil {
		return nil, err
	}
	url := "http://" + app.addr
	var front *process
	switch guard {
	case guardWeir:
		front, err = startGateway(ctx, r.test, r.plan.Weir, url)
	case guardFixed:
		n, _ := law.best()
		front, err = startGateway(ctx, r.test, r.plan.Weir, url, "--limit", strconv.Itoa(n))
	default:
		front, err = startRole(r.test, role{Kind: "proxy", Procs: 1, Upstream: url, Guard: Guard{Name: guard}})
	}
	if err != nil {
		return nil, errors.Join(err, app.stop())
	}
	return &lane{guard: guard, front: front, app: app}, nil
}

// yieldCost measures what the yield costs a handler that has nothing to compute:
// CPU time of a request, with a closed loop of 32 clients.
func (r *runner) yieldCost(ctx context.Context, round int) error {
	fixed := Guard{Name: "gate", Kind: "fixed", Limit: 64}
	without := fixed
	without.Name, without.NoYield = "gate without yield", true
	for _, g := range turned([]Guard{{Name: guardNone, Kind: "none"}, fixed, without}, round) {
		one, err := r.hello(ctx, g)
		for attempt := 1; err == nil && one.foreign > ForeignAbove && attempt <= r.plan.Retries; attempt++ {
			one, err = r.hello(ctx, g)
		}
		if err != nil {
			return err
		}
		y := YieldCost{Guard: g.Name, Round: round, RequestUS: us(one.cpu()), Rate: float64(one.answers) / one.seconds(), Foreign: one.foreign}
		r.results.Yield = append(r.results.Yield, y)
		fmt.Fprintf(r.log, "hello, %s: %.2f µs of CPU a request, %.0f/s; others used %.0f %%\n", y.Guard, y.RequestUS, y.Rate, 100*y.Foreign)
	}
	return nil
}

func (r *runner) hello(ctx context.Context, g Guard) (c closedRun, err error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: 1, Law: lawB2, Guard: g})
	if err != nil {
		return c, err
	}
	defer p.stop()
	return r.closed(ctx, p, 32, 0, r.plan.turn(300*time.Millisecond), r.plan.turn(1500*time.Millisecond))
}
