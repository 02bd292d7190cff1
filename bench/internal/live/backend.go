package live

import (
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/station"
)

// workHeader tells the backend how much work a request is, in microseconds.
const workHeader = "X-Work"

// backend does the work of requests.
type backend interface {
	// do returns when the work is done, or false if it was turned away.
	do(work time.Duration) bool
	// setScale leaves scale of the capacity.
	setScale(scale float64)
	// read returns what was done so far.
	read() account
}

func newBackend(law Law) backend {
	if law.Burns {
		return newBurner()
	}
	return newTimed(law)
}

// handler serves requests by doing their work, and then what then does, if it is not nil.
// Like most servers it does not notice when a client leaves.
func handler(b backend, then func(r *http.Request, work time.Duration) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work, ok := wanted(w, r)
		if !ok {
			return
		}
		if work > 0 && !b.do(work) {
			http.Error(w, errFull.Error(), http.StatusInternalServerError)
			return
		}
		if then != nil {
			if err := then(r, work); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		w.Header()["Content-Type"] = plain
		_, _ = w.Write(okBody) // a client that left does not read it
	})
}

// wanted is the work that a request asks for; if it does not say, it is answered.
func wanted(w http.ResponseWriter, r *http.Request) (time.Duration, bool) {
	us, err := strconv.ParseInt(r.Header.Get(workHeader), 10, 64)
	if err != nil || us < 0 {
		http.Error(w, workHeader+" must be a number of microseconds", http.StatusBadRequest)
		return 0, false
	}
	return time.Duration(us) * time.Microsecond, true
}

var (
	plain  = []string{"text/plain"}
	okBody = []byte("ok\n")
)

// burner is a backend that really computes. A microsecond of work is a number
// of rounds of arithmetic, found once by the CPU time they take. So the same
// request is the same work, however busy the machine is.
type burner struct {
	perSecond float64
	scale     atomic.Uint64 // bits of a float64
	sink      atomic.Uint64 // of results, so that they are computed

	mu sync.Mutex
	account
}

func newBurner() *burner {
	b := new(burner)
	b.perSecond = b.calibrate()
	b.setScale(1)
	return b
}

// calibrate returns the rounds that a second of CPU time is: the best of a few
// tries, because what disturbs them only slows them down.
func (b *burner) calibrate() float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const rounds = 20_000_000
	best := math.Inf(1)
	for range 5 {
		before := rig.ThreadTime()
		b.sink.Store(spin(rounds)) // else the compiler sees that nobody wants it
		best = min(best, (rig.ThreadTime() - before).Seconds())
	}
	return rounds / max(best, 1e-6)
}

// spin is a chain of dependent operations, which no compiler shortens.
func spin(rounds int) uint64 {
	x := uint64(rounds) | 1
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

func (b *burner) do(work time.Duration) bool {
	b.mu.Lock()
	ok := b.account.entered()
	b.mu.Unlock()
	if !ok {
		return false
	}
	scale := math.Float64frombits(b.scale.Load())
	b.sink.Store(spin(int(work.Seconds() * b.perSecond / scale)))
	b.mu.Lock()
	b.account.finished(work.Seconds())
	b.mu.Unlock()
	return true
}

func (b *burner) setScale(scale float64) { b.scale.Store(math.Float64bits(scale)) }

func (b *burner) read() account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.account.read()
}

// Law is how a backend serves: as a station, or by computing.
type Law struct {
	Name    string
	Service time.Duration // mean work of a request, alone
	// Burns is one that really computes, on the processor of its own process.
	Burns bool `json:",omitempty"`
	station.Law
}

// best is the least concurrency of the largest throughput, and that throughput
// in requests a second.
func (l *Law) best() (n int, rps float64) {
	if l.Burns {
		return 1, 1 / l.Service.Seconds()
	}
	n, throughput := l.Law.Best()
	return n, throughput / l.Service.Seconds()
}

// loaded is the mean latency at the best concurrency.
func (l *Law) loaded() time.Duration {
	n, rps := l.best()
	return time.Duration(float64(n) / rps * float64(time.Second))
}

// String describes the law in the report.
func (l *Law) String() string {
	n, rps := l.best()
	switch {
	case l.Burns:
		return fmt.Sprintf("computes %v for each request, in the server's process", l.Service)
	case l.Slots > 0:
		return fmt.Sprintf("%d workers, %v each, the rest queue; %.0f requests/s", l.Slots, l.Service, rps)
	case l.Sigma > 0:
		return fmt.Sprintf("%v alone, contention %g, coherence %g: %.0f requests/s at %d in parallel, fewer beyond", l.Service, l.Sigma, l.Kappa, rps, n)
	}
	return fmt.Sprintf("%d processors, %v each, each request beyond costs all of them %g: %.0f requests/s", l.Cores, l.Service, l.Thrash, math.Round(rps))
}

