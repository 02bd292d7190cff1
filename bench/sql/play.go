package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/chart"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirpgx"
	"github.com/weir-go/weir/weirsql"
)

// subject is a limit, or a controller that finds it.
type subject struct {
	name           string
	size           int64 // fixed; 0: found
	controllers    func() (read, write control.Controller, err error)
	closed, opened figures
	seconds, void  int // of the open load: that would count, and that mean nothing
}

// tooVoid is the share of void seconds from which the others do not count, either.
const tooVoid = 0.1

// sent reports whether the open load was sent as it should have been.
func (s *subject) sent() bool { return float64(s.void) < tooVoid*float64(s.seconds) }

// figures are those of one load, one for each round.
type figures struct{ useful, failed, size []float64 }

func (f *figures) add(one figure) {
	f.useful, f.failed, f.size = append(f.useful, one.useful), append(f.failed, one.failed), append(f.size, one.size)
}

// figure is what came of one run: in a second, and the mean size.
type figure struct{ useful, failed, size float64 }

// subjects are the fixed sizes in ascending order, and the controllers.
func (b *bench) subjects() []*subject {
	var all []*subject
	for _, n := range b.sizes {
		all = append(all, &subject{name: fmt.Sprint(n), size: n, controllers: func() (control.Controller, control.Controller, error) {
			return control.Fixed(n), nil, nil
		}})
	}
	for _, s := range found() {
		if b.controllers.Has(s.name) {
			all = append(all, s)
		}
	}
	return all
}

// found are the sizes that controllers find, each from two starts.
func found() (all []*subject) {
	for _, start := range []int64{4, 128} {
		all = append(all,
			&subject{name: fmt.Sprintf("default from %d", start), controllers: func() (control.Controller, control.Controller, error) {
				c, err := control.NewBelief(control.BeliefConfig{Initial: start, Min: 1, Max: most}) // bounds as weirsql.Open sets them
				return c, nil, err
			}},
			&subject{name: fmt.Sprintf("Probe from %d", start), controllers: func() (control.Controller, control.Controller, error) {
				c, err := control.NewProbe(control.ProbeConfig{Initial: start})
				return c, nil, err
			}},
			&subject{name: fmt.Sprintf("ProbePair from %d", start), controllers: func() (control.Controller, control.Controller, error) {
				c, err := control.NewProbePair(control.ProbeConfig{Initial: start})
				if err != nil {
					return nil, nil, err
				}
				return c.Read(), c.Write(), nil
			}})
	}
	return all
}

// gates are what stands before the pool: a limiter, or one for reads and one for writes.
type gates struct{ read, write *limit.Limiter }

func (s *subject) open(queue limit.Queue) (*gates, error) {
	read, write, err := s.controllers()
	if err != nil {
		return nil, err
	}
	g := &gates{}
	if g.read, err = limit.New(limit.Config{Name: s.name, Controller: read, Queue: queue}); err != nil || write == nil {
		return g, err
	}
	g.write, err = limit.New(limit.Config{Name: s.name, Controller: write, Queue: queue})
	return g, err
}

// Admit implements [weir.Gate].
func (g *gates) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if w.Write && g.write != nil {
		return g.write.Admit(ctx, w)
	}
	return g.read.Admit(ctx, w)
}

// size is the limit of what work has gone through. A workload that only reads, or only writes, leaves the other
// limiter where it began, and that one lets nothing into the database.
func (g *gates) size() float64 {
	read := g.read.Snapshot()
	if g.write == nil {
		return float64(read.Limit)
	}
	switch write := g.write.Snapshot(); {
	case write.Admitted == 0:
		return float64(read.Limit)
	case read.Admitted == 0:
		return float64(write.Limit)
	default:
		return float64(read.Limit + write.Limit)
	}
}

func (g *gates) close() {
	g.read.Close()
	if g.write != nil {
		g.write.Close()
	}
}

// lasts is how long a subject runs. A fixed size has nothing to find.
func (b *bench) lasts(s *subject) time.Duration {
	if s.size > 0 {
		return min(b.length, b.window+(b.window/3).Round(time.Second))
	}
	return b.length
}

// watch returns the mean size over the window, which ends with the run.
func (b *bench) watch(ctx context.Context, g *gates, lasts time.Duration) func() float64 {
	begun, done := time.Now(), make(chan struct{})
	var sum, n float64
	go func() {
		defer close(done)
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if at := time.Since(begun); at >= lasts-b.window && at < lasts {
				sum, n = sum+g.size(), n+1
			}
		}
	}()
	return func() float64 {
		<-done
		return sum / max(1, n)
	}
}

// alone returns the p95 of a lone client.
func (b *bench) alone(ctx context.Context, pool *pgxpool.Pool, w *workload) (time.Duration, error) {
	timed, cancel := context.WithTimeout(ctx, max(time.Second, b.window/6))
	defer cancel()
	db := weirpgx.New(pool, weir.All())
	var took hist.Histogram
	for timed.Err() == nil {
		at := time.Now()
		if err := w.work(ctx, db); err != nil {
			return 0, err
		}
		took.Record(time.Since(at))
	}
	return took.Quantile(0.95), nil
}

// connect gives a turn connections of its own, before anything is measured. A cancel of the turn before may come after all,
// and would stop a statement of this one.
func (s *subject) connect(ctx context.Context, pool *pgxpool.Pool) error {
	pool.Reset()
	n := s.size
	if n == 0 {
		n = int64(pool.Config().MaxConns)
	}
	for range n {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer c.Release()
	}
	return nil
}

