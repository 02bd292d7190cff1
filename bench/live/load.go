package live

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of a load, so that a slip of the keyboard is no attack.
const (
	mostRate = 25_000 // requests a second
	mostOpen = 4096   // connections
	mostSend = 2_000_000
)

// VoidAbove is the share of requests that left late, or not at all, above which
// a run is void.
const VoidAbove = 0.02

// lateShare is how far behind its time a request may leave, as a share of its
// client's patience. Timers are a millisecond late as it is.
const lateShare = 0.05

func lateAfter(patience time.Duration) time.Duration {
	return max(2*time.Millisecond, time.Duration(lateShare*float64(patience)))
}

// Answer is what became of a request.
type Answer uint8

// The answers.
const (
	Unsent  Answer = iota // never left: too many were open
	OK                    // what was wanted, in time
	Refused               // told to come back later
	Failed                // another status, or a broken connection
	GaveUp                // nothing within its client's patience
)

// Record is one request, from its birth on.
type Record struct {
	Due     time.Duration // since the load's start
	Work    time.Duration
	Heavy   bool // one of the few with much work, where there are two kinds
	Answer  Answer
	Late    bool          // left too late
	Calls   uint8         // of a task that were answered in time
	Latency time.Duration // since Due
}

// Phase is a stretch of load at one mean rate.
type Phase struct {
	Load  float64 // as a share of the capacity
	For   time.Duration
	Scale float64 // of the capacity that is left; 0 is all
}

// Load is an open-loop load with Poisson arrivals.
type Load struct {
	Addr     string
	Phases   []Phase
	Capacity float64 // requests a second
	Patience time.Duration
	Mean     time.Duration // work of a request; 0: none
	Heads    []string      // what requests begin with, in turn; nil: that they are for /
	Dist     string        // of work: "" exponential, bimodal, lognormal
	Seed     uint64

	// Again gives each phase the same random numbers, so that two phases of one
	// load have the same requests at the same times.
	Again bool
	// Calls makes each request a task of so many, one after the other as long as all
	// goes well. Those after the first begin with Later and have a work of their own;
	// each has its client's whole patience.
	Calls int
	Later string
}

func (l *Load) random() (arrivals, works *rand.Rand) {
	return rand.New(rand.NewPCG(l.Seed, 1)), rand.New(rand.NewPCG(l.Seed, 2))
}

// draw returns all requests of the load.
func (l *Load) draw() []Record {
	arrivals, works := l.random()
	var all []Record
	var begin float64
	for _, p := range l.Phases {
		if l.Again {
			arrivals, works = l.random()
		}
		rate, end := min(p.Load*l.Capacity, mostRate), begin+p.For.Seconds()
		for at := begin; rate > 0 && len(all) < mostSend; {
			at += arrivals.ExpFloat64() / rate
			if at >= end {
				break
			}
			work, heavy := drawWork(works, l.Dist)
			r := Record{Due: time.Duration(at * float64(time.Second)), Heavy: heavy}
			if l.Mean > 0 {
				r.Work = max(time.Microsecond, time.Duration(work*float64(l.Mean)))
			}
			all = append(all, r)
		}
		begin = end
	}
	return all
}

// Two kinds of work: one request in a hundred is fifty times the others.
const (
	heavyShare = 0.01
	heavyTimes = 50
)

// drawWork returns the work of a request; its mean is 1.
func drawWork(random *rand.Rand, dist string) (work float64, heavy bool) {
	switch dist {
	case "bimodal":
		heavy = random.Float64() < heavyShare
		work = 1 / (1 + heavyShare*(heavyTimes-1))
		if heavy {
			work *= heavyTimes
		}
		return work, heavy
	case "lognormal":
		const sigma = 1.0
		return math.Exp(sigma*random.NormFloat64() - sigma*sigma/2), false
	}
	return random.ExpFloat64(), false
}

// run sends the requests at their times and returns them with what became of
// them. epoch is when the first phase begins.
func (l *Load) run(ctx context.Context, epoch time.Time) []Record {
	c := &clients{load: l, heads: l.heads(), epoch: epoch, late: lateAfter(l.Patience), all: l.draw()}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range c.all {
		if wait := time.Until(epoch.Add(c.all[i].Due)); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				c.finish()
				return c.all[:i]
			}
		}
		c.send(i)
	}
	c.finish()
	return c.all
}

// heads is never empty.
func (l *Load) heads() []string {
	if len(l.Heads) == 0 {
		return []string{head("/", "")}
	}
	return l.Heads
}

// clients are those that send: one connection each, one request at a time.
type clients struct {
	load  *Load
	heads []string
	epoch time.Time
	late  time.Duration
	all   []Record

	mu   sync.Mutex
	idle []*client
	open int
	busy sync.WaitGroup // requests under way
	ends sync.WaitGroup // clients
}

// client sends what it is given.
type client struct {
	next chan int
	conn conn
}

// send gives request i to a client: the one that was busy last, or a new one.
func (c *clients) send(i int) {
	c.busy.Add(1)
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		one := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		one.next <- i
		return
	}
	if c.open >= mostOpen {
		c.mu.Unlock()
		c.busy.Done() // it stays Unsent
		return
	}
	c.open++
	c.mu.Unlock()
	one := &client{next: make(chan int, 1)}
	one.next <- i
	c.ends.Go(func() { c.work(one) })
}

func (c *clients) work(one *client) {
	defer one.conn.close()
	for i := range one.next {
		c.task(&one.conn, i)
		c.mu.Lock()
		c.idle = append(c.idle, one)
		c.mu.Unlock()
		c.busy.Done()
	}
}

// task makes the calls of request i.
func (c *clients) task(conn *conn, i int) {
	r, l := &c.all[i], c.load
	due := c.epoch.Add(r.Due)
	r.Late = time.Since(due) > c.late
	begin, head, work := due, c.heads[i%len(c.heads)], r.Work
	for {
		r.Answer = conn.roundTrip(l.Addr, head, work, begin.Add(l.Patience))
		now := time.Now()
		r.Latency = now.Sub(due)
		if r.Answer == OK && now.Sub(begin) > l.Patience {
			r.Answer = GaveUp
		}
		if r.Answer != OK {
			return
		}
		if r.Calls++; int(r.Calls) >= l.Calls {
			return
		}
		begin, head, work = now, l.Later, l.laterWork(i, int(r.Calls))
	}
}

// laterWork is the work of a call after the first.
func (l *Load) laterWork(i, call int) time.Duration {
	random := rand.New(rand.NewPCG(l.Seed, uint64(3+i*l.Calls+call)))
	work, _ := drawWork(random, l.Dist)
	return max(time.Microsecond, time.Duration(work*float64(l.Mean)))
}

// finish waits for the answers and closes all connections.
func (c *clients) finish() {
	c.busy.Wait()
	for _, one := range c.idle {
		close(one.next)
	}
	c.ends.Wait()
}