// The backends of part one.
var (
	lawB1 = Law{Name: "B1", Burns: true, Service: 2 * time.Millisecond}
	lawB2 = Law{Name: "B2", Service: 10 * time.Millisecond, Law: station.Law{Sigma: 0.05, Kappa: 0.0005}}
	lawB3 = Law{Name: "B3", Service: 100 * time.Millisecond, Law: station.Law{Slots: 100}}
)

// The backends behind the proxies of part two.
var (
	lawPool25   = Law{Name: "pool-25", Service: 400 * time.Millisecond, Law: station.Law{Slots: 10}}
	lawUSL53    = Law{Name: "contention-53", Service: 200 * time.Millisecond, Law: station.Law{Sigma: 0.05, Kappa: 0.0005}}
	lawCores250 = Law{Name: "thrash-250", Service: 8 * time.Millisecond, Law: station.Law{Cores: 2, Thrash: 0.03}}
	lawUSL1060  = Law{Name: "contention-1060", Service: 10 * time.Millisecond, Law: station.Law{Sigma: 0.05, Kappa: 0.0005}}
	lawPool2000 = Law{Name: "pool-2000", Service: 20 * time.Millisecond, Law: station.Law{Slots: 40}}
)

// mostInside bounds the requests inside a backend. A server has a bound of this
// kind, too: file descriptors, or memory.
const mostInside = 8192

// timed is a backend that does not compute but lets time pass, by a [Law].
//
// Its timer may be late. Then it finishes in order what was due, as of the times
// at which it was due. So the capacity is exact where timers are not. A client that
// leaves changes nothing.
type timed struct {
	epoch time.Time

	mu      sync.Mutex
	timer   *time.Timer
	station station.Station
	slots   int
	jobs    map[int32]job
	last    int32 // number of a job
	account
}

// job is a request inside.
type job struct {
	work float64
	done chan struct{}
}

func newTimed(law Law) *timed {
	t := &timed{epoch: time.Now(), station: station.New(law.Law), slots: law.Slots, jobs: map[int32]job{}}
	t.timer = time.AfterFunc(time.Hour, func() { t.update(func(time.Duration) {}) })
	return t
}

// update finishes what is due, lets f change something, and sets the timer.
func (t *timed) update(f func(now time.Duration)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.epoch)
	t.finish(now)
	f(now)
	if next := t.station.Next(); next != station.Never {
		// Not sooner than a microsecond: what rounding leaves must not spin.
		t.timer.Reset(max(time.Microsecond, next-time.Since(t.epoch)))
	}
}

// finish ends the jobs that are due until now.
func (t *timed) finish(now time.Duration) {
	for t.station.Next() <= now {
		i := t.station.Finish(t.station.Next())
		t.account.finished(t.jobs[i].work)
		close(t.jobs[i].done)
		delete(t.jobs, i)
	}
}

// do returns when the work is done, or false at once if too many are inside.
func (t *timed) do(work time.Duration) bool {
	j := job{work: work.Seconds(), done: make(chan struct{})}
	ok := false
	t.update(func(now time.Duration) { ok = t.enter(now, j) })
	if ok {
		<-j.done
	}
	return ok
}

func (t *timed) enter(now time.Duration, j job) bool {
	if !t.account.entered() {
		return false
	}
	t.last++
	t.jobs[t.last] = j
	t.station.Enter(now, t.last, j.work)
	return true
}

// setScale leaves scale of the capacity.
func (t *timed) setScale(scale float64) {
	t.update(func(now time.Duration) { t.station.SetCapacity(now, scale, t.slots) })
}

func (t *timed) read() (a account) {
	t.update(func(time.Duration) { a = t.account.read() })
	return a
}

// account is what a backend has done.
type account struct {
	Done      int64   // requests finished
	Work      float64 // seconds of work in them
	Inside    int     // right now
	MaxInside int     // since it was last asked
	Full      int64   // turned away: too many inside
}

func (a *account) entered() bool {
	if a.Inside >= mostInside {
		a.Full++
		return false
	}
	a.Inside++
	a.MaxInside = max(a.MaxInside, a.Inside)
	return true
}

func (a *account) finished(work float64) {
	a.Inside--
	a.Done++
	a.Work += work
}

func (a *account) read() account {
	now := *a
	a.MaxInside = a.Inside
	return now
}