// closed runs clients that each wait for their answer. They wait in order and for as long as it
// takes, so the load is the same whatever is admitted.
func (b *bench) closed(ctx context.Context, pool *pgxpool.Pool, w *workload, s *subject) (f figure, err error) {
	if err := s.connect(ctx, pool); err != nil {
		return f, err
	}
	g, err := s.open(limit.Queue{Len: b.clients, MaxWait: -1, Order: limit.FIFO})
	if err != nil {
		return f, err
	}
	defer g.close()
	lasts := b.lasts(s)
	timed, cancel := context.WithCancel(ctx) // and no deadline: the gate would refuse at once what waits longer than the run lasts
	defer cancel()
	defer time.AfterFunc(lasts, cancel).Stop()
	size := b.watch(timed, g, lasts)
	begun := time.Now()
	var useful, failed atomic.Int64
	db := weirpgx.New(pool, g)
	err = loadgen.Closed(timed, b.clients, func(int) (func() error, func()) {
		return func() error {
			err := w.work(timed, db)
			switch at := time.Since(begun); {
			case at < lasts-b.window || timed.Err() != nil:
			case err == nil:
				useful.Add(1)
			default:
				failed.Add(1)
			}
			return unexpected(timed, err)
		}, func() {}
	})
	seconds := b.window.Seconds()
	return figure{float64(useful.Load()) / seconds, float64(failed.Load()) / seconds, size()}, errors.Join(err, ctx.Err())
}

// unexpected returns an error that is no part of the measurement.
func unexpected(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || weir.AsRejection(err) != nil {
		return nil
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) && (state.SQLState() == "40001" || state.SQLState() == "40P01") {
		return nil // transactions that met
	}
	return err
}

// open runs transactions that arrive at random, each with a deadline.
func (b *bench) open(ctx context.Context, pool *pgxpool.Pool, w *workload, s *subject, rate float64, deadline time.Duration) (f figure, err error) {
	if err := s.connect(ctx, pool); err != nil {
		return f, err
	}
	g, err := s.open(limit.Queue{})
	if err != nil {
		return f, err
	}
	defer g.close()
	lasts := b.lasts(s)
	timed, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	size := b.watch(timed, g, lasts)
	db := weirpgx.New(pool, g)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	meter, err := loadgen.Load{
		Phases: []loadgen.Phase{{Rate: rate, For: lasts}}, Patience: deadline, Seed: 1,
		Send: func(ctx context.Context) loadgen.Answer {
			switch err := w.work(ctx, db); {
			case weir.AsRejection(err) != nil:
				return loadgen.Refused
			case ctx.Err() != nil:
				return loadgen.GaveUp
			case err == nil:
				return loadgen.OK
			case weirsql.Classify(ctx, err) == weir.Overload:
				return loadgen.GaveUp
			default:
				if err := unexpected(ctx, err); err != nil {
					fail(err)
				}
				return loadgen.Failed
			}
		},
	}.Start(ctx)
	if err != nil {
		return f, err
	}
	<-meter.Done()
	if err := context.Cause(ctx); err != nil {
		return f, err
	}
	valid := 0.0
	for i := int((lasts - b.window) / time.Second); i < int(lasts/time.Second); i++ {
		t := meter.Second(i)
		if s.seconds++; t.Void() {
			s.void++
			continue
		}
		valid++
		f.useful += float64(t.OK)
		f.failed += float64(t.Failed)
	}
	f.useful, f.failed = f.useful/max(1, valid), f.failed/max(1, valid)
	f.size = size()
	return f, nil
}

// draw writes the sweep of a workload: useful work by size, with each controller at its mean size.
func (b *bench) draw(w *workload, all []*subject) error {
	if b.plots == "" {
		return nil
	}
	d := &chart.Drawing{Title: "Useful work by size: " + w.name, About: w.about, Axis: "size", To: float64(len(b.sizes))}
	for _, n := range b.sizes {
		d.Columns = append(d.Columns, strconv.FormatInt(n, 10))
	}
	for _, load := range []struct {
		title  string
		of     func(*subject) *figures
		counts func(*subject) bool
	}{
		{"closed load: useful, each second", func(s *subject) *figures { return &s.closed }, func(*subject) bool { return true }},
		{"open load: useful, each second", func(s *subject) *figures { return &s.opened }, (*subject).sent},
	} {
		if slices.ContainsFunc(all, func(s *subject) bool { return s.size > 0 && !load.counts(s) }) {
			continue // the table says void, and a sweep has no gaps
		}
		p := chart.Panel{Title: load.title}
		sweep := chart.Curve{Style: "oracle"}
		for _, s := range all {
			f := load.of(s)
			switch {
			case s.size > 0:
				sweep.Values = append(sweep.Values, kit.SpreadOf(f.useful).Median)
			case load.counts(s):
				p.Points = append(p.Points, chart.Point{At: b.column(kit.SpreadOf(f.size).Median), Value: kit.SpreadOf(f.useful).Median, Style: "default", Name: s.name})
			}
		}
		p.Curves = []chart.Curve{sweep}
		d.Panels = append(d.Panels, p)
	}
	d.Legend = []chart.Legend{{Style: "oracle", Text: "fixed sizes"}, {Style: "default", Text: "controllers, each at its mean size"}}
	return write(b.plots, "sql-"+w.name+".svg", d.SVG())
}

// column is where a size lies among the columns of the fixed sizes, whose middles are half a column from their edges.
func (b *bench) column(size float64) float64 {
	i := 1
	for i < len(b.sizes)-1 && float64(b.sizes[i]) < size {
		i++
	}
	if len(b.sizes) < 2 {
		return 0.5
	}
	low, high := float64(b.sizes[i-1]), float64(b.sizes[i])
	return float64(i) - 0.5 + math.Log(size/low)/math.Log(high/low)
}

func write(folder, name, text string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644)
}
