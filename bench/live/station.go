package live

import (
	"container/heap"
	"sync"
	"time"
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
