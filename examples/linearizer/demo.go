package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// Of the demo: databases, and how long a batch takes if nobody says.
const (
	demoDatabases = 20
	demoWork      = 4 * time.Millisecond
	demoPatience  = 3 * time.Second
	answered      = demoPatience + time.Second // the clients of a second have an answer so much later
)

// demo is two API servers and two processors under load that comes and goes, until ctx ends. For half of the
// time, three times as much comes as the processors can do.
func (o *options) demo(ctx context.Context) (err error) {
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
	fmt.Fprintf(o.out, "      curl 'http://%s/v1/databases/mine/events?from=1'\n", r.apis[0].addr)
	fmt.Fprintf(o.out, "For 20 s half of what they can do comes, for 20 s three times as much, and so on.\n")
	fmt.Fprintf(o.out, "A second is told %.0f s later, when the last of its clients has an answer. Ctrl-C ends it.\n\n", answered.Seconds())
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
		Patience: answered, Seed: 1, Send: send,
	}.Start(ctx)
	if err != nil {
		return err
	}
	before := time.Since(begun)
	var seen looks
	if w, err := r.look(ctx); err == nil {
		seen.all = append(seen.all, w)
	}
	late := time.Since(begun) - before // by the first look
	r.watch(ctx, meter.Done(), func(w watched) {
		w.at += late
		seen.all = append(seen.all, w)
		o.tell(&seen, meter, before)
	})
	<-meter.Done()
	if w, err := r.look(ctx); err == nil {
		w.at = time.Since(begun) - before
		seen.all, seen.over = append(seen.all, w), true
		o.tell(&seen, meter, before)
	}
	return nil
}

// tell prints the seconds of a wave that can be told. The wave has begun at before.
func (o *options) tell(seen *looks, meter *loadgen.Meter, before time.Duration) {
	for {
		second, from, to, ok := seen.next()
		if !ok || second >= meter.Seconds() {
			return
		}
		t, at := meter.Second(second), before+to.at
		busy := ""
		if t.Void() {
			busy = fmt.Sprintf("   void: %.0f %% left late, this machine is busy", 100*t.Behind())
		}
		slots := strconv.FormatFloat(to.slots, 'f', 0, 64)
		if o.admission.controller == byNone {
			slots = "any"
		}
		fmt.Fprintf(o.out, "%5.0f %9d %9.0f %9d %9s %9.0f %9s%s\n", at.Seconds(), t.Offered, to.applied-from.applied, t.Refused, t.Admitted.Quantile(0.99).Round(time.Millisecond), to.lag, slots, busy)
	}
}

// looks are those at one wave, in order. On a busy machine one takes seconds.
type looks struct {
	all  []watched
	told int  // seconds that next has returned, or nobody saw
	over bool // every client of the wave has an answer
}

// next is the next second of the wave, as the system looked when it began and when it ended. A second comes when the last of its clients
// has an answer.
func (l *looks) next() (second int, from, to watched, ok bool) {
	if len(l.all) == 0 {
		return 0, from, to, false
	}
	first, last := l.all[0].at, l.all[len(l.all)-1].at
	l.told = max(l.told, int((first+time.Second-1)/time.Second))
	begin := time.Duration(l.told) * time.Second
	end := begin + time.Second
	if last < end || !l.over && last < end+answered {
		return 0, from, to, false
	}
	l.told++
	return l.told - 1, l.at(begin), l.at(end), true
}

// at is how the system looked at a time from the first look to the last: between two of them, in proportion.
func (l *looks) at(at time.Duration) watched {
	i := slices.IndexFunc(l.all, func(w watched) bool { return w.at >= at })
	to := l.all[i]
	if to.at == at {
		return to
	}
	from := l.all[i-1]
	share := float64(at-from.at) / float64(to.at-from.at)
	between := func(a, b float64) float64 { return a + share*(b-a) }
	return watched{at: at, applied: between(from.applied, to.applied), lag: between(from.lag, to.lag), slots: between(from.slots, to.slots)}
}
