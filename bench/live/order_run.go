package live

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// orderRun is one run of a row under a guard.
type orderRun struct {
	row      *orderRow
	lane     *lane
	round    int
	capacity float64
	times    orderTimes

	records [][]Record // by class
	nested  Nested
	foreign float64 // share of the core that others used
}

// run sends the loads of all classes at once.
func (o *orderRun) run(ctx context.Context, core int) error {
	o.records = make([][]Record, len(o.row.classes))
	pid, begun := o.lane.front.cmd.Process.Pid, time.Now()
	all, ours := busy(core), usageOfPID(pid).cpu
	epoch := begun.Add(50 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range o.row.classes {
		wg.Go(func() { o.records[i] = o.send(ctx, i, epoch) })
	}
	wg.Wait()
	ours = usageOfPID(pid).cpu - ours
	o.foreign = max(0, (busy(core)-all-ours).Seconds()/time.Since(begun).Seconds())
	state, err := o.lane.app.ask(command{})
	o.nested = state.Nested
	return err
}

// send is the load of a class. What comes while only some are there comes again
// while all are, with the same work at the same times.
func (o *orderRun) send(ctx context.Context, i int, epoch time.Time) []Record {
	c, t := &o.row.classes[i], &o.times
	seed := uint64(o.round*len(o.row.classes) + i + 1)
	if c.clients > 0 {
		b := batch{addr: o.lane.front.addr, head: c.heads[0], clients: c.clients, patience: orderPatience, mean: o.row.law.Service, seed: seed}
		return b.run(ctx, epoch, t.alone, t.length()-t.alone)
	}
	load := Load{
		Addr: o.lane.front.addr, Heads: c.heads, Capacity: o.capacity, Patience: orderPatience,
		Phases: []Phase{{Load: c.alone, For: t.alone}, {Load: c.load, For: t.length() - t.alone}}, Again: true,
		Mean: o.row.law.Service, Seed: seed, Calls: c.calls, Later: c.later,
	}
	if c.idle {
		load.Mean = 0
	}
	return load.run(ctx, epoch)
}

// void says why the run means nothing; empty if it does not.
func (o *orderRun) void() string {
	behind, total := 0, 1
	for _, records := range o.records {
		total += len(records)
		for i := range records {
			if records[i].Late || records[i].Answer == Unsent {
				behind++
			}
		}
	}
	switch {
	case float64(behind) > VoidAbove*float64(total):
		return fmt.Sprintf("%d of %d sends late", behind, total)
	case o.foreign > ForeignAbove:
		return fmt.Sprintf("others used %.0f %% of the core", 100*o.foreign)
	}
	return ""
}

// figures computes those of each class.
func (o *orderRun) figures() []OrderFigures {
	figures := make([]OrderFigures, len(o.row.classes))
	from, to := o.times.from(), o.times.from()+o.times.stage
	good, weights, calls := 0., 0., 0.
	for i, records := range o.records {
		c, f := &o.row.classes[i], &figures[i]
		f.Round = o.round
		crowd := due(records, from, to)
		f.Sent = len(crowd)
		f.Served, f.Refused, f.P99 = fates(crowd)
		if o.times.alone > 0 {
			_, _, f.Alone = fates(due(records, o.times.warm, o.times.alone))
		}
		good += f.Served * float64(f.Sent)
		weights += c.weight
		calls += c.answered(crowd)
		o.special(c, f, i)
	}
	for i, c := range o.row.classes {
		f := &figures[i]
		f.Goodput = calls / (o.capacity * o.times.stage.Seconds())
		if c.weight > 0 && good > 0 {
			f.OffShare = math.Abs(f.Served*float64(f.Sent)/good*weights/c.weight - 1)
		}
	}
	return figures
}

// special adds what only some classes have.
func (o *orderRun) special(c *class, f *OrderFigures, i int) {
	if n := c.callsOfTask(); n > 1 && f.Sent > 0 {
		possible := min(float64(f.Sent), o.capacity*o.times.stage.Seconds()/n)
		f.Tasks = f.Served * float64(f.Sent) / possible
	}
	if c.nested {
		f.Nested = &o.nested
	}
	if c.clients > 0 {
		f.Slack = o.slack(i)
	}
}

// slack is the work done for class i of what the others left of the capacity, by when
// it was done.
func (o *orderRun) slack(i int) float64 {
	from, to := o.times.from(), o.times.from()+o.times.stage
	left := o.capacity * o.row.law.Service.Seconds() * o.times.stage.Seconds()
	for j, records := range o.records {
		if j != i {
			left -= delivered(records, from, to)
		}
	}
	return delivered(o.records[i], from, to) / max(1e-9, left)
}

// answered is how many calls that are work were answered in time.
func (c *class) answered(records []Record) (calls float64) {
	if c.idle {
		return 0
	}
	for i := range records {
		calls += float64(records[i].Calls)
	}
	if c.nested {
		calls *= 2
	}
	return calls
}

// callsOfTask is how many calls a request is in the end.
func (c *class) callsOfTask() float64 {
	if c.nested {
		return 2
	}
	return float64(max(1, c.calls))
}

// fates returns the shares that were answered in time and refused, and the 99th
// percentile of the latency of what was not refused, in ms.
func fates(records []Record) (served, refused, p99 float64) {
	if len(records) == 0 {
		return 0, 0, 0
	}
	var latencies []time.Duration
	for i := range records {
		switch r := &records[i]; r.Answer {
		case OK:
			served++
			latencies = append(latencies, r.Latency)
		case Refused:
			refused++
		case Failed, GaveUp:
			latencies = append(latencies, r.Latency)
		}
	}
	n := float64(len(records))
	return served / n, refused / n, quantile(latencies, 0.99)
}
