package live

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
)

// Bounds of a load, so that a slip of the keyboard is no attack.
const (
	mostRate = 25_000 // requests a second
	mostOpen = 4096   // connections
)

// record is one request, from its birth on.
type record struct {
	Due     time.Duration // since the load's start
	Work    time.Duration
	Heavy   bool // one of the few with much work, where there are two kinds
	Answer  loadgen.Answer
	Late    bool          // left too late
	Calls   uint8         // of a task that were answered in time
	Latency time.Duration // since Due
}

// phase is a stretch of load at one mean rate.
type phase struct {
	Load  float64 // as a share of the capacity
	For   time.Duration
	Scale float64 // of the capacity that is left; 0 is all
}

// Load is an open-loop load with Poisson arrivals.
type Load struct {
	Phases   []phase
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
func (l *Load) draw() []record {
	arrivals, works := l.random()
	var all []record
	var begin time.Duration
	for _, p := range l.Phases {
		if l.Again {
			arrivals, works = l.random()
		}
		phase := []loadgen.Phase{{Rate: min(p.Load*l.Capacity, mostRate), For: p.For}}
		for at := range loadgen.Arrivals(arrivals, phase) {
			work, heavy := drawWork(works, l.Dist)
			r := record{Due: begin + at, Heavy: heavy}
			if l.Mean > 0 {
				r.Work = max(time.Microsecond, time.Duration(work*float64(l.Mean)))
			}
			all = append(all, r)
		}
		begin += p.For
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
func (l *Load) run(ctx context.Context, addr string, epoch time.Time) []record {
	all := l.draw()
	return all[:l.loop(addr, epoch, all).Run(ctx)]
}

// loop is the open loop that sends the requests, over a connection for each client.
func (l *Load) loop(addr string, epoch time.Time, all []record) *loadgen.Open {
	return &loadgen.Open{
		Epoch: epoch,
		Due: func(yield func(time.Duration) bool) {
			for i := 0; i < len(all) && yield(all[i].Due); i++ {
			}
		},
		Most:   mostOpen,
		Unsent: func(int, time.Duration) {},
		Client: func() (func(int, time.Duration), func()) {
			c := new(conn)
			return func(i int, _ time.Duration) { l.task(c, addr, epoch, i, &all[i]) }, c.Close
		},
	}
}

// heads is never empty.
func (l *Load) heads() []string {
	if len(l.Heads) == 0 {
		return []string{head("/", "")}
	}
	return l.Heads
}

// task makes the calls of request i.
func (l *Load) task(c *conn, addr string, epoch time.Time, i int, r *record) {
	due, heads := epoch.Add(r.Due), l.heads()
	r.Late = time.Since(due) > loadgen.LateAfter(l.Patience)
	begin, head, work := due, heads[i%len(heads)], r.Work
	for {
		r.Answer = c.roundTrip(addr, head, work, begin.Add(l.Patience))
		now := time.Now()
		r.Latency = now.Sub(due)
		if r.Answer == loadgen.OK && now.Sub(begin) > l.Patience {
			r.Answer = loadgen.GaveUp
		}
		if r.Answer != loadgen.OK {
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

// conn is a client's connection.
type conn struct {
	rig.Conn
	req []byte
}

// roundTrip sends a request with that head, of so much work, and waits for its
// answer until the time given.
func (c *conn) roundTrip(addr, head string, work time.Duration, until time.Time) loadgen.Answer {
	c.req = append(append(c.req[:0], head...), workHeader+": "...)
	c.req = strconv.AppendInt(c.req, work.Microseconds(), 10)
	c.req = append(c.req, "\r\n\r\n"...)
	return c.RoundTrip(addr, c.req, until)
}

// batch is a closed loop: so many clients that always have more to do, each with one
// request at a time.
type batch struct {
	head       string
	clients    int
	patience   time.Duration
	mean       time.Duration // work of a request
	seed       uint64
	begin, end time.Duration // since the load's epoch
}

// batchPause is the mean time that a client of a batch rests after anything but an
// answer in time.
const batchPause = 100 * time.Millisecond

// run keeps the clients busy from begin to end, and returns their requests in the order
// in which they were sent.
func (b *batch) run(ctx context.Context, addr string, epoch time.Time) []record {
	ctx, cancel := context.WithDeadline(ctx, epoch.Add(b.end))
	defer cancel()
	if loadgen.Pause(ctx, time.Until(epoch.Add(b.begin))) != nil {
		return nil
	}
	each := make([][]record, b.clients)
	_ = loadgen.Closed(ctx, b.clients, func(i int) (func() error, func()) {
		c, random := new(conn), rand.New(rand.NewPCG(b.seed, 3+uint64(i)))
		rests := true // at first, so that not all begin at the same time
		return func() error {
			if rests && loadgen.Pause(ctx, time.Duration(2*random.Float64()*float64(batchPause))) != nil {
				return nil // the loop ends with ctx
			}
			r := b.request(c, addr, random, epoch)
			each[i], rests = append(each[i], r), r.Answer != loadgen.OK
			return nil
		}, c.Close
	})
	records := slices.Concat(each...)
	slices.SortStableFunc(records, func(a, b record) int { return cmp.Compare(a.Due, b.Due) })
	return records
}

// request sends one request.
func (b *batch) request(c *conn, addr string, random *rand.Rand, epoch time.Time) record {
	work, _ := drawWork(random, "")
	r := record{Due: time.Since(epoch), Work: max(time.Microsecond, time.Duration(work*float64(b.mean)))}
	r.Answer = c.roundTrip(addr, b.head, r.Work, epoch.Add(r.Due+b.patience))
	r.Latency = time.Since(epoch) - r.Due
	if r.Answer == loadgen.OK {
		r.Calls = 1
	}
	return r
}
