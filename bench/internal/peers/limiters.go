package peers

import (
	"cmp"
	"context"
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

// refusal is what the simulator hears of every refusal of a peer.
var refusal = &weir.Rejection{Gate: "peer", Reason: weir.ReasonLimit}

// newOpen admits everything.
func newOpen(*env) (*limiter, error) {
	return &limiter{try: func(*weir.Work) done { return func(weir.Outcome) {} }}, nil
}

// newSemaphore is golang.org/x/sync/semaphore, of the backend's best concurrency.
func newSemaphore(waits bool) maker {
	return func(e *env) (*limiter, error) {
		s := semaphore.NewWeighted(int64(e.Best))
		release := func(weir.Outcome) { s.Release(1) }
		l := &limiter{try: func(*weir.Work) done {
			if s.TryAcquire(1) { // false while others wait
				return release
			}
			return nil
		}}
		if waits {
			l.wait = func(ctx context.Context, _ *weir.Work, answer func(done)) {
				if s.Acquire(ctx, 1) != nil {
					answer(nil)
					return
				}
				answer(release)
			}
		}
		return l, nil
	}
}

// newWeir is weir as it comes: its default controller and its default wait room.
func newWeir(*env) (*limiter, error) {
	return weirGate(limit.Config{Name: "weir"})
}

// bare puts a controller before a gate where nobody waits, as the project it
// comes from does.
func bare[C control.Controller](newController func() (C, error)) maker {
	return func(*env) (*limiter, error) {
		c, err := newController()
		if err != nil {
			return nil, err
		}
		return weirGate(limit.Config{Name: c.Name(), Controller: windowed{c}, Queue: limit.Queue{Len: -1}})
	}
}

func weirGate(c limit.Config) (*limiter, error) {
	l, err := limit.New(c)
	return &limiter{weir: l}, err
}

// The classics at the defaults of Netflix's concurrency-limits, of which
// platinummonkey/go-concurrency-limits is the Go port. They are inside its WindowedLimit:
// one observation a second, the mean latency of the window. Late work is reported as
// dropped, as their documentation says. They are weir's own implementations: they do not
// have the port's faults (windows of nothing but drops are not lost here). WindowedLimit
// leaves out samples below 100 µs, and so does windowed.

// newAIMD: 20 at first, 20 to 200, times 0.9 after a drop or a mean above 5 s. Windows of
// fewer than 10 samples are thrown away.
func newAIMD() (*control.AIMD, error) {
	return control.NewAIMD(control.AIMDConfig{Min: 20, Max: 200, Take: control.AggregateMean, DiscardThin: true})
}

// newVegas: 20 at first, 1 to 1000, alpha 3 and beta 6 times log10 of the limit,
// smoothing 1, probe multiplier 30.
func newVegas(take control.Aggregate) func() (*control.Vegas, error) {
	return func() (*control.Vegas, error) { return control.NewVegas(control.VegasConfig{Take: take}) }
}

// newGradient2: 20 at first, 20 to 200, smoothing 0.2, queue 4, long window 600,
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

// newFailsafe is failsafe-go's adaptive limiter, version 0.9.8, as NewBuilder makes it.
// Limits are 1 to 200, 20 at first, and at most 5 times what is in flight. Windows are of
// at least 1 s and 50 executions. The 90th percentile of each is compared with a baseline
// of age 10, and correlations are over 50 windows. Every execution is recorded, also
// those that finish late: dropping them instead, which the documentation allows, would
// leave it without samples in a brown-out. By default it has no queue.
func newFailsafe(*env) (*limiter, error) {
	return failsafe(adaptivelimiter.NewBuilder[any]().Build()), nil
}

// newFailsafeQueueing adds a queue with the factors that BuildPrioritized takes by
// default. None is refused up to 2 times the limit, and everybody from 3 times it. Who
// waits does so until its context's deadline.
func newFailsafeQueueing(*env) (*limiter, error) {
	l := adaptivelimiter.NewBuilder[any]().WithQueueing(2, 3).Build()
	waits := failsafe(l)
	waits.wait = func(ctx context.Context, _ *weir.Work, answer func(done)) {
		p, err := l.AcquirePermit(ctx)
		answer(recorded(p, err == nil))
	}
	return waits, nil
}

func failsafe(l adaptivelimiter.AdaptiveLimiter[any]) *limiter {
	return &limiter{try: func(*weir.Work) done {
		p, ok := l.TryAcquirePermit()
		return recorded(p, ok)
	}}
}

func recorded(p adaptivelimiter.Permit, ok bool) done {
	if !ok {
		return nil
	}
	return func(weir.Outcome) { p.Record() }
}

// failsafePriorities are the peer's for ours.
var failsafePriorities = map[weir.Priority]priority.Priority{
	weir.Background: priority.Low, weir.Normal: priority.Medium, weir.High: priority.High, weir.Critical: priority.VeryHigh,
}

// newPrioritizer is failsafe-go's adaptive limiter with a prioritizer, version 0.9.8.
// When the queue fills up, a threshold under which levels are refused is calibrated anew
// every so often. The queue itself is in order of arrival. Who waits does so until its
// context's deadline. The limit is fixed at the backend's best concurrency, unless it is
// to find one. None is refused up to 2 times the limit, and everybody from max times it.
func newPrioritizer(fixed bool, every time.Duration, most float64) maker {
	return func(e *env) (*limiter, error) {
		p := adaptivelimiter.NewPrioritizer()
		b := adaptivelimiter.NewBuilder[any]().WithQueueing(2, most)
		if fixed {
			b = b.WithLimits(uint(e.Best), uint(e.Best), uint(e.Best))
		}
		l := b.BuildPrioritized(p)
		return &limiter{
			wait: func(ctx context.Context, w *weir.Work, answer func(done)) { // it decides who may
				permit, err := l.AcquirePermitWithPriority(ctx, failsafePriorities[w.Priority])
				answer(recorded(permit, err == nil))
			},
			close: p.ScheduleCalibrations(e.ctx, every),
		}, nil
	}
}

// newQueueSet is the queue set of Kubernetes API Priority and Fairness, version 0.37.2.
// It has the settings of its global-default level: 128 queues of 50, hands of 6. Its
// number of seats is a setting of the server; here it is the backend's best concurrency.
// Requests wait for a quarter of the time they have, or of the server's time-out of a
// minute, as its HTTP filter has them do. flow says of which flow a request is, and how
// many seats it takes.
func newQueueSet(flow func(*weir.Work) (flow, seats uint64)) maker {
	return func(e *env) (*limiter, error) {
		begun, err := queueset.NewQueueSetFactory(eventclock.Real{}).BeginConstruction(
			fairqueuing.QueuingConfig{Name: "peers", DesiredNumQueues: 128, QueueLengthLimit: 50, HandSize: 6},
			metrics.RatioedGaugePair{RequestsWaiting: mute{}, RequestsExecuting: mute{}}, mute{}, mute{})
		if err != nil {
			return nil, err
		}
		set := begun.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: e.Best, ConcurrencyDenominator: e.Best})
		return &limiter{
			patience: func(left time.Duration) time.Duration { return cmp.Or(left, time.Minute) / 4 },
			wait: func(ctx context.Context, w *weir.Work, answer func(done)) {
				of, seats := flow(w)
				req, _ := set.StartRequest(ctx, &request.WorkEstimate{InitialSeats: seats}, of, "", "peers", "", "", nil)
				admitted := false
				if req != nil {
					req.Finish(func() {
						admitted = true
						over := make(chan struct{})
						answer(func(weir.Outcome) { close(over) })
						select {
						case <-over:
						case <-e.ctx.Done():
						}
					})
				}
				if !admitted {
					answer(nil)
				}
			},
		}, nil
	}
}

