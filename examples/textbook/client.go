package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/throttle"
)

// adaptive is the client-side throttle as textbooks have it. The decay is per event, accepts decay only
// when one is added, and what is dropped locally is not counted.
type adaptive struct {
	accepts, requests, decay float64
	both                     bool // mended in one point: both decay with each event
}

func (t *adaptive) record(accepted bool) {
	t.requests = t.requests*t.decay + 1
	if accepted || t.both {
		t.accepts *= t.decay
	}
	if accepted {
		t.accepts++
	}
}

func (t *adaptive) share() float64 { return max(0, (t.requests-2*t.accepts)/(t.requests+1)) }

// newThrottle returns a throttle, and its source of random numbers while it is not replaced sends
// everything.
func newThrottle(c *clock, padding float64, random func() float64) *throttle.Throttle {
	if random == nil {
		random = func() float64 { return 2 }
	}
	return weir.Must(throttle.New(throttle.Config{Name: "shop", Padding: padding, Now: c.time, Random: random}))
}

// send asks the throttle, and tells it the server's answer. It reports whether anything was sent.
func send(t *throttle.Throttle, accepts func() bool) bool {
	p, err := t.TryAdmit(weir.Work{})
	if err != nil {
		return false
	}
	if accepts() {
		p.Done(weir.OK)
	} else {
		p.Done(weir.Overload)
	}
	return true
}

func share(t *throttle.Throttle) float64 {
	return t.Status().Classes[weir.Normal.Class()].Share
}

// firstStep is what a client drops after 100 requests that were all sent.
func firstStep() table {
	t := table{title: "The client's throttle: dropped after 100 requests, by how many the server has rejected"}
	t.add("rejected", "textbook says", "its formula", "weir (padding 8)")
	for _, tt := range []struct {
		rejected int
		claim    string
	}{{0, "0"}, {50, "0.33"}, {67, ""}, {90, "0.80"}, {100, ""}} {
		shares := [2]float64{}
		for i, padding := range []float64{1, 8} {
			guard := newThrottle(new(clock), padding, nil)
			for n := range 100 {
				send(guard, func() bool { return n >= tt.rejected })
			}
			shares[i] = share(guard)
		}
		t.add(fmt.Sprintf("%d of 100", tt.rejected), tt.claim, fmt.Sprintf("%.2f", shares[0]), fmt.Sprintf("%.2f", shares[1]))
	}
	return t
}

// lastingOverload is what becomes of nine in ten rejected, as it goes on. 100 requests a second go
// to a server that takes ten a second, and to one that rejects nine of ten whatever comes.
func lastingOverload() table {
	t := table{title: "Nine of ten rejected at first: dropped by the client in each second, of 100 requests"}
	seconds := []int{1, 2, 5, 10, 30, 60, 120}
	head := []string{"second"}
	for _, s := range seconds {
		head = append(head, fmt.Sprint(s))
	}
	t.add(head...)
	for _, tt := range []struct {
		name  string
		takes func(left *int, draw *rand.Rand) bool
	}{
		{"a server that takes ten a second", func(left *int, _ *rand.Rand) bool { *left--; return *left >= 0 }},
		{"one that rejects nine of ten, always", func(_ *int, draw *rand.Rand) bool { return draw.IntN(10) == 0 }},
	} {
		c := new(clock)
		draw := rand.New(rand.NewPCG(1, 2))
		guard := newThrottle(c, 8, draw.Float64)
		line := []string{tt.name}
		for second := 1; second <= seconds[len(seconds)-1]; second++ {
			left, dropped := 10, 0
			for range 100 {
				c.now += 10 * time.Millisecond
				if !send(guard, func() bool { return tt.takes(&left, draw) }) {
					dropped++
				}
			}
			for _, s := range seconds {
				if s == second {
					line = append(line, fmt.Sprint(dropped))
				}
			}
		}
		t.add(line...)
	}
	t.add("textbook says", "80", "80", "80", "80", "80", "80", "80")
	return t
}

// outage is a server that rejects everything after it was well: 100 requests accepted, and then one
// rejected each 10 ms.
func outage() table {
	t := table{title: "An outage after 100 accepted requests: dropped with a probability of"}
	steps := []int{14, 20, 50, 100, 200, 1500}
	head := []string{"rejected requests"}
	for _, n := range steps {
		head = append(head, fmt.Sprint(n))
	}
	t.add(head...)
	theirs, mended := &adaptive{decay: 0.95}, &adaptive{decay: 0.95, both: true}
	c := new(clock)
	guard := newThrottle(c, 8, nil)
	each := func(accepted bool) {
		theirs.record(accepted)
		mended.record(accepted)
		send(guard, func() bool { return accepted })
		c.now += 10 * time.Millisecond
	}
	for range 100 {
		each(true)
	}
	lines := [][]string{{"textbook: accepts decay on accepts"}, {"mended: both decay on both"}, {"weir: counted over 30 s"}}
	for n := 1; n <= steps[len(steps)-1]; n++ {
		each(false)
		for _, s := range steps {
			if s != n {
				continue
			}
			for i, p := range []float64{theirs.share(), mended.share(), share(guard)} {
				lines[i] = append(lines[i], fmt.Sprintf("%.4f", p))
			}
		}
	}
	for _, line := range lines {
		t.add(line...)
	}
	return t
}

// retries is what failing calls cost, and how long a client waits.
func retries() table {
	t := table{title: "Retries: 1,000 calls in 10 s that all fail"}
	t.add("", "textbook", "weir")
	const calls, theirAttempts = 1000, 5
	c := new(clock)
	draw := rand.New(rand.NewPCG(3, 4))
	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Guard: throttle.NoGuard, Now: c.time, Random: draw.Float64}))
	sent := 0
	refused := throttle.AnswerOfRejection(&weir.Rejection{Reason: weir.ReasonQueueFull, Retryable: true})
	c.every(10*time.Millisecond, calls*10*time.Millisecond, func() {
		call := caller.Start("shop", time.Time{}, true)
		var attempt func()
		attempt = func() {
			sent++
			call.Sent()
			if wait, stop := call.Decide(refused); stop == throttle.Again {
				c.at(c.now+wait, attempt)
				return
			}
			call.End()
		}
		attempt()
	})
	c.run()
	t.add("attempts", fmt.Sprint(calls*theirAttempts), fmt.Sprint(sent))

	var retry throttle.Retry
	waits := func(after time.Duration, told bool) string {
		a := refused
		a.Told, a.After = told, after
		least, _ := retry.Next(0, a, true, -1, 0)
		most, _ := retry.Next(0, a, true, -1, 1)
		return fmt.Sprintf("%v to %v", least, most)
	}
	t.add("wait after the first 503", "2s to 4s", waits(0, false))
	t.add("the same with Retry-After: 5", "2s to 4s", waits(5*time.Second, true))
	t.add("after a 429 with Retry-After: 0", "1s to 2s", waits(0, true))
	a := refused
	a.Told, a.After = true, 365*24*time.Hour
	_, stop := retry.Next(0, a, true, -1, 0)
	t.add("after a 429 with Retry-After: 31536000", "a year", fmt.Sprintf("ends the call (%s)", stop))
	_, stop = retry.Next(0, refused, true, 0, 0.5)
	t.add("when the caller's deadline has come", "waits on", fmt.Sprintf("ends the call (%s)", stop))
	return t
}
