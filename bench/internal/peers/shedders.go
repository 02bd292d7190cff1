package peers

import (
	"fmt"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
	"unsafe" // for the two processor readings, which have no other hook

	"github.com/go-kratos/aegis/ratelimit"
	"github.com/go-kratos/aegis/ratelimit/bbr"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/sim"
	"github.com/zeromicro/go-zero/core/load"
	"github.com/zeromicro/go-zero/core/logx"
	_ "github.com/zeromicro/go-zero/core/stat" // has the reading
)

// Aegis' BBR and go-zero's shedder refuse only while the processor is busy (80 %
// and 90 % by default). They read the process they are in, which here is the
// simulator; what they should read depends on what the backend is:
//
//   - waiting: it is somewhere else, and the process only waits for it, so the
//     processor is idle;
//   - computing: it is the process itself, so the processor is as busy as the
//     backend, smoothed as the library smooths it.

// idle reads a processor that waits for its backend.
func idle() int64 { return 0 }

// newBBR is aegis' BBR, version 0.2.0, as NewLimiter makes it: a window of
// 10 s in 100 buckets, a threshold of 800 thousandths.
func newBBR(computing bool) maker {
	return func(e *env) (*limiter, error) {
		l, read := bbr.NewLimiter(), idle
		if computing {
			read = e.usage.reader(500 * time.Millisecond)
		}
		return &limiter{try: func(*weir.Work) done {
			give, err := l.Allow()
			if err != nil {
				return nil
			}
			return func(weir.Outcome) { give(ratelimit.DoneInfo{}) }
		}}, setCPU(l, read)
	}
}

// setCPU replaces the limiter's reading, an unexported field.
func setCPU(l *bbr.BBR, read func() int64) error {
	f := reflect.ValueOf(l).Elem().FieldByName("cpu")
	if !f.IsValid() || !reflect.TypeOf(read).ConvertibleTo(f.Type()) {
		return fmt.Errorf("peers: this version of aegis keeps its processor reading elsewhere than in BBR.cpu")
	}
	reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().Set(reflect.ValueOf(read).Convert(f.Type()))
	return nil
}

// goZeroCPU is the reading of the whole process. Its own goroutine mixes a
// twentieth of the real one into it four times a real second; each question sets
// it anew.
//
//go:linkname goZeroCPU github.com/zeromicro/go-zero/core/stat.cpuUsage
var goZeroCPU int64

// oneGoZero is held by the run whose reading that is.
var oneGoZero sync.Mutex

// quiet keeps go-zero from writing a line for every refusal.
var quiet = sync.OnceFunc(logx.Disable)

// newGoZero is go-zero's shedder, version 1.10.3, as NewAdaptiveShedder makes it: a
// window of 5 s in 50 buckets, a threshold of 900 thousandths. Late work fails,
// as it does in its HTTP handler once the time-out has answered 503.
func newGoZero(computing bool) maker {
	return func(e *env) (*limiter, error) {
		quiet()
		l, read := load.NewAdaptiveShedder(), idle
		if computing {
			read = e.usage.reader(250 * time.Millisecond)
		}
		return &limiter{try: func(*weir.Work) done {
			atomic.StoreInt64(&goZeroCPU, read())
			p, err := l.Allow()
			if err != nil {
				return nil
			}
			return func(o weir.Outcome) {
				if o == weir.OK {
					p.Pass()
				} else {
					p.Fail()
				}
			}
		}}, nil
	}
}

// usage is the share of the backend that is busy, over time. A process that is its own
// backend would read it as the usage of its processors.
type usage struct {
	best   float64
	phases []sim.Phase // one run through them
	loses  bool        // workers with its capacity; otherwise as many are busy, with less to show

	inside int
	at     time.Duration
	busy   float64 // seconds, since the run began
}

func newUsage(e *env) *usage {
	b := &e.Scenario.Backend.Backend
	return &usage{best: float64(e.Best), phases: e.Scenario.Phases, loses: b.Law == "pool" && b.Loses != "speed"}
}

// add notes that so many more are in the backend from now on.
func (u *usage) add(now time.Duration, n int) {
	u.advance(now)
	u.inside += n
}

// advance brings busy up to now.
func (u *usage) advance(now time.Duration) {
	for u.at < now {
		capacity, until := u.phase(u.at)
		until = min(until, now)
		available := u.best
		if u.loses {
			available = math.Max(1, math.Round(capacity*u.best))
		}
		u.busy += math.Min(1, float64(u.inside)/available) * (until - u.at).Seconds()
		u.at = until
	}
}

// phase returns the capacity at a time and when that may change.
func (u *usage) phase(at time.Duration) (float64, time.Duration) {
	var total, end time.Duration
	for _, p := range u.phases {
		total += time.Duration(p.For)
	}
	start := at - at%max(1, total)
	for _, p := range u.phases {
		if end += time.Duration(p.For); at-start < end {
			if p.Capacity > 0 {
				return p.Capacity, start + end
			}
			return 1, start + end
		}
	}
	return 1, at + time.Second
}

// reading is a processor's usage in thousandths, as aegis and go-zero read it. It is a
// moving average that keeps 0.95 of the old at each tick.
type reading struct {
	of    *usage
	every time.Duration

	next  time.Duration
	busy  float64 // at the last tick
	value float64
}

const readingDecay = 0.95

// reader reads the usage from now on, with a tick of that length.
func (u *usage) reader(every time.Duration) func() int64 {
	r, start := &reading{of: u, every: every}, time.Now()
	return func() int64 { return r.now(time.Since(start)) }
}

// now brings the reading up to the time.
func (r *reading) now(t time.Duration) int64 {
	if r.next == 0 {
		r.next = r.every
	}
	for r.next <= t {
		r.of.advance(r.next)
		used := 1000 * (r.of.busy - r.busy) / r.every.Seconds()
		r.busy = r.of.busy
		r.value = math.Trunc(readingDecay*r.value + (1-readingDecay)*used)
		r.next += r.every
	}
	return int64(r.value)
}
