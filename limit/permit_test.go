package limit

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// Of two tenants that always have more to do the one with long work gets as much
// time as the other, and as many turns where shares are of what is admitted. It can
// be changed while they wait.
func TestSharesOfTime(t *testing.T) {
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
	for _, phase := range []struct {
		byTime bool
		want   float64
	}{{false, 1}, {true, 1. / 8}, {false, 1}} {
		cfg.Queue.ByTime = phase.byTime
		if err := l.Reconfigure(cfg); err != nil {
			t.Fatal(err)
		}
		work(200)
		if got := work(4000); math.Abs(got/phase.want-1) > .02 {
			t.Errorf("by time %v: %v long ones for a short one, want %v", phase.byTime, got, phase.want)
		}
	}
}
