package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/throttle"
)

// span is a phase laid out on the time of a run.
type span struct {
	from, to  time.Duration
	rate      float64 // requests a second
	capacity  float64 // of the full one, 0 for a backend that stands still
	work      float64 // of each request, 1 is the usual
	suspended bool
	errors    *Errors
}

// layOut turns phases into spans. full is the backend's capacity, share the
// part of the rate that is wanted.
func layOut(phases []Phase, repeat int, full, share float64) []span {
	var spans []span
	var at time.Duration
	for range max(1, repeat) {
		for _, p := range phases {
			s := span{
				from: at, to: at + time.Duration(p.For),
				rate:     share * (p.RPS + p.Load*full),
				capacity: cmp.Or(p.Capacity, 1), work: cmp.Or(p.Work, 1),
				suspended: p.Suspended, errors: p.Errors,
			}
			if p.Stalled {
				s.capacity = 0
			}
			at = s.to
			spans = append(spans, s)
		}
	}
	return spans
}

// class is a kind of request at run time.
type class struct {
	name     string
	index    int32
	arrivals arrivals
	template weir.Work

	draw    func(*rand.Rand) float64
	service *rand.Rand
	fate    *rand.Rand // whether a request fails at once
	cache   *cache     // nil: none

	tenants []string
	tenant  *rand.Rand

	alone    float64       // mean time of a request with the backend to itself, in seconds
	calls    int32         // of a task
	later    weir.Priority // of those after the first, if raised
	raised   bool
	nested   bool // the first call's slot is held until the last is over
	clients  int
	think    time.Duration // of a client, after an answer
	pause    time.Duration // after a refusal
	settled  int64         // what an answer turns out to have cost, 0: what was asked for
	ranked   bool          // has a priority of its own
	deadline time.Duration // 0: never
	told     time.Duration // the deadline the gates know of, 0: none
	timeout  time.Duration // 0: the client waits for ever

	retries                        int
	retryOnTimeout, retryOnRefusal bool
	firstBackoff, maxBackoff       time.Duration
	heed                           bool
	jitter                         *rand.Rand
	caller                         *throttle.Caller // nil: each client is on its own
	route                          *policy.Route
}

// newClass prepares a class for one run. spans are its rates.
func newClass(index int, spec *Class, b *Backend, spans []span, seed uint64) *class {
	c := &class{
		name:     spec.Name,
		index:    int32(index),
		service:  stream(seed, streamService, index),
		tenant:   stream(seed, streamTenant, index),
		jitter:   stream(seed, streamRetry, index),
		fate:     stream(seed, streamFate, index),
		deadline: time.Duration(spec.Deadline),
		timeout:  time.Duration(spec.Timeout),
	}
	if c.deadline == 0 {
		c.deadline = time.Duration(b.Deadline)
	}
	if spec.Leaves && c.timeout == 0 {
		c.timeout = c.deadline
	}
	if spec.Patience > 0 {
		c.timeout = spec.patience(b)
	}
	if spec.TellDeadline == nil || *spec.TellDeadline {
		c.told = c.deadline
	}
	c.draw = spec.sampler(b)
	if spec.Cache != nil {
		c.cache = newCache(spec.Cache, stream(seed, streamCache, index))
	}
	priority, ranked := weir.ParsePriority(spec.Priority)
	c.ranked = ranked
	c.template = weir.Work{
		Tenant: spec.Tenant, User: spec.User, Client: spec.Client,
		Priority: priority, Cost: spec.Cost,
	}
	c.setTask(spec)
	c.alone = spec.mean(b) + time.Duration(b.Outside).Seconds()
	for i := range spec.Tenants {
		c.tenants = append(c.tenants, spec.Tenant+"-"+strconv.Itoa(i))
	}
	c.arrivals = newArrivals(spec, spans, stream(seed, streamArrivals, index))
	if spec.Retry != nil {
		c.setRetry(spec.Retry)
	}
	return c
}

// patience is the timeout that Patience means on a backend.
func (c *Class) patience(b *Backend) time.Duration {
	full, best := b.Capacity()
	return time.Duration(c.Patience * float64(best) / full * 1e9)
}

// Useful returns how long an answer is of use to the class, on a backend. It ends at the deadline
// or the end of the client's patience, whichever comes first. 0 means for ever.
func (c *Class) Useful(b *Backend) time.Duration {
	var useful time.Duration
	for _, d := range []time.Duration{
		cmp.Or(time.Duration(c.Deadline), time.Duration(b.Deadline)), time.Duration(c.Timeout), c.patience(b),
	} {
		if d > 0 && (useful == 0 || d < useful) {
			useful = d
		}
	}
	return useful
}

// mean is the mean work of the class's requests, in seconds.
func (c *Class) mean(b *Backend) float64 {
	if c.Service != nil {
		return c.Service.mean()
	}
	return cmp.Or(c.Work, 1) * b.Service.mean()
}

// sampler draws the work of the class's requests.
func (c *Class) sampler(b *Backend) func(*rand.Rand) float64 {
	if c.Service != nil {
		return c.Service.sampler()
	}
	draw, times := b.Service.sampler(), cmp.Or(c.Work, 1)
	if c.Shape != nil {
		draw = c.Shape.sampler()
		times *= b.Service.mean() / c.Shape.mean()
	}
	if times == 1 {
		return draw
	}
	return func(r *rand.Rand) float64 { return times * draw(r) }
}

const defaultMaxBackoff = 30 * time.Second

