package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/station"
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
	//	        and each one too many costs all of them Thrash
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
	Cores      int     `json:"cores,omitempty" max:"1000000"`
	Discipline string  `json:"discipline,omitempty" enum:"fifo,ps"`
	Thrash     float64 `json:"thrash,omitempty" min:"0"`
	// Sigma and Kappa are of usl.
	Sigma float64 `json:"sigma,omitempty" min:"0" max:"1"`
	Kappa float64 `json:"kappa,omitempty" min:"0" max:"1"`
	// Workers is of pool.
	Workers int `json:"workers,omitempty" max:"1000000"`
	// Outside is of mutex: the time spent before the lock is asked for.
	Outside policy.Duration `json:"outside,omitempty" min:"0s"`

	// Loses says what the backend loses in a phase with less capacity: speed (the
	// default) or workers (pool only, and the default there).
	Loses string `json:"loses,omitempty"`

	// Deadline is when an answer stops being useful, for traffic that names no
	// deadline of its own. 0 means never.
	Deadline policy.Duration `json:"deadline,omitempty" min:"0s" max:"1000h"`
}

func (b *Backend) check(f *fault.List, path fault.Path) {
	b.Service.check(f, path.At("service"))
	only := func(set bool, field, law string) {
		f.Require(!set || b.Law == law, path.At(field), "only for law %q, not for %q", law, b.Law)
	}
	only(b.Cores != 0, "cores", "cores")
	only(b.Discipline != "", "discipline", "cores")
	only(b.Thrash != 0, "thrash", "cores")
	only(b.Sigma != 0, "sigma", "usl")
	only(b.Kappa != 0, "kappa", "usl")
	only(b.Workers != 0, "workers", "pool")
	only(b.Outside != 0, "outside", "mutex")
	f.Require(b.Loses == "" || b.Loses == "speed" || b.Loses == "workers" && b.Law == "pool", path.At("loses"), "%q: must be speed, or workers for law \"pool\"", b.Loses)
	switch b.Law {
	case "cores":
		f.Require(b.Cores >= 1, path.At("cores"), "%d: must be from 1 to 1000000", b.Cores)
		f.Require(b.Thrash == 0 || b.Discipline == "ps", path.At("thrash"), "%v: needs discipline \"ps\"", b.Thrash)
	case "usl":
		f.Require(b.Sigma > 0 || b.Kappa > 0, path, "sigma and kappa are both 0: nothing limits this backend, and its capacity is infinite")
	case "pool":
		f.Require(b.Workers >= 1, path.At("workers"), "%d: must be from 1 to 1000000", b.Workers)
	case "mutex":
	default:
		f.Require(false, path.At("law"), "%q: must be cores, usl, pool or mutex", b.Law)
	}
}

// model is the backend as the law of a station; with a mutex, it is that of
// the lock.
func (b *Backend) model() station.Law {
	switch {
	case b.Law == "usl":
		return station.Law{Sigma: b.Sigma, Kappa: b.Kappa}
	case b.Law == "pool":
		return station.Law{Slots: b.Workers}
	case b.Law == "mutex":
		return station.Law{Slots: 1}
	case b.Discipline == "ps":
		return station.Law{Cores: b.Cores, Thrash: b.Thrash}
	}
	return station.Law{Slots: b.Cores}
}

