package live

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// closed keeps n clients busy, each with one request at a time, for a run-up and
// then for d, and returns the state of the process at the beginning and the end
// of d, and how many answers there were meanwhile.
func closed(ctx context.Context, p *process, n int, mean, runUp, d time.Duration) (before, after Stats, answers int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, runUp+d+time.Minute)
	defer cancel()
	var count atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range n {
		random := rand.New(rand.NewPCG(uint64(i), 3))
		wg.Go(func() {
			var c conn
			defer c.close()
			for {
				select {
				case <-stop:
					return
				default:
				}
				work, _ := drawWork(random, "")
				if a := c.roundTrip(p.addr, time.Duration(work*float64(mean)), time.Now().Add(time.Minute)); a == OK || a == Refused {
					count.Add(1)
				}
			}
		})
	}
	defer func() {
		close(stop)
		wg.Wait()
	}()
	if err = pause(ctx, runUp); err != nil {
		return before, after, 0, err
	}
	if before, err = p.ask(command{}); err != nil {
		return before, after, 0, err
	}
	first := count.Load()
	if err = pause(ctx, d); err != nil {
		return before, after, 0, err
	}
	answers = count.Load() - first
	after, err = p.ask(command{})
	return before, after, answers, err
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

// sweep finds the capacity of a backend in a server of its own, with no guard:
// the largest rate of work that any number of clients gets done, in requests of
// mean work a second, the least number of clients that gets 95 % of it, and the
// CPU time of a request there.
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
	var rates []float64
	var costs []time.Duration
	for _, n := range levels {
		before, after, answers, err := closed(ctx, p, n, law.Service, max(3*law.Service, 100*time.Millisecond), turn)
		if err != nil {
			return c, err
		}
		rate := (after.Work - before.Work) / (after.At - before.At).Seconds() / law.Service.Seconds()
		rates = append(rates, rate)
		costs = append(costs, (after.CPU-before.CPU)/time.Duration(max(1, answers)))
		c.rate = max(c.rate, rate)
	}
	for i, rate := range rates {
		if rate >= 0.95*c.rate {
			c.clients, c.request = levels[i], costs[i]
			break
		}
	}
	if law.Kind == "burn" {
		c.refusal, err = r.refusalCost(ctx, law, procs, turn)
	}
	return c, err
}

// capacity is what a sweep found.
type capacity struct {
	rate    float64 // requests a second
	clients int     // at which it is reached
	// CPU time of a request, and of a refusal.
	request, refusal time.Duration
}

// bound is the share of the capacity that can be reached at a load of so many
// times the capacity, if each refusal costs its CPU time.
func (c capacity) bound(load float64) float64 {
	if c.request <= 0 || load <= 1 {
		return 1
	}
	return 1 / (1 + (load-1)*c.refusal.Seconds()/c.request.Seconds())
}

// refusalCost is the CPU time of a refusal.
func (r *runner) refusalCost(ctx context.Context, law Law, procs int, turn time.Duration) (time.Duration, error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: "refuse", Kind: "refuse"}})
	if err != nil {
		return 0, err
	}
	defer p.stop()
	before, after, answers, err := closed(ctx, p, 8, law.Service, 100*time.Millisecond, turn)
	return (after.CPU - before.CPU) / time.Duration(max(1, answers)), err
}