func (c *class) setRetry(r *Retry) {
	c.retries = r.Attempts
	c.firstBackoff, c.maxBackoff = time.Duration(r.Backoff), time.Duration(r.MaxBackoff)
	if c.maxBackoff == 0 {
		c.maxBackoff = defaultMaxBackoff
	}
	c.heed = r.Heed
	c.retryOnTimeout, c.retryOnRefusal = len(r.On) == 0, len(r.On) == 0
	for _, on := range r.On {
		c.retryOnTimeout = c.retryOnTimeout || on == "timeout"
		c.retryOnRefusal = c.retryOnRefusal || on == "refusal"
	}
}

// pickTenant returns the number of a tenant.
func (c *class) pickTenant() int32 {
	if len(c.tenants) == 0 {
		return 0
	}
	return int32(c.tenant.IntN(len(c.tenants)))
}

// tenantName is a tenant by its number.
func (c *class) tenantName(n int32) string {
	if len(c.tenants) == 0 {
		return c.template.Tenant
	}
	return c.tenants[n]
}

// backoff is the pause after an attempt, the first being number 1.
func (c *class) backoff(tries int, after time.Duration) time.Duration {
	d, doublings := c.maxBackoff, min(tries-1, 20)
	if c.firstBackoff <= c.maxBackoff>>doublings { // or the shift might overflow
		d = c.firstBackoff << doublings
	}
	d = time.Duration(c.jitter.Float64() * float64(d))
	if c.heed {
		d += after
	}
	return d
}

// arrivals says when the requests of a class come.
type arrivals interface {
	next() time.Duration // never when there are no more
}

func newArrivals(spec *Class, spans []span, rng *rand.Rand) arrivals {
	if spec.Clients > 0 {
		return &script{}
	}
	if len(spec.At) > 0 {
		at := make(script, 0, len(spec.At))
		for _, d := range spec.At {
			at = append(at, time.Duration(d))
		}
		sort.Slice(at, func(i, j int) bool { return at[i] < at[j] })
		return &at
	}
	return &flow{spans: spans, rng: rng, regular: spec.Arrivals == "regular"}
}

// script is arrivals one by one.
type script []time.Duration

func (s *script) next() time.Duration {
	if len(*s) == 0 {
		return never
	}
	at := (*s)[0]
	*s = (*s)[1:]
	return at
}

// flow is arrivals at rates that change by phase. It is a stream of rate 1, with exponential gaps
// or gaps of exactly 1. The rates stretch its time.
type flow struct {
	spans   []span
	rng     *rand.Rand
	regular bool
	at      float64 // seconds
	span    int
}

func (f *flow) next() time.Duration {
	gap := 1.0
	if !f.regular {
		gap = f.rng.ExpFloat64()
	}
	for ; f.span < len(f.spans); f.span++ {
		s := &f.spans[f.span]
		f.at = max(f.at, s.from.Seconds())
		here := s.rate * (s.to.Seconds() - f.at)
		if here >= gap && s.rate > 0 {
			f.at += gap / s.rate
			return time.Duration(f.at * 1e9)
		}
		gap -= max(0, here)
	}
	return never
}

// Cache is a look-aside cache. Clients ask it first, and then the backend for what they do not
// find. They store the answers that they got in time. A request with its answer in the cache does
// not reach the gates.
type Cache struct {
	// Keys is how many different keys clients ask for. Zipf is how uneven the requests are: the
	// k-th most popular key is asked for 1/k^Zipf as often as the first. Zipf is more than 0.
	Keys int     `json:"keys" min:"1" max:"10000000" required:"true" example:"1000"`
	Zipf float64 `json:"zipf" min:"0.000001" max:"10" required:"true" example:"1.0"`
	// Size is how many answers the cache holds. A new one replaces
	// one at random. It starts with the most popular ones.
	Size int `json:"size" min:"1" required:"true" example:"100"`
	// Flush lists the times when it loses everything.
	Flush []policy.Duration `json:"flush,omitempty" min:"0s"`
}

// cache is a Cache at work. Keys are numbered by their popularity.
type cache struct {
	rng     *rand.Rand
	chances []float64 // of keys up to each
	key     int32     // the last one drawn

	place []int32 // of each key in held, -1 for none
	held  []int32
	size  int
	flush []time.Duration
}

func newCache(spec *Cache, rng *rand.Rand) *cache {
	c := &cache{rng: rng, size: spec.Size, place: make([]int32, spec.Keys), chances: make([]float64, spec.Keys)}
	sum := 0.0
	for k := range c.chances {
		sum += math.Pow(float64(k+1), -spec.Zipf)
		c.chances[k] = sum
		c.place[k] = -1
	}
	for k := range spec.Size {
		c.fill(int32(k))
	}
	for _, at := range spec.Flush {
		c.flush = append(c.flush, time.Duration(at))
	}
	slices.Sort(c.flush)
	return c
}

// lookup draws a key and reports whether its answer is there.
func (c *cache) lookup(now time.Duration) bool {
	for len(c.flush) > 0 && c.flush[0] <= now {
		c.flush = c.flush[1:]
		for _, k := range c.held {
			c.place[k] = -1
		}
		c.held = c.held[:0]
	}
	u := c.rng.Float64() * c.chances[len(c.chances)-1]
	k, _ := slices.BinarySearch(c.chances, u)
	c.key = int32(min(k, len(c.chances)-1))
	return c.place[c.key] >= 0
}

// fill puts in an answer.
func (c *cache) fill(key int32) {
	if c.place[key] >= 0 {
		return
	}
	if len(c.held) < c.size {
		c.place[key] = int32(len(c.held))
		c.held = append(c.held, key)
		return
	}
	i := c.rng.IntN(len(c.held))
	c.place[c.held[i]] = -1
	c.held[i], c.place[key] = key, int32(i)
}
