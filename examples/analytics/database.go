package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/postgres"
)

// The table has one row for each customer and day: what the customer's mails brought in.
const (
	days    = 3 * 365
	domains = 20
)

// query is what a caller asks for. What it costs is in proportion to the rows that it reads: from 7
// to all of them.
type query struct {
	First, Customers int    // which customers
	Days             int    // the last so many
	By               string // "" for one number, "day" for a chart, "domain" for a report
}

// ask draws the query of a caller. Ranges of time are as often between a week and a month as between
// a month and four.
func ask(caller string, customers int, random *mathrand.Rand) query {
	some := func(least, most float64) int {
		return int(math.Exp(math.Log(least) + random.Float64()*math.Log(most/least)))
	}
	switch caller {
	case "api":
		return query{First: random.IntN(customers), Customers: 1, Days: some(7, days)}
	case "charts":
		n := some(5, float64(customers)/8)
		return query{First: random.IntN(customers - n), Customers: n, Days: some(30, days), By: "day"}
	}
	return query{First: 0, Customers: customers, Days: days, By: "domain"}
}

var texts = map[string]string{
	"":       `select sum(revenue) from events where customer >= $1 and customer < $2 and day >= $3`,
	"day":    `select day, sum(revenue) from events where customer >= $1 and customer < $2 and day >= $3 group by day`,
	"domain": `select domain, day / 30, sum(revenue), count(*) from events where customer >= $1 and customer < $2 and day >= $3 group by 1, 2`,
}

// answer runs a query and returns how many rows came back.
func answer(ctx context.Context, pool *pgxpool.Pool, q query) (n int64, err error) {
	rows, err := pool.Query(ctx, texts[q.By], q.First, q.First+q.Customers, days-q.Days)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		n++
	}
	return n, rows.Err()
}

// database is a PostgreSQL of our own, with the table in it.
type database struct {
	*postgres.Server
	customers int
}

// startDatabase makes a cluster and fills it. Server and clients share this machine, where each
// should have its own. So the server is nicer than the rest: it takes what they leave.
func startDatabase(ctx context.Context, program string, customers int) (*database, error) {
	server, err := postgres.Start(ctx, postgres.Config{Program: program, Ports: &ports, Nice: 5, Settings: []string{
		"max_connections=100", "jit=off", "max_parallel_workers_per_gather=0", "plan_cache_mode=force_custom_plan", "shared_buffers=128MB", "work_mem=16MB",
	}})
	if err != nil {
		return nil, err
	}
	started(server.Pid())
	db := &database{server, customers}
	if err := db.fill(ctx); err != nil {
		return nil, errors.Join(err, db.Stop())
	}
	return db, nil
}

// fill makes the table, as the days came in for each customer.
func (db *database) fill(ctx context.Context) error {
	c, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	for _, text := range []string{
		fmt.Sprintf(`create unlogged table events as
			select c as customer, d as day, (c * 7 + d) %% %d as domain, (c * 31 + d * 17) %% 1000 as revenue
			from generate_series(0, %d) c, generate_series(0, %d) d`, domains, db.customers-1, days-1),
		`create index on events (customer, day)`,
		`vacuum analyze events`,
	} {
		if _, err := c.Exec(ctx, text); err != nil {
			return fmt.Errorf("PostgreSQL: %w", err)
		}
	}
	return nil
}

// calibrate measures how many queries of each of these callers the database can answer in a second if
// it does nothing else. There are as many clients as processors. It takes the best of three times,
// for on a machine that others use as well, two may be slow.
func (db *database) calibrate(ctx context.Context, each time.Duration, of ...caller) (map[string]float64, error) {
	clients := min(runtime.NumCPU(), 8)
	pool, err := newPool(ctx, db.URL, clients)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	capacity := map[string]float64{}
	for i := range 3 * len(of) {
		c := of[i%len(of)]
		var done atomic.Int64
		begun := time.Now()
		err := loadgen.Closed(ctx, clients, func(i int) (func() error, func()) {
			random := mathrand.New(mathrand.NewPCG(1, uint64(i)))
			return func() error {
				if time.Since(begun) > each {
					return errEnough
				}
				_, err := answer(ctx, pool, ask(c.name, db.customers, random))
				done.Add(1)
				return err
			}, func() {}
		})
		if !errors.Is(err, errEnough) {
			return nil, errors.Join(err, context.Cause(ctx))
		}
		capacity[c.name] = max(capacity[c.name], float64(done.Load())/time.Since(begun).Seconds())
	}
	return capacity, nil
}

var errEnough = errors.New("enough")

// newPool opens connections: as many as a pod's threads share.
func newPool(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = int32(connections), int32(connections)
	return pgxpool.NewWithConfig(ctx, cfg)
}
