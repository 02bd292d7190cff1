package sim

import (
	"math"
	"time"
)

// station is where jobs are worked on: at most slots of them at a time, the
// rest queue in order of arrival. Jobs in service all run at the same speed,
// which depends on how many there are.
//
// It keeps one clock of work done for each job in service (v). A job that
// enters with w seconds of work is finished when v has grown by w, whatever the
// speed was meanwhile; so arrivals, departures and changes of capacity cost
// O(log n) however many jobs share the station.
type station struct {
	slots int               // 0: unlimited
	speed func(int) float64 // of each job with n in service; 1 is unloaded
	scale float64           // capacity left of the original speed

	v     float64       // work done on each job so far, in seconds
	at    time.Duration // when v was last brought up to date
	rate  float64       // at which v grows now
	order uint32
	jobs  []serving
	queue ring
}

// serving is a job in service: its finish tag on the clock of work done.
type serving struct {
	tag   float64
	order uint32
	job   int32
}

func (s *serving) before(o *serving) bool {
	return s.tag < o.tag || s.tag == o.tag && int32(s.order-o.order) < 0
}

// inside is the number of jobs in service and in the queue.
func (s *station) inside() int { return len(s.jobs) + s.queue.n }

// enter brings a job that needs work seconds of service at speed 1.
func (s *station) enter(now time.Duration, job int32, work float64) {
	s.advance(now)
	if s.slots > 0 && len(s.jobs) >= s.slots {
		s.queue.push(queued{job, work})
		return
	}
	s.serve(job, work)
	s.adjust()
}

// next returns when the first job will be finished.
func (s *station) next() time.Duration {
	if len(s.jobs) == 0 || s.rate <= 0 {
		return never
	}
	left := (s.jobs[0].tag - s.v) / s.rate
	if left <= 0 {
		return s.at
	}
	if left > 1e9 {
		return never
	}
	return s.at + time.Duration(math.Round(left*1e9))
}

// finish removes the first job to be finished, which is due now.
func (s *station) finish(now time.Duration) int32 {
	done := s.jobs[0]
	s.at, s.v = now, done.tag
	s.pop()
	s.refill()
	s.adjust()
	return done.job
}

// setCapacity changes speed and slots. Jobs in service stay in service.
func (s *station) setCapacity(now time.Duration, scale float64, slots int) {
	s.advance(now)
	s.scale, s.slots = scale, slots
	s.refill()
	s.adjust()
}

func (s *station) refill() {
	for s.queue.n > 0 && (s.slots == 0 || len(s.jobs) < s.slots) {
		q := s.queue.pop()
		s.serve(q.job, q.work)
	}
}

// advance brings the clock of work done up to now. The conversion keeps the
// product from being fused into the sum, so that all machines agree.
func (s *station) advance(now time.Duration) {
	if now > s.at {
		s.v += float64(s.rate * (now - s.at).Seconds())
		s.at = now
	}
}

func (s *station) adjust() {
	s.rate = 0
	if n := len(s.jobs); n > 0 {
		s.rate = s.scale * s.speed(n)
	} else {
		s.v = 0 // an idle station starts again from zero, which keeps v precise
	}
}

func (s *station) serve(job int32, work float64) {
	e := serving{s.v + work, s.order, job}
	s.order++
	s.jobs = append(s.jobs, e)
	i := len(s.jobs) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&s.jobs[parent]) {
			break
		}
		s.jobs[i] = s.jobs[parent]
		i = parent
	}
	s.jobs[i] = e
}

func (s *station) pop() {
	h := s.jobs
	e := h[len(h)-1]
	h = h[:len(h)-1]
	s.jobs = h
	if len(h) == 0 {
		return
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&e) {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = e
}

// queued is a job that waits for a slot.
type queued struct {
	job  int32
	work float64
}

// ring is a queue that keeps its memory.
type ring struct {
	buf     []queued
	head, n int
}

func (r *ring) push(q queued) {
	if r.n == len(r.buf) {
		bigger := make([]queued, max(16, 2*r.n))
		for i := range r.n {
			bigger[i] = r.buf[(r.head+i)%len(r.buf)]
		}
		r.buf, r.head = bigger, 0
	}
	r.buf[(r.head+r.n)%len(r.buf)] = q
	r.n++
}

func (r *ring) pop() queued {
	q := r.buf[r.head]
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return q
}
