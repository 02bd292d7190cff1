package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/chart"
	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Of an overload: databases, how much more comes than can be applied, and how long clients wait.
const (
	overloadDatabases  = 50
	overloadFactor     = 3
	overloadPatience   = 5 * time.Second
	overloadProcessors = 2
)

// overload is what came out with one way of setting the slots.
type overload struct {
	controller string
	capacity   float64 // batches a second
	seconds    int
	tallies    []loadgen.Tally
	seen       []watched
}

// overloads offers the same load with each controller, each on a broker and a store of its own. There is one
// API server: each has slots of its own for every database.
func (o *options) overloads(ctx context.Context, controllers ...string) (all []*overload, err error) {
	capacity := overloadProcessors / o.work.Seconds()
	fmt.Fprintf(o.out, "%d databases; %d processors do %.0f batches a second together, and %.0f are offered for %v.\n\n", overloadDatabases, overloadProcessors, capacity, overloadFactor*capacity, o.during)
	fmt.Fprintf(o.out, "%-6s %10s %10s %10s %10s %12s %12s %10s\n", "", "lag", "most", "at the end", "applied", "of capacity", "p99, s", "of lag/cap")
	for _, controller := range controllers {
		r, err := o.overload(ctx, controller, capacity)
		if err != nil {
			return all, fmt.Errorf("%s: %w", controller, err)
		}
		all = append(all, r)
		r.print(o)
	}
	if o.plot == "" {
		return all, nil
	}
	if err := os.MkdirAll(filepath.Dir(o.plot), 0o755); err != nil {
		return all, err
	}
	return all, os.WriteFile(o.plot, []byte(drawOverloads(all)), 0o644)
}

func (o *options) overload(ctx context.Context, controller string, capacity float64) (_ *overload, err error) {
	one := *o
	one.admission.controller = controller
	one.fresh = true
	if o.real {
		broker, err := startKafka(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, broker.Stop()) }()
		one.kafka = broker.Addr
	}
	r, err := openRig(ctx, one, 1, overloadProcessors)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	send, closeIdle := r.clients(evenly(overloadDatabases, o.partitions), overloadPatience)
	defer closeIdle()
	meter, err := loadgen.Load{
		Phases:   []loadgen.Phase{{Rate: overloadFactor * capacity, For: o.during}},
		Patience: overloadPatience + time.Second, Seed: 1, Send: send,
	}.Start(ctx)
	if err != nil {
		return nil, err
	}
	load, cancel := context.WithTimeout(ctx, o.during)
	defer cancel()
	x := &overload{controller: controller, capacity: capacity, seconds: meter.Seconds()}
	r.watch(load, meter.Done(), func(w watched) { x.seen = append(x.seen, w) })
	<-meter.Done()
	for i := range x.seconds {
		x.tallies = append(x.tallies, meter.Second(i))
	}
	return x, ctx.Err()
}

// These are below the ports that the system gives to clients: a process that is started again has its port back.
var brokerPorts = freeport.Range{First: 23_000, Size: 300}

func startKafka(ctx context.Context, settings ...string) (*kafka.Server, error) {
	jars, err := kafka.Find()
	if err != nil {
		return nil, err
	}
	return kafka.Start(ctx, kafka.Config{Jars: jars, Ports: &brokerPorts, Settings: settings})
}

// secondHalf is what was seen in it.
func (x *overload) secondHalf() []watched { return x.seen[len(x.seen)/2:] }

// lag is the mean of the second half, the most in it, and the last. What nobody has seen is no number.
func (x *overload) lag() (mean, most, last float64) {
	if len(x.secondHalf()) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	for _, w := range x.secondHalf() {
		mean += w.lag / float64(len(x.secondHalf()))
		most, last = max(most, w.lag), w.lag
	}
	return mean, most, last
}

// applied is how many batches a second were, in the second half.
func (x *overload) applied() float64 {
	s := x.secondHalf()
	if len(s) < 2 {
		return math.NaN()
	}
	first, last := s[0], s[len(s)-1]
	return (last.applied - first.applied) / (last.at - first.at).Seconds()
}

// p99 is that of what was admitted in the second half. Clients that gave up count with their patience.
func (x *overload) p99() time.Duration {
	var all hist.Histogram
	for i := range x.tallies[len(x.tallies)/2:] {
		all.Add(&x.tallies[len(x.tallies)/2+i].Admitted)
	}
	return all.Quantile(0.99)
}

