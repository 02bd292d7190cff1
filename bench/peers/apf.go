package peers

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/weir-go/weir"
)

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
