package live

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// closedRun is what a closed loop came to.
type closedRun struct {
	before, after Stats
	answers       int64
	foreign       float64 // share of the core under test that others used
}

// rate is the work done a second, in requests of mean work.
func (c *closedRun) rate(mean time.Duration) float64 {
	return (c.after.Work - c.before.Work) / c.seconds() / mean.Seconds()
}

func (c *closedRun) seconds() float64 { return (c.after.At - c.before.At).Seconds() }

// cpu is the CPU time of an answer.
func (c *closedRun) cpu() time.Duration {
	return (c.after.CPU - c.before.CPU) / time.Duration(max(1, c.answers))
}

// closed keeps n clients busy, each with one request at a time, for a run-up and
// then for d, which is what counts.
func (r *runner) closed(ctx context.Context, p *process, n int, mean, runUp, d time.Duration) (c closedRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, runUp+d+time.Minute)
	defer cancel()
	var count atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range n {
		wg.Go(func() { oneByOne(p.addr, uint64(i), mean, stop, &count) })
	}
	defer func() {
		close(stop)
		wg.Wait()
	}()
	if err = pause(ctx, runUp); err != nil {
		return c, err
	}
	if c.before, err = p.ask(command{}); err != nil {
		return c, err
	}
	first, core := count.Load(), busy(r.test)
	if err = pause(ctx, d); err != nil {
		return c, err
	}
	c.answers = count.Load() - first
	if c.after, err = p.ask(command{}); err != nil {
		return c, err
	}
	others := busy(r.test) - core - (c.after.CPU - c.before.CPU)
	c.foreign = max(0, others.Seconds()/c.seconds())
	return c, nil
}

// oneByOne sends one request after the other until it is told to stop.
func oneByOne(addr string, seed uint64, mean time.Duration, stop <-chan struct{}, answered *atomic.Int64) {
	random := rand.New(rand.NewPCG(seed, 3))
	var c conn
	defer c.close()
	for {
		select {
		case <-stop:
			return
		default:
		}
		work, _ := drawWork(random, "")
		if a := c.roundTrip(addr, head("/", ""), time.Duration(work*float64(mean)), time.Now().Add(time.Minute)); a == OK || a == Refused {
			answered.Add(1)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// capacity finds the capacity of a backend. A search during which others used
// the core is repeated as a void run is.
func (r *runner) capacity(ctx context.Context, law Law, procs int) (c capacity, err error) {
	for attempt := 0; attempt <= r.plan.Retries; attempt++ {
		if c, err = r.sweep(ctx, law, procs); err != nil || c.foreign <= ForeignAbove {
			break
		}
	}
	return c, err
}

// sweep tries numbers of clients on a server of its own, with no guard.
func (r *runner) sweep(ctx context.Context, law Law, procs int) (c capacity, err error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: guardNone, Kind: "none"}})
	if err != nil {
		return c, err
	}
	defer p.stop()
	levels := []int{1, 2, 4}
	if law.Kind != "burn" {
		n, _ := law.best()
		levels = []int{n / 2, n * 3 / 4, n, n * 3 / 2}
	}
	turn := max(r.plan.turn(800*time.Millisecond), 3*law.Service)
	var runs []closedRun
	for _, n := range levels {
		one, err := r.closed(ctx, p, n, law.Service, max(3*law.Service, 100*time.Millisecond), turn)
		if err != nil {
			return c, err
		}
		runs = append(runs, one)
		c.rate = max(c.rate, one.rate(law.Service))
		c.foreign = max(c.foreign, one.foreign)
	}
	for i, one := range runs {
		if one.rate(law.Service) >= 0.95*c.rate {
			c.clients, c.request = levels[i], one.cpu()
			break
		}
	}
	if law.Kind == "burn" {
		refusals, err := r.refusals(ctx, law, procs, turn)
		if err != nil {
			return c, err
		}
		c.refusal, c.foreign = refusals.cpu(), max(c.foreign, refusals.foreign)
	}
	return c, nil
}

// capacity is what a sweep found.
type capacity struct {
	rate    float64 // requests of mean work a second: the largest there was
	clients int     // the fewest that get 95 % of it
	// CPU time of a request, and of a refusal.
	request, refusal time.Duration
	foreign          float64 // share of the core that others used, at most
}

// bound is the share of the capacity that can be reached at a load of so many
// times the capacity, if each refusal costs its CPU time.
func (c capacity) bound(load float64) float64 {
	if c.request <= 0 || load <= 1 {
		return 1
	}
	return 1 / (1 + (load-1)*c.refusal.Seconds()/c.request.Seconds())
}

// refusals has a server refuse all it gets.
func (r *runner) refusals(ctx context.Context, law Law, procs int, turn time.Duration) (c closedRun, err error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: "refuse", Kind: "refuse"}})
	if err != nil {
		return c, err
	}
	defer p.stop()
	return r.closed(ctx, p, 8, law.Service, 100*time.Millisecond, turn)
}
