package peers

import (
	"context"
	"hash/maphash"
	"math"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/priority"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/weir-go/weir"
)

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
	return &flow{f.queueSet, maphash.String(flowSeed, w.Tenant), uint64(w.Units())}
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
