package peers

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/priority"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"
)

var (
	errWait = errors.New("no slot yet")
	errFull = errors.New("no slot")
)

// refusal is what the simulator hears of every refusal of a peer.
var refusal = &weir.Rejection{Gate: "peer", Reason: weir.ReasonLimit}

// open admits everything.
type open struct{}

func newOpen(*Env) (limiter, error)                  { return open{}, nil }
func (open) try() (done, error)                      { return func(weir.Outcome) {}, nil }
func (open) wait(context.Context, func(done, error)) {}

// weighted is golang.org/x/sync/semaphore, of the backend's best concurrency.
type weighted struct {
	s     *semaphore.Weighted
	waits bool
}

func newSemaphore(waits bool) func(*Env) (limiter, error) {
	return func(e *Env) (limiter, error) {
		return &weighted{semaphore.NewWeighted(int64(e.Best)), waits}, nil
	}
}

func (w *weighted) try() (done, error) {
	switch {
	case w.s.TryAcquire(1): // false while others wait
		return w.release, nil
	case w.waits:
		return nil, errWait
	}
	return nil, errFull
}

func (w *weighted) wait(ctx context.Context, answer func(done, error)) {
	answer(w.release, w.s.Acquire(ctx, 1))
}

func (w *weighted) release(weir.Outcome) { w.s.Release(1) }

// weirLimiter is weir's own gate, which needs no goroutine to wait in.
type weirLimiter struct{ *limit.Limiter }

// It is driven through Arrive.
func (weirLimiter) try() (done, error)                      { return nil, errFull }
func (weirLimiter) wait(context.Context, func(done, error)) {}

// arriveWeir is Arrive of weir's gate. Its answers may come from its timer's
// goroutine, or from a Done on the simulator's own; either way they become news.
func (b *bubble) arriveWeir(l weirLimiter, w weir.Work, deadline time.Time, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	w.Deadline = deadline
	return l.Arrive(w, func(p weir.Permit, err error) {
		b.tell(func() { wake(p, err) })
	})
}

// newWeir is weir as it comes: its default controller and its default wait room.
func newWeir(*Env) (limiter, error) {
	knee, err := control.NewKnee(control.KneeConfig{})
	if err != nil {
		return nil, err
	}
	return weirGate(limit.Config{Name: "weir", Controller: knee})
}

// bare puts a controller before a gate where nobody waits, as the project it
// comes from does.
func bare[C control.Controller](newController func() (C, error)) func(*Env) (limiter, error) {
	return func(*Env) (limiter, error) {
		c, err := newController()
		if err != nil {
			return nil, err
		}
		return weirGate(limit.Config{Name: c.Name(), Controller: windowed{c}, Queue: limit.Queue{Len: -1}})
	}
}

func weirGate(c limit.Config) (limiter, error) {
	l, err := limit.New(c)
	if err != nil {
		return nil, err
	}
	return weirLimiter{l}, nil
}

// The classics at the defaults of Netflix's concurrency-limits (of which
// platinummonkey/go-concurrency-limits is the Go port), inside its WindowedLimit:
// one observation a second, the mean latency of the window. Late work is
// reported as dropped, as their documentation says. They are weir's own
// implementations: they do not have the port's faults (windows of nothing but
// drops are not lost here). WindowedLimit leaves out samples below 100 µs, and so
// does windowed.

// newAIMD: 20 at first, 20 to 200, times .9 after a drop or a mean above 5 s; windows
// of fewer than 10 samples are thrown away.
func newAIMD() (*control.AIMD, error) {
	return control.NewAIMD(control.AIMDConfig{Min: 20, Max: 200, Take: control.AggregateMean, DiscardThin: true})
}

// newVegas: 20 at first, 1 to 1000, alpha 3 and beta 6 times log10 of the limit,
// smoothing 1, probe multiplier 30.
func newVegas(take control.Aggregate) func() (*control.Vegas, error) {
	return func() (*control.Vegas, error) { return control.NewVegas(control.VegasConfig{Take: take}) }
}

// newGradient2: 20 at first, 20 to 200, smoothing .2, queue 4, long window 600,
// tolerance 1.5, with upstream's baseline.
func newGradient2(take control.Aggregate) func() (*control.Gradient2, error) {
	return func() (*control.Gradient2, error) {
		return control.NewGradient2(control.Gradient2Config{Shipped: true, Take: take})
	}
}

// shortest is the latency below which WindowedLimit takes no sample.
const shortest = 100 * time.Microsecond

// windowed shows a controller its windows without the shortest samples. Without
// that the shortest of a thousand exponential ones is next to nothing, and a
// different next to nothing each time.
type windowed struct{ control.Controller }

