package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/policy"
)

// Backend is what stands behind the gates: a law that says how fast each of n
// requests runs, and how much work a request is.
type Backend struct {
	// About says in a sentence what it stands for.
	About string `json:"about,omitempty"`
	// Law is one of
	//
	//	cores   Cores processors; with Discipline fifo requests run to
	//	        completion in order of arrival, with ps they all run at once,
	//	        and Thrash takes its toll of the excess
	//	usl     everything at once, contention Sigma and coherence Kappa:
	//	        throughput n/(1+σ(n−1)+κn(n−1)) over the service time
	//	pool    Workers at a time, the rest in order of arrival
	//	mutex   Outside in parallel, then the service time under one lock
	Law string `json:"law"`
	// Service is the work of one request: its time when it is alone.
	Service Dist `json:"service"`

	// Cores, Discipline (fifo by default) and Thrash are of cores. With ps and
	// n > Cores requests each runs at Cores/n/(1+Thrash·(n−Cores)) of full
	// speed.
	Cores      int     `json:"cores,omitempty"`
	Discipline string  `json:"discipline,omitempty"`
	Thrash     float64 `json:"thrash,omitempty"`
	// Sigma and Kappa are of usl.
	Sigma float64 `json:"sigma,omitempty"`
	Kappa float64 `json:"kappa,omitempty"`
	// Workers is of pool.
	Workers int `json:"workers,omitempty"`
	// Outside is of mutex: the time spent before the lock is asked for.
	Outside policy.Duration `json:"outside,omitempty"`

	// Loses says what a phase with less capacity takes away: speed (the
	// default) or workers (pool only, and the default there).
	Loses string `json:"loses,omitempty"`

	// Deadline is when an answer stops being useful, for traffic that names no
	// deadline of its own. 0 means never.
	Deadline policy.Duration `json:"deadline,omitempty"`
}

func (b *Backend) validate(f *faultList, path string) {
	b.Service.validate(f, path+".service")
	only := func(set bool, field, law string) {
		f.check(!set || b.Law == law, path+"."+field, "only for law %q, not for %q", law, b.Law)
	}
	only(b.Cores != 0, "cores", "cores")
	only(b.Discipline != "", "discipline", "cores")
	only(b.Thrash != 0, "thrash", "cores")
	only(b.Sigma != 0, "sigma", "usl")
	only(b.Kappa != 0, "kappa", "usl")
	only(b.Workers != 0, "workers", "pool")
	only(b.Outside != 0, "outside", "mutex")
	f.check(b.Deadline >= 0, path+".deadline", "%v: must not be negative", time.Duration(b.Deadline))
	f.check(b.Loses == "" || b.Loses == "speed" || b.Loses == "workers" && b.Law == "pool",
		path+".loses", "%q: must be speed, or workers for law \"pool\"", b.Loses)
	switch b.Law {
	case "cores":
		f.check(b.Cores >= 1 && b.Cores <= 1e6, path+".cores", "%d: must be from 1 to 1000000", b.Cores)
		f.check(b.Discipline == "" || b.Discipline == "fifo" || b.Discipline == "ps",
			path+".discipline", "%q: must be fifo or ps", b.Discipline)
		f.check(b.Thrash >= 0 && (b.Thrash == 0 || b.Discipline == "ps"), path+".thrash",
			"%v: must not be negative, and needs discipline \"ps\"", b.Thrash)
	case "usl":
		f.check(b.Sigma >= 0 && b.Sigma <= 1, path+".sigma", "%v: must be from 0 to 1", b.Sigma)
		f.check(b.Kappa >= 0 && b.Kappa <= 1, path+".kappa", "%v: must be from 0 to 1", b.Kappa)
		f.check(b.Sigma > 0 || b.Kappa > 0, path, "sigma and kappa are both 0: nothing limits this backend, and its capacity is infinite")
	case "pool":
		f.check(b.Workers >= 1 && b.Workers <= 1e6, path+".workers", "%d: must be from 1 to 1000000", b.Workers)
	case "mutex":
		f.check(b.Outside >= 0, path+".outside", "%v: must not be negative", time.Duration(b.Outside))
	default:
		f.add(path+".law", "%q: must be cores, usl, pool or mutex", b.Law)
	}
}

// relative returns the law's throughput with n requests inside, in units of
// one request alone.
func (b *Backend) relative(n int) float64 {
	x := float64(n)
	switch b.Law {
	case "usl":
		return x / (1 + b.Sigma*(x-1) + b.Kappa*x*(x-1))
	case "pool":
		return math.Min(x, float64(b.Workers))
	case "mutex":
		alone := b.Service.mean() + time.Duration(b.Outside).Seconds()
		return math.Min(x, alone/b.Service.mean())
	}
	c := float64(b.Cores)
	return math.Min(x, c) / (1 + b.Thrash*math.Max(0, x-c))
}

