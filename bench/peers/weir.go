package peers

import (
	"context"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

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

// newAIMD: 20 at first, 20 to 200, times .9 after a drop or a mean above 5 s.
func newAIMD() (*control.AIMD, error) { return control.NewAIMD(control.NetflixAIMD()) }

// newVegas: 20 at first, 1 to 1000, alpha 3 and beta 6 times log10 of the limit,
// smoothing 1, probe multiplier 30.
func newVegas(take control.Take) func() (*control.Vegas, error) {
	return func() (*control.Vegas, error) { return control.NewVegas(control.VegasConfig{Take: take}) }
}

// newGradient2: 20 at first, 20 to 200, smoothing .2, queue 4, long window 600,
// tolerance 1.5, with upstream's baseline.
func newGradient2(take control.Take) func() (*control.Gradient2, error) {
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
