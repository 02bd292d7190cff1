package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/chart"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirpgx"
)

// The storm: many clients whose patience is far too short for what they ask.
const (
	stormSlots   = 8
	stormClients = 64
	patience     = 60 * time.Millisecond
	every        = 10 * time.Millisecond // between two looks at the server
)

var stormStatements = []struct{ name, text string }{
	{"waits", `/* storm */ select pg_sleep(2)`},
	{"computes", `/* storm */ select count(*) from generate_series(1, 20000000)`},
}

var handlers = []struct {
	name, style string
	set         func(*pgx.ConnConfig)
}{
	{"pgx's own: close the connection, cancel in the background", "aimd", func(*pgx.ConnConfig) {}},
	{"weirpgx's: cancel, and wait until the server has stopped", "default", weirpgx.CancelRequests},
}

// storms counts active backends under the storm, for each statement and handler.
func (b *bench) storms(ctx context.Context, url string) error {
	table := kit.Table{{"statement", "handler", "slots", "active: median", "p99", "most", "connections made"}}
	for _, s := range stormStatements {
		d := &chart.Drawing{Title: "Contexts that end while the server " + s.name, Axis: "time, s", To: b.window.Seconds()}
		d.About = fmt.Sprintf("%d clients, a patience of %v, %d slots; active backends every %v", stormClients, patience, stormSlots, every)
		panel := chart.Panel{Title: "active backends"}
		for _, h := range handlers {
			active, made, err := b.storm1(ctx, url, s.text, h.set)
			if err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			panel.Curves = append(panel.Curves, chart.Curve{Values: active, Style: h.style})
			d.Legend = append(d.Legend, chart.Legend{Style: h.style, Text: h.name})
			sorted := slices.Sorted(slices.Values(active))
			at := func(q float64) string { return fmt.Sprint(sorted[int(q*float64(len(sorted)-1))]) }
			table = append(table, []string{s.name, h.name, fmt.Sprint(stormSlots), at(0.5), at(0.99), at(1), fmt.Sprint(made)})
		}
		d.Panels = []chart.Panel{panel}
		if b.plots != "" {
			if err := write(b.plots, "sql-storm-"+s.name+".svg", d.SVG()); err != nil {
				return err
			}
		}
	}
	fmt.Fprint(b.out, table.Plain(kit.Rule(len(table[0]))))
	return nil
}

// storm1 runs one storm, and returns how many backends were active at each look.
func (b *bench) storm1(ctx context.Context, url, statement string, set func(*pgx.ConnConfig)) (active []float64, made int64, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, 0, err
	}
	cfg.MaxConns = stormClients
	set(cfg.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, 0, err
	}
	defer pool.Close()
	gate, err := limit.New(limit.Config{Name: "storm", Limit: stormSlots, Queue: limit.Queue{Order: limit.FIFO}})
	if err != nil {
		return nil, 0, err
	}
	defer gate.Close()
	watcher, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, 0, err
	}
	defer watcher.Close(context.WithoutCancel(ctx))
	db := weirpgx.New(pool, gate)
	timed, cancel := context.WithTimeout(ctx, b.window)
	defer cancel()
	var storm sync.WaitGroup
	storm.Go(func() {
		_ = loadgen.Closed(timed, stormClients, func(int) (func() error, func()) {
			return func() error {
				ctx, cancel := context.WithTimeout(timed, patience)
				defer cancel()
				_, _ = db.Exec(ctx, statement) // whatever comes of it
				return nil
			}, func() {}
		})
	})
	defer storm.Wait()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		var n float64
		if err := watcher.QueryRow(ctx, `select count(*) from pg_stat_activity where state = 'active' and query like '/* storm */%'`).Scan(&n); err != nil {
			return nil, 0, err
		}
		active = append(active, n)
		select {
		case <-timed.Done():
			return active, pool.Stat().NewConnsCount(), ctx.Err()
		case <-ticker.C:
		}
	}
}