// left returns how much of its capacity the backend has in a phase.
func (b *Backend) left(scale float64) float64 {
	if b.Law == "pool" && b.Loses != "speed" && scale > 0 {
		return float64(workersLeft(b.Workers, scale)) / float64(b.Workers)
	}
	return scale
}

func workersLeft(workers int, scale float64) int {
	return max(1, int(math.Round(scale*float64(workers))))
}

// alone is the mean time of one request when it is alone, in seconds.
func (b *Backend) alone() float64 {
	return b.Service.mean() + time.Duration(b.Outside).Seconds()
}

// Capacity returns the largest throughput the law allows, in requests a
// second, and the least concurrency that reaches it (for usl the one nearest
// the top; without kappa, which has no top, where 99 % is reached).
func (b *Backend) Capacity() (rps float64, concurrency int) {
	n := 1
	switch b.Law {
	case "cores":
		n = b.Cores
	case "pool":
		n = b.Workers
	case "mutex":
		n = int(math.Ceil(b.alone()/b.Service.mean() - 1e-9))
	case "usl":
		return b.uslCapacity()
	}
	return b.relative(n) / b.alone(), n
}

func (b *Backend) uslCapacity() (float64, int) {
	if b.Kappa == 0 {
		// X(n) = n/(1−σ+σn) tends to 1/σ; 99 % of that at n = 99(1−σ)/σ.
		return 1 / b.Sigma / b.alone(), max(1, int(math.Ceil(99*(1-b.Sigma)/b.Sigma)))
	}
	top := math.Sqrt(math.Max(0, 1-b.Sigma) / b.Kappa)
	n := max(1, int(top))
	if b.relative(n+1) > b.relative(n) {
		n++
	}
	return b.relative(n) / b.alone(), n
}

// server is a backend at work.
type server interface {
	// enter brings a job that is work seconds of service.
	enter(now time.Duration, job int32, work float64)
	// next returns when something happens inside.
	next() time.Duration
	// step does what is due now and returns the job that was finished, if any.
	step(now time.Duration) (job int32, finished bool)
	// inside counts the jobs that have entered and are not finished.
	inside() int
	// setCapacity leaves scale of the original capacity; with 0 everything
	// inside stands still.
	setCapacity(now time.Duration, scale float64)
}

// newServer puts the backend to work.
func (b *Backend) newServer() server {
	alone := func(int) float64 { return 1 }
	switch b.Law {
	case "usl":
		sigma, kappa := b.Sigma, b.Kappa
		return &shared{station: station{scale: 1, speed: func(n int) float64 {
			x := float64(n)
			return 1 / (1 + float64(sigma*(x-1)) + float64(kappa*x*(x-1)))
		}}}
	case "pool":
		return &shared{station{scale: 1, slots: b.Workers, speed: alone}, b.Workers, b.Loses != "speed"}
	case "mutex":
		return &locked{
			outside: time.Duration(b.Outside).Seconds(),
			before:  station{scale: 1, speed: alone},
			lock:    station{scale: 1, slots: 1, speed: alone},
		}
	}
	if b.Discipline != "ps" {
		return &shared{station{scale: 1, slots: b.Cores, speed: alone}, b.Cores, false}
	}
	cores, thrash := float64(b.Cores), b.Thrash
	return &shared{station: station{scale: 1, speed: func(n int) float64 {
		x := float64(n)
		if x <= cores {
			return 1
		}
		return cores / x / (1 + float64(thrash*(x-cores)))
	}}}
}

// shared is a server of one station.
type shared struct {
	station
	slots        int
	losesWorkers bool
}

func (s *shared) step(now time.Duration) (int32, bool) { return s.finish(now), true }

func (s *shared) setCapacity(now time.Duration, scale float64) {
	if s.losesWorkers && scale > 0 {
		s.station.setCapacity(now, 1, workersLeft(s.slots, scale))
		return
	}
	s.station.setCapacity(now, scale, s.slots)
}

// locked is a server of two stations in a row: in parallel, then one by one.
type locked struct {
	outside      float64
	before, lock station
	held         []float64 // work under the lock, by job
}

func (l *locked) enter(now time.Duration, job int32, work float64) {
	for int(job) >= len(l.held) {
		l.held = append(l.held, 0)
	}
	l.held[job] = work
	l.before.enter(now, job, l.outside)
}

func (l *locked) next() time.Duration { return min(l.before.next(), l.lock.next()) }

func (l *locked) step(now time.Duration) (int32, bool) {
	if l.lock.next() <= now {
		return l.lock.finish(now), true
	}
	job := l.before.finish(now)
	l.lock.enter(now, job, l.held[job])
	return job, false
}

func (l *locked) inside() int { return l.before.inside() + l.lock.inside() }