// flowEach makes every request another flow of one seat, so that all queues take part.
func flowEach(*weir.Work) (flow, seats uint64) { return rand.Uint64(), 1 }

// flowByTenant makes every tenant a flow, and the cost of a request its seats.
func flowByTenant(w *weir.Work) (flow, seats uint64) {
	return maphash.String(flowSeed, w.Tenant), uint64(w.CostOrOne())
}

var flowSeed = maphash.MakeSeed()

// mute is a gauge that nobody reads.
type mute struct{}

func (mute) Set(float64)            {}
func (mute) Inc()                   {}
func (mute) Dec()                   {}
func (mute) Add(float64)            {}
func (mute) SetToCurrentTime()      {}
func (mute) SetDenominator(float64) {}

// newPartitions is a limiter in the manner of Netflix's AbstractPartitionedLimiter
// (concurrency-limits, Java). Below the limit everybody is let in. At it, only those are
// whose partition is below its guarantee, whatever that adds up to. Nobody waits. There
// is no Go module with it; this is its rule, with a fixed limit. It gives parts of the
// backend's best concurrency to priorities; others have what is left over.
func newPartitions(parts map[weir.Priority]float64) maker {
	return func(e *env) (*limiter, error) {
		inside, all := map[weir.Priority]float64{}, 0
		// It is called by the simulator's goroutine, as releases are: check and count
		// are one step.
		return &limiter{try: func(w *weir.Work) done {
			p := w.Priority
			if all >= e.Best && inside[p] >= math.Ceil(parts[p]*float64(e.Best)) {
				return nil
			}
			all++
			inside[p]++
			return func(weir.Outcome) {
				all--
				inside[p]--
			}
		}}, nil
	}
}
