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

	"github.com/weir-go/weir/bench/rig"
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
	if law.Kind == "burn" {
		return newBurner()
	}
	return newTimed(law)
}

// handler serves requests by doing their work. Like most servers it does not
// notice when a client leaves.
func handler(b backend) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work, ok := wanted(w, r)
		if !ok {
			return
		}
		if work > 0 && !b.do(work) {
			http.Error(w, "too many inside", http.StatusInternalServerError)
			return
		}
		answer(w)
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

func answer(w http.ResponseWriter) {
	w.Header()["Content-Type"] = plain
	_, _ = w.Write(okBody) // a client that left does not read it
}

var (
	plain  = []string{"text/plain"}
	okBody = []byte("ok\n")
)

// burner is a backend that really computes. A microsecond of work is a number
// of rounds of arithmetic, found once by the CPU time they take, so that the same
// request is the same work however busy the machine is.
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

// Law is how a backend serves: how fast each of n requests runs.
type Law struct {
	Name string
	// Kind is one of
	//
	//	burn   really computes, on the processor of its own process
	//	pool   Workers at a time, the rest in order of arrival
	//	usl    all at once, contention Sigma and coherence Kappa
	//	cores  all at once on Workers processors; each one more than that costs
	//	       all of them the share Thrash
	Kind    string
	Service time.Duration // mean work of a request, alone
	Workers int           `json:",omitempty"`
	Sigma   float64       `json:",omitempty"`
	Kappa   float64       `json:",omitempty"`
	Thrash  float64       `json:",omitempty"`
}

// model is the law as that of a station.
func (l *Law) model() station.Law {
	switch l.Kind {
	case "pool":
		return station.Law{Slots: l.Workers}
	case "cores":
		return station.Law{Cores: l.Workers, Thrash: l.Thrash}
	}
	return station.Law{Sigma: l.Sigma, Kappa: l.Kappa}
}

// best is the least concurrency of the largest throughput, and that throughput
// in requests a second.
func (l *Law) best() (n int, rps float64) {
	if l.Kind == "burn" {
		return 1, 1 / l.Service.Seconds()
	}
	model := l.model()
	n, throughput := model.Best()
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
	switch l.Kind {
	case "burn":
		return fmt.Sprintf("computes %v for each request, in the server's process", l.Service)
	case "pool":
		return fmt.Sprintf("%d workers, %v each, the rest queue; %.0f requests/s", l.Workers, l.Service, rps)
	case "usl":
		return fmt.Sprintf("%v alone, contention %g, coherence %g: %.0f requests/s at %d in parallel, fewer beyond", l.Service, l.Sigma, l.Kappa, rps, n)
	}
	return fmt.Sprintf("%d processors, %v each, each request beyond costs all of them %g: %.0f requests/s", l.Workers, l.Service, l.Thrash, math.Round(rps))
}

// The backends of part one.
var (
	lawB1 = Law{Name: "B1", Kind: "burn", Service: 2 * time.Millisecond}
	lawB2 = Law{Name: "B2", Kind: "usl", Service: 10 * time.Millisecond, Sigma: 0.05, Kappa: 0.0005}
	lawB3 = Law{Name: "B3", Kind: "pool", Service: 100 * time.Millisecond, Workers: 100}
)

// The backends behind the proxies of part two.
var (
	lawPool25   = Law{Name: "pool-25", Kind: "pool", Service: 400 * time.Millisecond, Workers: 10}
	lawUSL53    = Law{Name: "contention-53", Kind: "usl", Service: 200 * time.Millisecond, Sigma: 0.05, Kappa: 0.0005}
	lawCores250 = Law{Name: "thrash-250", Kind: "cores", Service: 8 * time.Millisecond, Workers: 2, Thrash: 0.03}
	lawUSL1060  = Law{Name: "contention-1060", Kind: "usl", Service: 10 * time.Millisecond, Sigma: 0.05, Kappa: 0.0005}
	lawPool2000 = Law{Name: "pool-2000", Kind: "pool", Service: 20 * time.Millisecond, Workers: 40}
)

// mostInside bounds the requests inside a backend. A server has a bound of this
// kind, too: file descriptors, or memory.
const mostInside = 8192

// timed is a backend that does not compute but lets time pass, by a [Law].
//
// What was due while its timer was late is finished in order, at the times at
// which it was due, so that the capacity is exact on a machine whose timers are
// not. A client that leaves changes nothing.
type timed struct {
	epoch time.Time

	mu      sync.Mutex
	timer   *time.Timer
	station station.Station
	slots   int
	jobs    []job   // by number
	free    []int32 // numbers of jobs
	account
}

// job is a request inside.
type job struct {
	work float64
	done chan struct{}
}

func newTimed(law Law) *timed {
	model := law.model()
	t := &timed{epoch: time.Now(), station: station.New(model), slots: model.Slots}
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
		t.free = append(t.free, i)
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
	if len(t.free) == 0 {
		t.free = append(t.free, int32(len(t.jobs)))
		t.jobs = append(t.jobs, job{})
	}
	i := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	t.jobs[i] = j
	t.station.Enter(now, i, j.work)
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
