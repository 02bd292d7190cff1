package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/chart"
	"github.com/weir-go/weir/internal/testbed/cores"
	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/postgres"
)

// accounts is the number of accounts in the table.
const accounts = 50_000

var ports = freeport.Range{First: 22_500, Size: 500}

// startApart starts the database on a core of its own, if the machine has two. This program runs on the other.
// On shared cores, more active backends would get a larger share of the processor, and so a larger throughput.
func startApart(ctx context.Context, program string) (db *postgres.Server, err error) {
	own, rest, err := cores.Pair()
	if err != nil || own == rest {
		return startDatabase(ctx, program)
	}
	if err := cores.PinSelf(rest); err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(1) // two threads on one core would wait for each other's time slices
	err = cores.Pinned(own, func() (err error) {
		db, err = startDatabase(ctx, program)
		return err
	})
	if err != nil && db != nil {
		err = errors.Join(err, db.Stop())
	}
	return db, err
}

// startDatabase makes a cluster and fills it. It runs at a lower priority than the rest, and gets the processor
// time that is left.
func startDatabase(ctx context.Context, program string) (*postgres.Server, error) {
	db, err := postgres.Start(ctx, postgres.Config{Program: program, Ports: &ports, Nice: 5, Settings: []string{"max_connections=400", "shared_buffers=64MB", "jit=off", "max_parallel_workers_per_gather=0"}})
	if err != nil {
		return nil, err
	}
	c, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return nil, errors.Join(err, db.Stop())
	}
	defer c.Close(context.WithoutCancel(ctx))
	_, err = c.Exec(ctx, fmt.Sprintf(`create table accounts with (fillfactor = 70) as select id, 1000 as balance from generate_series(1, %d) id;
		alter table accounts add primary key (id); analyze accounts`, accounts))
	if err != nil {
		return nil, errors.Join(err, db.Stop())
	}
	return db, nil
}

// plan has the duration of each phase. The load is below the capacity of the database, then twice the capacity,
// then below again.
type plan struct{ calibrate, calm, wave, after time.Duration }

var (
	fullPlan  = plan{calibrate: 4 * time.Second, calm: 30 * time.Second, wave: 40 * time.Second, after: 20 * time.Second}
	quickPlan = plan{calibrate: 200 * time.Millisecond, calm: time.Second, wave: time.Second, after: time.Second}
)

func (p plan) seconds() int { return int((p.calm + p.wave + p.after) / time.Second) }

// patience is how long a client waits.
const patience = 500 * time.Millisecond

// result is the result under one controller, second by second.
type result struct {
	controller string
	tallies    []loadgen.Tally
	read       []float64 // tickets, at the end of the second
	write      []float64
	active     []float64 // active backends, the mean of the readings
}

// compare sends each controller the same load.
func (o *options) compare(ctx context.Context, database string) (results []*result, err error) {
	p := fullPlan
	if o.quick {
		p = quickPlan
		fmt.Fprintln(o.out, "-quick: these figures mean nothing. They only show that everything runs.")
	}
	capacity, err := o.calibrate(ctx, database, p)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.out, "16 clients get %.0f commands a second. The load is 0.6 of that for %v, 2.0 for %v, 0.6 for %v. Clients wait for %v.\n\n", capacity, p.calm, p.wave, p.after, patience)
	fmt.Fprintf(o.out, "%-8s | calm: in time | wave: in time  in time a s  refused | after: in time | tickets at the end\n", "")
	for _, controller := range o.controllers {
		r, err := play(ctx, database, controller, o.ingress, capacity, p)
		if err != nil {
			return results, fmt.Errorf("%s: %w", controller, err)
		}
		results = append(results, r)
		r.print(o.out, p)
	}
	if o.plot == "" {
		return results, nil
	}
	if err := os.MkdirAll(filepath.Dir(o.plot), 0o755); err != nil {
		return results, err
	}
	return results, os.WriteFile(o.plot, []byte(draw(results, p)), 0o644)
}

// calibrate measures how many commands a second a few clients complete. Each client sends its next command as
// soon as it has its answer.
func (o *options) calibrate(ctx context.Context, database string, p plan) (float64, error) {
	const clients = 16
	n, err := startNode(ctx, database, "127.0.0.1:0", fixed, o.ingress)
	if err != nil {
		return 0, err
	}
	defer n.stop()
	send, closeIdle := client(n.addr)
	defer closeIdle()
	timed, cancel := context.WithTimeout(ctx, p.calibrate)
	defer cancel()
	var done atomic.Int64
	begun := time.Now()
	err = loadgen.Closed(timed, clients, func(int) (func() error, func()) {
		return func() error {
			if send(ctx) == loadgen.OK {
				done.Add(1)
			}
			return ctx.Err()
		}, func() {}
	})
	if err := errors.Join(err, ctx.Err()); err != nil {
		return 0, err
	}
	if done.Load() == 0 {
		return 0, errors.New("no command was in time, although nothing else ran; use a less busy machine")
	}
	return float64(done.Load()) / time.Since(begun).Seconds(), nil
}

