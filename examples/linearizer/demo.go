package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// Of the demo: databases, and how long a batch takes if nobody says.
const (
	demoDatabases = 20
	demoWork      = 4 * time.Millisecond
	demoPatience  = 3 * time.Second
)

// demo is two API servers and two processors under load that comes and goes, until ctx ends. For half of the
// time, three times as much comes as the processors can do.
func (o *options) demo(ctx context.Context) (err error) {
	o.work = cmp.Or(o.work, demoWork)
	r, err := openRig(ctx, *o, 2, 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	capacity := 2 / o.work.Seconds()
	fmt.Fprintf(o.out, "Kafka %s, topic %s, group %s; the processors do %.0f batches a second together\n", r.o.kafka, topic, group, capacity)
	for _, a := range r.apis {
		fmt.Fprintf(o.out, "API   http://%[1]s   curl http://%[1]s/status   curl http://%[1]s/metrics\n", a.addr)
	}
	fmt.Fprintf(o.out, "try   curl -d '{\"id\":\"1\",\"expect\":0,\"events\":[{\"type\":\"placed\"}]}' http://%s/v1/databases/mine/batches\n", r.apis[0].addr)
	fmt.Fprintf(o.out, "      curl http://%s/v1/databases/mine/events?from=1\n", r.apis[0].addr)
	fmt.Fprintf(o.out, "For 20 s half of what they can do comes, for 20 s three times as much, and so on. Ctrl-C ends it.\n\n")
	fmt.Fprintf(o.out, "%5s %9s %9s %9s %9s %9s %9s\n", "s", "offered", "applied", "refused", "p99", "lag", "slots")
	for begun := time.Now(); ctx.Err() == nil; {
		if err := o.wave(ctx, r, capacity, begun); err != nil {
			return err
		}
	}
	return nil
}

// wave is one turn of the demo's load.
func (o *options) wave(ctx context.Context, r *rig, capacity float64, begun time.Time) error {
	send, closeIdle := r.clients(evenly(demoDatabases, o.partitions), demoPatience)
	defer closeIdle()
	const half = 20 * time.Second
	meter, err := loadgen.Load{
		Phases:   []loadgen.Phase{{Rate: min(capacity/2, loadgen.MaxRate), For: half}, {Rate: min(3*capacity, loadgen.MaxRate), For: half}},
		Patience: demoPatience + time.Second, Seed: 1, Send: send,
	}.Start(ctx)
	if err != nil {
		return err
	}
	before := time.Since(begun)
	seen := map[int]watched{} // by the seconds of this wave that have passed
	if w, err := r.look(ctx); err == nil {
		seen[0] = w
	}
	r.watch(ctx, meter.Done(), func(w watched) {
		passed := int(w.at.Round(time.Second) / time.Second)
		seen[passed] = w
		// A second is told when the last of its clients has an answer.
		second := passed - int((demoPatience+time.Second)/time.Second) - 1
		from, known := seen[second]
		to, ended := seen[second+1]
		if !known || !ended || second >= meter.Seconds() {
			return
		}
		t, at := meter.Second(second), before+time.Duration(second+1)*time.Second
		fmt.Fprintf(o.out, "%5.0f %9d %9.0f %9d %9s %9.0f %9.0f\n", at.Seconds(), t.Offered, to.applied-from.applied, t.Refused, t.Admitted.Quantile(0.99).Round(time.Millisecond), to.lag, to.slots)
	})
	<-meter.Done()
	return nil
}