// Update implements [control.Controller].
func (c windowed) Update(w *control.Window) control.Decision {
	rest := *w
	for len(rest.Latencies) > 0 && rest.Latencies[0] < shortest {
		rest.LatencySum -= rest.Latencies[0]
		rest.Timed--
		rest.OK = max(0, rest.OK-1)
		rest.Latencies = rest.Latencies[1:]
	}
	return c.Controller.Update(&rest)
}

// adaptive is failsafe-go's adaptive limiter, version 0.9.8, as NewBuilder makes
// it: limits 1 to 200, 20 at first, at most 5 times what is in flight; windows
// of at least 1 s and 50 executions, the 90th percentile of each against a
// baseline of age 10; correlations over 50 windows. Every execution is recorded,
// also those that finish late: dropping them instead, which the documentation
// allows, would leave it without samples in a brown-out.
type adaptive struct {
	l     adaptivelimiter.AdaptiveLimiter[any]
	waits bool
}

// newFailsafe is the limiter without a queue, which is its default.
func newFailsafe(*Env) (limiter, error) {
	return &adaptive{adaptivelimiter.NewBuilder[any]().Build(), false}, nil
}

// newFailsafeQueueing adds a queue with the factors that BuildPrioritized takes
// by default: none is refused up to 2 times the limit, everybody from 3 times
// it. Who waits does so until its context's deadline.
func newFailsafeQueueing(*Env) (limiter, error) {
	return &adaptive{adaptivelimiter.NewBuilder[any]().WithQueueing(2, 3).Build(), true}, nil
}

func (a *adaptive) try() (done, error) {
	p, ok := a.l.TryAcquirePermit()
	switch {
	case ok:
		return recorded(p), nil
	case a.waits:
		return nil, errWait // AcquirePermit decides who may
	}
	return nil, errFull
}

func (a *adaptive) wait(ctx context.Context, answer func(done, error)) {
	p, err := a.l.AcquirePermit(ctx)
	answer(recorded(p), err)
}

func recorded(p adaptivelimiter.Permit) done {
	return func(weir.Outcome) { p.Record() }
}

// queueSet is the queue set of Kubernetes API Priority and Fairness, version
// 0.37.2, with the settings of its global-default level: 128 queues of 50, hands
// of 6. Its number of seats is a setting of the server; here it is the backend's
// best concurrency. Requests wait for a quarter of the time they have, as its
// HTTP filter has them do. Every request is of another flow, so that all queues
// take part.
type queueSet struct {
	set fairqueuing.QueueSet
	ctx context.Context
}

func newQueueSet(e *Env) (limiter, error) {
	begun, err := queueset.NewQueueSetFactory(eventclock.Real{}).BeginConstruction(
		fairqueuing.QueuingConfig{Name: "peers", DesiredNumQueues: 128, QueueLengthLimit: 50, HandSize: 6},
		metrics.RatioedGaugePair{RequestsWaiting: mute{}, RequestsExecuting: mute{}}, mute{}, mute{})
	if err != nil {
		return nil, err
	}
	return &queueSet{
		set: begun.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: e.Best, ConcurrencyDenominator: e.Best}),
		ctx: e.ctx,
	}, nil
}

func (*queueSet) try() (done, error) { return nil, errWait }

// patience is a quarter of the time left, or of the server's time-out of a
// minute.
func (*queueSet) patience(left time.Duration) time.Duration {
	if left == 0 {
		left = time.Minute
	}
	return left / 4
}

func (q *queueSet) wait(ctx context.Context, answer func(done, error)) {
	q.start(ctx, &request.WorkEstimate{InitialSeats: 1}, rand.Uint64(), answer)
}

// start asks for a request of a flow.
func (q *queueSet) start(ctx context.Context, estimate *request.WorkEstimate, flow uint64, answer func(done, error)) {
	req, _ := q.set.StartRequest(ctx, estimate, flow, "", "peers", "", "", nil)
	if req == nil {
		answer(nil, errFull)
		return
	}
	admitted := false
	req.Finish(func() {
		admitted = true
		over := make(chan struct{})
		answer(func(weir.Outcome) { close(over) }, nil)
		select {
		case <-over:
		case <-q.ctx.Done():
		}
	})
	if !admitted {
		answer(nil, errFull)
	}
}

// mute is a gauge that nobody reads.
type mute struct{}

func (mute) Set(float64)            {}
func (mute) Inc()                   {}
func (mute) Dec()                   {}
func (mute) Add(float64)            {}
func (mute) SetToCurrentTime()      {}
func (mute) SetDenominator(float64) {}

// telling is a limiter that is told who asks.
type telling interface {
	// of returns the limiter as a piece of work sees it.
	of(*weir.Work) limiter
}

