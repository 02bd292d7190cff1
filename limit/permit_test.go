package limit

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// Of two tenants that always have more to do the one with long work gets as much
// time as the other, and as many turns where shares are of what is admitted. It can
// be changed while they wait.
func TestSharesOfTime(t *testing.T) {
	// Once in 1,024 times two tenants share a place in the table of forecasts, which then are bad. Each limiter
	// has places of its own, so the median of three is free of that.
	var all [3][]float64
	for range 3 {
		for i, got := range sharesOfTime(t) {
			all[i] = append(all[i], got)
		}
	}
	for i, want := range []float64{1, 1. / 8, 1} {
		slices.Sort(all[i])
		if got := all[i][1]; math.Abs(got/want-1) > 0.02 {
			t.Errorf("phase %d: %v long ones for a short one, want %v", i, got, want)
		}
	}
}

// sharesOfTime returns how many long pieces of work are admitted for a short one: by number, by time, and by number
// again.
func sharesOfTime(t *testing.T) (got [3]float64) {
	now := time.Duration(0)
	cfg := Config{Name: "t", Limit: 4, Now: func() time.Duration { return now }, Queue: Queue{Order: FIFO, MaxWait: -1, Len: 100}}
	l := weir.Must(New(cfg))
	defer l.Close()
	type job struct {
		p   weir.Permit
		end time.Duration
	}
	var running []job
	takes := map[string]time.Duration{"short": time.Millisecond, "long": 8 * time.Millisecond}
	var send func(tenant string)
	admitted := map[string]int{}
	start := func(tenant string, p weir.Permit) {
		running = append(running, job{p, now + takes[tenant]})
		admitted[tenant]++
		send(tenant)
	}
	waits := map[string]int{}
	send = func(tenant string) {
		for waits[tenant] < 8 {
			waits[tenant]++
			p, _, err := l.Arrive(weir.Work{Tenant: tenant}, func(p weir.Permit, err error) {
				if err == nil { // else the test is over
					waits[tenant]--
					start(tenant, p)
				}
			})
			if err == nil {
				waits[tenant]--
				start(tenant, p)
			}
		}
	}
	work := func(ends int) (longPerShort float64) {
		clear(admitted)
		for range ends {
			next := 0
			for i, j := range running {
				if j.end < running[next].end {
					next = i
				}
			}
			j := running[next]
			running = append(running[:next], running[next+1:]...)
			now = j.end
			j.p.Done(weir.OK)
		}
		return float64(admitted["long"]) / float64(admitted["short"])
	}
	send("short")
	send("long")
	for i, byTime := range []bool{false, true, false} {
		cfg.Queue.ByTime = byTime
		if err := l.Reconfigure(cfg); err != nil {
			t.Fatal(err)
		}
		work(200)
		got[i] = work(4000)
	}
	return got
}
