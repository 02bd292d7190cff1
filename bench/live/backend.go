package live

import (
	"container/heap"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// workHeader tells the backend how much work a request is, in microseconds.
const workHeader = "X-Work"

// backend does the work of requests.
type backend interface {
	// do returns when the work is done, or false if it was turned away.
	do(work time.Duration) bool
	// setScale leaves scale of the capacity.
	setScale(scale float64)
	// take returns what was done so far.
	take() account
}

func newBackend(law Law) backend {
	if law.Kind == "burn" {
		return newBurner()
	}
	return newStation(law)
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
		before := threadTime()
		b.sink.Store(spin(rounds)) // else the compiler sees that nobody wants it
		best = min(best, (threadTime() - before).Seconds())
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

func (b *burner) take() account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.account.take()
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

// speed is how fast each of n requests in service runs; 1 is alone.
func (l *Law) speed(n int) float64 {
	x := float64(n)
	switch l.Kind {
	case "usl":
		return 1 / (1 + l.Sigma*(x-1) + l.Kappa*x*(x-1))
	case "cores":
		if c := float64(l.Workers); x > c {
			return c / x / (1 + l.Thrash*(x-c))
		}
	}
	return 1
}

// slots is how many are in service at a time, 0 for all.
func (l *Law) slots() int {
	if l.Kind == "pool" {
		return l.Workers
	}
	return 0
}

// best is the least concurrency of the largest throughput, and that throughput
// in requests a second.
func (l *Law) best() (n int, rps float64) {
	for i := 1; i <= 1000; i++ {
		served := i
		if s := l.slots(); s > 0 {
			served = min(i, s)
		}
		if x := float64(served) * l.speed(served) / l.Service.Seconds(); x > rps*(1+1e-9) {
			n, rps = i, x
		}
	}
	return n, rps
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

// station is a backend that does not compute but lets time pass, by a [Law].
//
// It keeps one clock of work done on each request in service (v). A request of w
// seconds of work is finished when v has grown by w, whatever the speed was
// meanwhile. What was due while its timer was late is finished in order, at the
// times at which it was due, so that the capacity is exact on a machine whose
// timers are not. A client that leaves changes nothing.
type station struct {
	law   Law
	epoch time.Time

	mu    sync.Mutex
	timer *time.Timer
	scale float64
	v     float64 // work done on each request in service, in seconds
	at    float64 // when v was last brought up to date, in seconds
	jobs  jobs
	queue []*job
	account
}

// job is a request inside.
type job struct {
	work, tag float64 // tag is the v at which it is finished
	done      chan struct{}
}

func newStation(law Law) *station {
	s := &station{law: law, epoch: time.Now(), scale: 1}
	s.timer = time.AfterFunc(time.Hour, s.tick)
	return s
}

// do returns when the work is done, or false at once if too many are inside.
func (s *station) do(work time.Duration) bool {
	j := &job{work: work.Seconds(), done: make(chan struct{})}
	if !s.enter(time.Since(s.epoch).Seconds(), j) {
		return false
	}
	<-j.done
	return true
}

func (s *station) enter(now float64, j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(now)
	if !s.account.entered() {
		return false
	}
	if slots := s.law.slots(); slots > 0 && len(s.jobs) >= slots {
		s.queue = append(s.queue, j)
	} else {
		s.serve(j)
	}
	s.arm()
	return true
}

func (s *station) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Since(s.epoch).Seconds())
	s.arm()
}

// setScale leaves scale of the capacity.
func (s *station) setScale(scale float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Since(s.epoch).Seconds())
	s.scale = scale
	s.arm()
}

func (s *station) take() account {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Since(s.epoch).Seconds())
	return s.account.take()
}

// settle finishes what is due until now, and brings v up to date.
func (s *station) settle(now float64) {
	for len(s.jobs) > 0 {
		due := s.next()
		if due > now {
			break
		}
		j := heap.Pop(&s.jobs).(*job)
		s.at, s.v = due, j.tag
		s.account.finished(j.work)
		close(j.done)
		if len(s.queue) > 0 {
			next := s.queue[0]
			s.queue = s.queue[1:]
			s.serve(next)
		}
	}
	if len(s.jobs) == 0 {
		s.v, s.at = 0, now
		return
	}
	if now > s.at {
		s.v += (now - s.at) * s.rate()
		s.at = now
	}
}

func (s *station) serve(j *job) {
	j.tag = s.v + j.work
	heap.Push(&s.jobs, j)
}

func (s *station) rate() float64 { return s.scale * s.law.speed(len(s.jobs)) }

// next is when the first request in service is finished.
func (s *station) next() float64 { return s.at + max(0, s.jobs[0].tag-s.v)/s.rate() }

func (s *station) arm() {
	if len(s.jobs) == 0 {
		return
	}
	wait := min(s.next()-time.Since(s.epoch).Seconds(), 3600)
	// Not sooner than a microsecond: what rounding leaves must not spin.
	s.timer.Reset(max(time.Microsecond, time.Duration(wait*float64(time.Second))))
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

func (a *account) take() account {
	now := *a
	a.MaxInside = a.Inside
	return now
}

// jobs is a heap by finish tag.
type jobs []*job

func (h jobs) Len() int           { return len(h) }
func (h jobs) Less(i, j int) bool { return h[i].tag < h[j].tag }
func (h jobs) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *jobs) Push(x any)        { *h = append(*h, x.(*job)) }
func (h *jobs) Pop() any {
	old := *h
	j := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return j
}