func (l *locked) setCapacity(now time.Duration, scale float64) {
	l.before.setCapacity(now, min(1, math.Ceil(scale)), 0)
	l.lock.setCapacity(now, scale, 1)
}

// Streams of random numbers: each purpose has its own, so that a gate which
// admits differently sees the same traffic.
const (
	streamArrivals = iota + 1
	streamService
	streamTenant
	streamGateway
	streamRetry
	streamFate
	streamCache
)

// stream returns the random numbers of one purpose for one class.
func stream(seed uint64, purpose, class int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(purpose)<<32|uint64(class)))
}

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

// Dist is a distribution of service times: how much work a request is, in
// seconds of service when it is alone.
type Dist struct {
	// Dist is constant, exponential, erlang, lognormal or bimodal.
	Dist string `json:"dist"`
	// Mean of all but bimodal, which has its modes.
	Mean policy.Duration `json:"mean,omitempty"`
	// K is the number of stages of erlang: 1 is exponential, more is more
	// regular. At least 1.
	K int `json:"k,omitempty"`
	// CV is the coefficient of variation of lognormal: the standard deviation
	// over the mean. More than 0.
	CV float64 `json:"cv,omitempty"`
	// Modes are the values of bimodal with their weights, two or more.
	Modes []Mode `json:"modes,omitempty"`
}

// Mode is one value of a distribution with a few of them.
type Mode struct {
	// Weight is the share of requests, relative to the other modes'.
	Weight float64 `json:"weight"`
	// Time is the service time.
	Time policy.Duration `json:"time"`
}

func (d *Dist) validate(f *faultList, path string) {
	if d.Dist != "bimodal" {
		f.check(d.Mean > 0, path+".mean", "%v: must be more than 0, like \"10ms\"", time.Duration(d.Mean))
	}
	f.check(d.K == 0 || d.Dist == "erlang", path+".k", "only for erlang, not for %q", d.Dist)
	f.check(d.CV == 0 || d.Dist == "lognormal", path+".cv", "only for lognormal, not for %q", d.Dist)
	f.check(len(d.Modes) == 0 || d.Dist == "bimodal", path+".modes", "only for bimodal, not for %q", d.Dist)
	switch d.Dist {
	case "constant", "exponential":
	case "erlang":
		f.check(d.K >= 1 && d.K <= 1000, path+".k", "%d: must be from 1 to 1000", d.K)
	case "lognormal":
		f.check(d.CV > 0 && d.CV <= 100, path+".cv", "%v: must be more than 0 and at most 100", d.CV)
	case "bimodal":
		f.check(d.Mean == 0, path+".mean", "the modes have their own")
		f.check(len(d.Modes) > 0, path+".modes", "needs at least one {weight, time}")
		for i, m := range d.Modes {
			at := index(path+".modes", i)
			f.check(m.Weight > 0 && m.Weight <= 1e9, at+".weight", "%v: must be more than 0", m.Weight)
			f.check(m.Time > 0, at+".time", "%v: must be more than 0", time.Duration(m.Time))
		}
	default:
		f.add(path+".dist", "%q: must be constant, exponential, erlang, lognormal or bimodal", d.Dist)
	}
}

// mean returns the mean in seconds.
func (d *Dist) mean() float64 {
	if d.Dist != "bimodal" {
		return time.Duration(d.Mean).Seconds()
	}
	var weights, sum float64
	for _, m := range d.Modes {
		weights += m.Weight
		sum += m.Weight * time.Duration(m.Time).Seconds()
	}
	return sum / weights
}

// sampler returns a function that draws from the distribution, in seconds.
func (d *Dist) sampler() func(*rand.Rand) float64 {
	mean := d.mean()
	switch d.Dist {
	case "exponential":
		return func(r *rand.Rand) float64 { return mean * r.ExpFloat64() }
	case "erlang":
		stage := mean / float64(d.K)
		return func(r *rand.Rand) float64 {
			var sum float64
			for range d.K {
				sum += r.ExpFloat64()
			}
			return stage * sum
		}
	case "lognormal":
		sigma2 := math.Log1p(d.CV * d.CV)
		mu, sigma := math.Log(mean)-sigma2/2, math.Sqrt(sigma2)
		return func(r *rand.Rand) float64 { return math.Exp(mu + float64(sigma*r.NormFloat64())) }
	case "bimodal":
		return d.modeSampler()
	}
	return func(*rand.Rand) float64 { return mean }
}

func (d *Dist) modeSampler() func(*rand.Rand) float64 {
	var total float64
	for _, m := range d.Modes {
		total += m.Weight
	}
	return func(r *rand.Rand) float64 {
		u := r.Float64() * total
		for _, m := range d.Modes[:len(d.Modes)-1] {
			if u -= m.Weight; u < 0 {
				return time.Duration(m.Time).Seconds()
			}
		}
		return time.Duration(d.Modes[len(d.Modes)-1].Time).Seconds()
	}
}