// capacityLeft returns how much of its capacity the backend has in a phase.
func (b *Backend) capacityLeft(scale float64) float64 {
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

// Capacity returns the largest throughput of the law, in requests a second, and the least
// concurrency that reaches it. For usl, that is the concurrency nearest the top. Without kappa usl
// has no top: then it is where 99 % is reached.
func (b *Backend) Capacity() (rps float64, concurrency int) {
	if b.Law == "mutex" {
		n := math.Ceil(b.alone()/b.Service.mean() - 1e-9)
		return math.Min(n, b.alone()/b.Service.mean()) / b.alone(), int(n)
	}
	law := b.model()
	n, throughput := law.Best()
	return throughput / b.alone(), n
}

// server is a backend at work.
type server interface {
	// Enter brings a job that is work seconds of service.
	Enter(now time.Duration, job int32, work float64)
	// Next returns when something happens inside.
	Next() time.Duration
	// Step does what is due now and returns the job that was finished, if any.
	Step(now time.Duration) (job int32, finished bool)
	// Remove takes a job out that is not finished, and reports whether it was there.
	Remove(now time.Duration, job int32) bool
	// Len counts the jobs that have entered and are not finished.
	Len() int
	// setCapacity leaves scale of the original capacity; with 0 everything
	// inside stands still.
	setCapacity(now time.Duration, scale float64)
}

// newServer puts the backend to work.
func (b *Backend) newServer() server {
	law := b.model()
	if b.Law == "mutex" {
		return &locked{outside: time.Duration(b.Outside).Seconds(), before: station.New(station.Law{}), lock: station.New(law)}
	}
	return &shared{station.New(law), law.Slots, b.Law == "pool" && b.Loses != "speed"}
}

// shared is a server of one station.
type shared struct {
	station.Station
	slots        int
	losesWorkers bool
}

func (s *shared) Step(now time.Duration) (int32, bool) { return s.Finish(now), true }

func (s *shared) setCapacity(now time.Duration, scale float64) {
	if s.losesWorkers && scale > 0 {
		s.SetCapacity(now, 1, workersLeft(s.slots, scale))
		return
	}
	s.SetCapacity(now, scale, s.slots)
}

// locked is a server of two stations in a row: in parallel, then one by one.
type locked struct {
	outside      float64
	before, lock station.Station
	held         []float64 // work under the lock, by job
}

func (l *locked) Enter(now time.Duration, job int32, work float64) {
	for int(job) >= len(l.held) {
		l.held = append(l.held, 0)
	}
	l.held[job] = work
	l.before.Enter(now, job, l.outside)
}

func (l *locked) Next() time.Duration { return min(l.before.Next(), l.lock.Next()) }

func (l *locked) Step(now time.Duration) (int32, bool) {
	if l.lock.Next() <= now {
		return l.lock.Finish(now), true
	}
	job := l.before.Finish(now)
	l.lock.Enter(now, job, l.held[job])
	return job, false
}

func (l *locked) Remove(now time.Duration, job int32) bool {
	return l.before.Remove(now, job) || l.lock.Remove(now, job)
}

func (l *locked) Len() int { return l.before.Len() + l.lock.Len() }

func (l *locked) setCapacity(now time.Duration, scale float64) {
	l.before.SetCapacity(now, min(1, math.Ceil(scale)), 0)
	l.lock.SetCapacity(now, scale, 1)
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
	streamProcess
)

// stream returns the random numbers of one purpose for one class.
func stream(seed uint64, purpose, class int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(purpose)<<32|uint64(class)))
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
	K int `json:"k,omitempty" max:"1000"`
	// CV is the coefficient of variation of lognormal: the standard deviation
	// over the mean. More than 0.
	CV float64 `json:"cv,omitempty" max:"100"`
	// Modes are the values of bimodal with their weights, two or more.
	Modes []Mode `json:"modes,omitempty"`
}

// Mode is one value of a distribution with a few of them.
type Mode struct {
	// Weight is the share of requests, relative to the other modes'.
	Weight float64 `json:"weight" min:"0.000001" max:"1e9" required:"true" example:"1"`
	// Time is the service time.
	Time policy.Duration `json:"time" min:"1ns" required:"true" example:"\"10ms\""`
}

func (d *Dist) check(f *fault.List, path fault.Path) {
	if d.Dist != "bimodal" {
		f.Require(d.Mean > 0, path.At("mean"), "%v: must be more than 0, like \"10ms\"", time.Duration(d.Mean))
	}
	f.Require(d.K == 0 || d.Dist == "erlang", path.At("k"), "only for erlang, not for %q", d.Dist)
	f.Require(d.CV == 0 || d.Dist == "lognormal", path.At("cv"), "only for lognormal, not for %q", d.Dist)
	f.Require(len(d.Modes) == 0 || d.Dist == "bimodal", path.At("modes"), "only for bimodal, not for %q", d.Dist)
	switch d.Dist {
	case "constant", "exponential":
	case "erlang":
		f.Require(d.K >= 1, path.At("k"), "%d: must be from 1 to 1000", d.K)
	case "lognormal":
		f.Require(d.CV > 0, path.At("cv"), "%v: must be more than 0 and at most 100", d.CV)
	case "bimodal":
		f.Require(d.Mean == 0, path.At("mean"), "the modes have their own")
		f.Require(len(d.Modes) > 0, path.At("modes"), "needs at least one {weight, time}")
	default:
		f.Require(false, path.At("dist"), "%q: must be constant, exponential, erlang, lognormal or bimodal", d.Dist)
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
