package quota

import (
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// Many who share a bucket come at once, and obey a Retry-After in whole seconds: they
// come back at once, too, and find no more than a burst. One that holds what comes back
// in a second serves them at the rate; with a queue it is every other second.
func TestThoseWhoComeBackTogether(t *testing.T) {
	const clients = 400
	for _, test := range []struct {
		name  string
		burst float64
		queue Queue
		last  time.Duration // when the last one is served
	}{
		{"a fifth of a second's worth", 20, Queue{}, 19 * time.Second},
		{"a second's worth", 100, Queue{}, 3 * time.Second},
		{"a fifth, and a queue", 20, Queue{Len: 100, MaxWait: time.Second}, 6200 * time.Millisecond},
	} {
		r := newRig(t, Config{Rules: []Rule{{Limits: []Limit{{Rate: 100, Burst: test.burst}}}}, Queue: test.queue})
		var last time.Duration
		tries, served := 0, 0
		back := map[time.Duration]int{0: clients} // by the second
		serve := func(weir.Permit, error) { served, last = served+1, r.clock.now() }
		for served < clients && r.clock.now() < time.Minute {
			for range back[r.clock.now()] {
				tries++
				switch _, _, err := r.Arrive(weir.Work{}, serve); {
				case err == nil:
					serve(weir.Permit{}, nil)
				case err != weir.ErrWaiting:
					after := (r.rejection(err).RetryAfter + time.Second - 1).Truncate(time.Second)
					back[r.clock.now()+after]++
				}
			}
			second := r.clock.now() + time.Second
			for at, ok := r.Next(); ok && at < second; at, ok = r.Next() {
				r.clock.advance(at - r.clock.now())
				r.Step()
			}
			r.clock.advance(second - r.clock.now())
			r.Step()
		}
		t.Logf("%s: the last of %d is served after %v, by %d tries", test.name, clients, last, tries)
		if served != clients || last != test.last {
			t.Errorf("%s: %d served, the last after %v; want %v", test.name, served, last, test.last)
		}
	}
}