// void reports whether the load generator fell behind, so that the figures mean nothing.
func (x *overload) void() (share float64, void bool) {
	var all loadgen.Tally
	for i := range x.tallies {
		all.Add(&x.tallies[i])
	}
	return all.Behind(), all.Void()
}

func (x *overload) print(o *options) {
	mean, most, last := x.lag()
	fmt.Fprintf(o.out, "%-6s %10.0f %10.0f %10.0f %10.0f %12.3f %12.2f %10.2f\n", x.controller, mean, most, last, x.applied(), x.applied()/x.capacity, x.p99().Seconds(), x.p99().Seconds()/(mean/x.capacity))
	switch x.controller {
	case byLine:
		at := o.admission.fixedPoint(overloadDatabases)
		fmt.Fprintf(o.out, "       the line and what it makes of the load meet at a lag of %.0f: measured %.2f of it\n", at, mean/at)
	case byDrain:
		fmt.Fprintf(o.out, "       the target is %.0f: the most is %.2f of it\n", o.admission.target, most/o.admission.target)
	case byNone:
		grown := (overloadFactor - 1) * x.capacity * float64(x.seconds)
		fmt.Fprintf(o.out, "       what is offered beyond the capacity is %.0f in all: the lag at the end is %.2f of it\n", grown, last/grown)
	}
	if share, void := x.void(); void {
		fmt.Fprintf(o.out, "       VOID: %.0f %% of the requests left late or not at all; run it on a machine that does less\n", 100*share)
	}
}

// fixedPoint is the lag at which n gates that are always full stay, as control.LagMap has it.
func (cfg admissionConfig) fixedPoint(n float64) float64 {
	k := float64(cfg.max-cfg.min) / (cfg.critical - cfg.target)
	return n * (float64(cfg.min) + k*cfg.critical) / (1 + n*k)
}

// drawOverloads draws them beside each other.
func drawOverloads(all []*overload) string {
	styles := map[string]string{byLine: "default", byDrain: "oracle", byNone: "aimd"} // blue, green, orange
	names := map[string]string{byLine: "slots by the lag", byDrain: "slots by what was applied", byNone: "no admission control"}
	x := all[0]
	d := &chart.Drawing{Title: "A consumer that falls behind", Axis: "time, s", To: float64(x.seconds)}
	d.About = fmt.Sprintf("%.0f batches a second are offered; the processors apply %.0f", overloadFactor*x.capacity, x.capacity)
	flow := chart.Panel{Title: "offered (steps) and applied batches, each second"}
	lag := chart.Panel{Title: "lag, messages", Log: true}
	slots := chart.Panel{Title: "slots of each database"}
	p99 := chart.Panel{Title: "p99 of the admitted", Unit: " ms", Log: true}
	for _, x := range all {
		style := styles[x.controller]
		offered, late := make([]float64, x.seconds), make([]float64, x.seconds)
		applied, behind, capacity := unseen(x.seconds), unseen(x.seconds), unseen(x.seconds)
		for i := range x.tallies {
			offered[i] = float64(x.tallies[i].Offered)
			late[i] = float64(x.tallies[i].Admitted.Quantile(0.99)) / float64(time.Millisecond)
		}
		for i, w := range x.seen {
			at := max(0, min(int(w.at/time.Second), x.seconds)-1) // a first look may come a moment before its second is over
			if behind[at], capacity[at] = w.lag, w.slots; i > 0 {
				applied[at] = (w.applied - x.seen[i-1].applied) / (w.at - x.seen[i-1].at).Seconds()
			}
		}
		flow.Curves = append(flow.Curves, chart.Curve{Values: offered, Style: style, Step: true}, chart.Curve{Values: applied, Style: style})
		lag.Curves = append(lag.Curves, chart.Curve{Values: behind, Style: style})
		p99.Curves = append(p99.Curves, chart.Curve{Values: late, Style: style})
		if x.controller != byNone {
			slots.Curves = append(slots.Curves, chart.Curve{Values: capacity, Style: style, Step: true})
		}
		d.Legend = append(d.Legend, chart.Legend{Style: style, Text: names[x.controller]})
	}
	d.Panels = slices.DeleteFunc([]chart.Panel{flow, lag, slots, p99}, func(p chart.Panel) bool { return len(p.Curves) == 0 })
	return d.SVG()
}

// unseen is a curve of so many seconds at which nobody has looked: they are left out, which a 0 would not be.
func unseen(seconds int) []float64 {
	return slices.Repeat([]float64{math.NaN()}, seconds)
}