// prioritizer is failsafe-go's adaptive limiter with a prioritizer, version
// 0.9.8: when the queue fills up, a threshold under which levels are refused is
// calibrated anew every so often; the queue itself is in order of arrival. Who
// waits does so until its context's deadline.
type prioritizer struct {
	l    adaptivelimiter.PriorityLimiter[any]
	stop context.CancelFunc
}

// newPrioritizer makes one whose limit is fixed at the backend's best
// concurrency, unless it is to find one; none is refused up to 2 times the limit,
// everybody from max times it.
func newPrioritizer(fixed bool, every time.Duration, most float64) func(*Env) (limiter, error) {
	return func(e *Env) (limiter, error) {
		p := adaptivelimiter.NewPrioritizer()
		b := adaptivelimiter.NewBuilder[any]().WithQueueing(2, most)
		if fixed {
			b = b.WithLimits(uint(e.Best), uint(e.Best), uint(e.Best))
		}
		l := b.BuildPrioritized(p)
		return &prioritizer{l, p.ScheduleCalibrations(e.ctx, every)}, nil
	}
}

// failsafePriorities are the peer's for ours.
var failsafePriorities = map[weir.Priority]priority.Priority{
	weir.Background: priority.Low, weir.Normal: priority.Medium, weir.High: priority.High, weir.Critical: priority.VeryHigh,
}

func (p *prioritizer) of(w *weir.Work) limiter {
	return prioritized{p.l, failsafePriorities[w.Priority]}
}

func (p *prioritizer) try() (done, error) { return nil, errWait }
func (p *prioritizer) wait(ctx context.Context, answer func(done, error)) {
	p.of(&weir.Work{}).wait(ctx, answer)
}

// Close ends the calibrations.
func (p *prioritizer) Close() { p.stop() }

type prioritized struct {
	l adaptivelimiter.PriorityLimiter[any]
	p priority.Priority
}

func (prioritized) try() (done, error) { return nil, errWait } // AcquirePermit decides who may

func (p prioritized) wait(ctx context.Context, answer func(done, error)) {
	permit, err := p.l.AcquirePermitWithPriority(ctx, p.p)
	answer(recorded(permit), err)
}

// flows is the Kubernetes queue set with every tenant a flow of its own, and the
// cost of a request its width in seats.
type flows struct{ *queueSet }

var flowSeed = maphash.MakeSeed()

func newFlows(e *Env) (limiter, error) {
	q, err := newQueueSet(e)
	if err != nil {
		return nil, err
	}
	return flows{q.(*queueSet)}, nil
}

func (f flows) of(w *weir.Work) limiter {
	return &flow{f.queueSet, maphash.String(flowSeed, w.Tenant), uint64(w.CostOrOne())}
}

type flow struct {
	*queueSet
	hash  uint64
	seats uint64
}

func (f *flow) wait(ctx context.Context, answer func(done, error)) {
	f.start(ctx, &request.WorkEstimate{InitialSeats: f.seats}, f.hash, answer)
}

// partitions is a limiter in the manner of Netflix's AbstractPartitionedLimiter
// (concurrency-limits, Java): below the limit everybody is let in; at it, who is
// below the guarantee of its partition, whatever that adds up to. Nobody waits.
// There is no Go module with it; this is its rule, with a fixed limit.
type partitions struct {
	limit    int64
	inflight int64
	shares   map[weir.Priority]*partition
}

type partition struct{ limit, inflight int64 }

// newPartitions gives parts of the backend's best concurrency to priorities.
func newPartitions(parts map[weir.Priority]float64) func(*Env) (limiter, error) {
	return func(e *Env) (limiter, error) {
		p := &partitions{limit: int64(e.Best), shares: map[weir.Priority]*partition{}}
		for of, part := range parts {
			p.shares[of] = &partition{limit: max(1, int64(math.Ceil(part*float64(e.Best))))}
		}
		return p, nil
	}
}

func (p *partitions) of(w *weir.Work) limiter {
	part := p.shares[w.Priority]
	if part == nil {
		part = &partition{} // an unknown one has what is left over
		p.shares[w.Priority] = part
	}
	return member{p, part}
}

func (p *partitions) try() (done, error)                    { return p.of(&weir.Work{}).try() }
func (*partitions) wait(context.Context, func(done, error)) {}

type member struct {
	all  *partitions
	part *partition
}

// try is called by the simulator's goroutine, as releases are: check and count
// are one step.
func (m member) try() (done, error) {
	if m.all.inflight >= m.all.limit && m.part.inflight >= m.part.limit {
		return nil, errFull
	}
	m.all.inflight++
	m.part.inflight++
	return func(weir.Outcome) {
		m.all.inflight--
		m.part.inflight--
	}, nil
}

func (member) wait(context.Context, func(done, error)) {}