// client returns a function that sends one command of the mix: half of the commands read many accounts, some
// read one, some write. A command must cost the database far more than this process. Otherwise one machine
// could not both send and serve twice the load.
func client(addr string) (send func(context.Context) loadgen.Answer, closeIdle func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1024}
	to := &http.Client{Transport: transport}
	return func(ctx context.Context) loadgen.Answer {
		name, args := "find", url.Values{"id": {account()}, "maxTimeMS": {strconv.FormatInt(patience.Milliseconds(), 10)}}
		switch draw := rand.IntN(100); {
		case draw < 50:
			name = "aggregate"
		case draw < 65:
			name = "update"
		case draw < 70:
			name = "transfer"
			for args.Set("to", account()); args.Get("to") == args.Get("id"); { // which would be a mistake
				args.Set("to", account())
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/"+name, strings.NewReader(args.Encode()))
		if err != nil {
			return loadgen.Failed
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := to.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return loadgen.GaveUp
			}
			return loadgen.Failed
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
		switch resp.StatusCode {
		case http.StatusOK:
			return loadgen.OK
		case http.StatusServiceUnavailable:
			return loadgen.Refused
		case http.StatusGatewayTimeout:
			return loadgen.GaveUp
		}
		return loadgen.Failed
	}, transport.CloseIdleConnections
}

func account() string { return strconv.Itoa(1 + rand.IntN(accounts)) }

// play sends one load to a server of its own. Meanwhile it watches the server as an operator would.
func play(ctx context.Context, database, controller string, ingress int64, capacity float64, p plan) (*result, error) {
	n, err := startNode(ctx, database, "127.0.0.1:0", controller, ingress)
	if err != nil {
		return nil, err
	}
	defer n.stop()
	send, closeIdle := client(n.addr)
	defer closeIdle()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	low, high := min(0.6*capacity, loadgen.MaxRate), min(2*capacity, loadgen.MaxRate)
	phases := []loadgen.Phase{{Rate: low, For: p.calm}, {Rate: high, For: p.wave}}
	if p.after > 0 {
		phases = append(phases, loadgen.Phase{Rate: low, For: p.after})
	}
	meter, err := loadgen.Load{Phases: phases, Patience: patience, Seed: 1, Send: send}.Start(ctx)
	if err != nil {
		return nil, err
	}
	r := &result{controller: controller}
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := r.watch(ctx, n, p, meter.Done()); err != nil {
			cancel(err)
		}
	})
	<-meter.Done()
	watch.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	for i := range p.seconds() {
		r.tallies = append(r.tallies, meter.Second(i))
	}
	return r, nil
}

// watch asks for serverStatus ten times a second. The command is exempt, so the load cannot keep it out.
func (r *result) watch(ctx context.Context, n *node, p plan, done <-chan struct{}) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	r.read, r.write, r.active = make([]float64, p.seconds()), make([]float64, p.seconds()), make([]float64, p.seconds())
	begun, seen := time.Now(), make([]float64, p.seconds())
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		answer, err := n.do(ctx, n.db, "serverStatus", nil)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serverStatus: %w", err)
		}
		s := answer.(status)
		if i := int(time.Since(begun) / time.Second); i < p.seconds() {
			r.read[i], r.write[i] = float64(s.Read), float64(s.Write)
			seen[i]++
			r.active[i] += (float64(s.Active) - r.active[i]) / seen[i]
		}
	}
}

// between sums the tallies of an interval.
func (r *result) between(from, to time.Duration) (t loadgen.Tally) {
	for i := int(from / time.Second); i < int(to/time.Second); i++ {
		t.Add(&r.tallies[i])
	}
	return t
}

func (r *result) print(out io.Writer, p plan) {
	inTime := func(t loadgen.Tally) float64 { return float64(t.OK) / float64(max(1, t.Offered)) }
	calm, wave, after := r.between(0, p.calm), r.between(p.calm, p.calm+p.wave), r.between(p.calm+p.wave, p.calm+p.wave+p.after)
	last := len(r.read) - 1
	tickets := fmt.Sprintf("%.0f for reads, %.0f for writes", r.read[last], r.write[last])
	if r.write[last] == 0 {
		tickets = fmt.Sprintf("%.0f for both", r.read[last])
	}
	fmt.Fprintf(out, "%-8s | %13.3f | %13.3f %13.0f %8d | %14.3f | %s\n", r.controller, inTime(calm), inTime(wave), float64(wave.OK)/p.wave.Seconds(), wave.Refused, inTime(after), tickets)
	if calm.Void() || wave.Void() || after.Void() {
		fmt.Fprintf(out, "%-8s | this machine was too busy to send the load on time: %.1f %%, %.1f %% and %.1f %% of the commands left late or not at all; at most %.0f %% are acceptable\n", "",
			100*calm.Behind(), 100*wave.Behind(), 100*after.Behind(), 100*loadgen.VoidAbove)
	}
}

// draw draws all results in one chart.
func draw(results []*result, p plan) string {
	styles := map[string]string{fixed: "oracle", probing: "aimd", byDefault: "default"} // green, orange, blue
	throughput := chart.Panel{Title: "commands answered in time, each second"}
	tickets := chart.Panel{Title: "execution tickets, of both pools together"}
	active := chart.Panel{Title: "active backends of PostgreSQL"}
	d := &chart.Drawing{Title: "Execution control by three controllers", Axis: "time, s", To: float64(p.seconds())}
	d.About = fmt.Sprintf("from %.0f s to %.0f s twice the load that the database can serve, otherwise 0.6 of it", p.calm.Seconds(), (p.calm + p.wave).Seconds())
	for _, r := range results {
		style := styles[r.controller]
		answered, sum := make([]float64, len(r.tallies)), make([]float64, len(r.read))
		for i := range r.tallies {
			answered[i], sum[i] = float64(r.tallies[i].OK), r.read[i]+r.write[i]
		}
		throughput.Curves = append(throughput.Curves, chart.Curve{Values: answered, Style: style})
		tickets.Curves = append(tickets.Curves, chart.Curve{Values: sum, Style: style, Step: true})
		active.Curves = append(active.Curves, chart.Curve{Values: r.active, Style: style})
		d.Legend = append(d.Legend, chart.Legend{Style: style, Text: r.controller})
	}
	d.Panels = []chart.Panel{throughput, tickets, active}
	return d.SVG()
}
