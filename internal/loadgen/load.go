// Package loadgen sends requests and keeps the account of them.
//
// In an open loop requests leave at times of their own, whether or not earlier
// ones were answered. The requests of many independent users do so too. In a
// closed loop each client waits for its answer. A closed loop slows down with
// the system that it measures, so it cannot overload it. It is for finding out
// what that system can do.
//
// Three rules keep the figures of an open loop honest. Latency counts from the
// moment when a request was due, not from the moment when it could be sent. A
// generator that could not keep up says so. It counts the requests that left
// later than [LateAfter], and above [VoidAbove] the figures mean nothing. Every
// request is accounted to the second in which it was due.
//
// The integration tests use vegeta. It counts latency from the actual send, and
// accounts by the time of the answer. While a system is overloaded, that is
// exactly the difference that matters.
package loadgen

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of a [Load], so that a slip of the keyboard does not become an attack.
const (
	MaxRate     = 20_000           // requests a second, in any phase
	MaxDuration = 10 * time.Minute // of all phases together
	MaxOpen     = 8192             // requests without an answer
)

// VoidAbove bounds the share of late and unsent requests. Above it, figures say
// more about the generator than about what it measures.
const VoidAbove = 0.02

// LateAfter is how far behind its time a request may leave before it counts as
// late. It is a twentieth of its client's patience, but at least 2 ms, because
// timers are a millisecond late as it is.
func LateAfter(patience time.Duration) time.Duration {
	return max(2*time.Millisecond, patience/20)
}

// Answer is what became of a request.
type Answer uint8

// The answers.
const (
	Unsent  Answer = iota // it never left: too many were open
	OK                    // what its client wanted, in time
	Refused               // told to come back later
	Failed                // an error that is neither
	GaveUp                // nothing within its client's patience
)

// Phase is a stretch of load at one mean rate.
type Phase struct {
	Rate float64 // requests a second; 0 is silence
	For  time.Duration
}

// Load is an open loop with Poisson arrivals, metered second by second.
type Load struct {
	// Phases follow one another without a pause.
	Phases []Phase
	// Patience is how long a client waits for its answer, from the moment its
	// request was due. Then it leaves.
	Patience time.Duration
	// Seed chooses the arrival times. Loads with the same seed and phases have
	// the same arrivals.
	Seed uint64
	// Send sends one request and returns what came of it. Its context ends
	// when the client's patience does.
	Send func(context.Context) Answer
}

// Start checks l and begins to send. The meter fills as the load runs. The load
// ends with its phases or with ctx, which also cancels what is under way.
func (l Load) Start(ctx context.Context) (*Meter, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	end := l.duration()
	m := &Meter{seconds: make([]Tally, int(math.Ceil(end.Seconds()))), done: make(chan struct{})}
	loop := l.loop(ctx, time.Now(), m)
	go func() {
		defer close(m.done)
		loop.Run(ctx)
		_ = Pause(ctx, time.Until(loop.Epoch.Add(end)))
	}()
	return m, nil
}

// loop is the open loop that fills m.
func (l *Load) loop(ctx context.Context, epoch time.Time, m *Meter) *Open {
	return &Open{
		Epoch:  epoch,
		Due:    Arrivals(rand.New(rand.NewPCG(l.Seed, 0)), l.Phases),
		Most:   MaxOpen,
		Unsent: func(_ int, due time.Duration) { m.unsent(due) },
		Client: func() (func(int, time.Duration), func()) { return l.client(ctx, epoch, m), func() {} },
	}
}

// check reports everything that is wrong with l.
func (l *Load) check() error {
	var errs []error
	for i, p := range l.Phases {
		if !(p.Rate >= 0 && p.Rate <= MaxRate) {
			errs = append(errs, fmt.Errorf("phase %d: rate %v/s: must be from 0 to %d", i, p.Rate, MaxRate))
		}
		if p.For <= 0 || p.For > MaxDuration {
			errs = append(errs, fmt.Errorf("phase %d: lasts %v: must be positive, at most %v", i, p.For, MaxDuration))
		}
	}
	if d := l.duration(); d > MaxDuration {
		errs = append(errs, fmt.Errorf("the phases last %v together: at most %v", d, MaxDuration))
	}
	if l.Patience <= 0 {
		errs = append(errs, fmt.Errorf("patience %v: must be positive", l.Patience))
	}
	if l.Send == nil {
		errs = append(errs, errors.New("no Send function"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("loadgen: %w", errors.Join(errs...))
	}
	return nil
}

// duration is the length of all phases.
func (l *Load) duration() (d time.Duration) {
	for _, p := range l.Phases {
		d += p.For
	}
	return d
}

// client returns a function that sends the request due at a time, and tells m.
func (l *Load) client(ctx context.Context, epoch time.Time, m *Meter) func(int, time.Duration) {
	return func(_ int, due time.Duration) {
		m.sent(due, time.Since(epoch)-due > LateAfter(l.Patience))
		ctx, cancel := context.WithDeadline(ctx, epoch.Add(due+l.Patience))
		defer cancel()
		answer := l.Send(ctx)
		latency := time.Since(epoch) - due
		if latency > l.Patience && answer != Refused {
			answer = GaveUp
		}
		m.ended(due, answer, min(latency, l.Patience))
	}
}

// Arrivals draws the times of a Poisson process, whose rate changes by phase. It
// has no memory, so each phase starts afresh.
func Arrivals(random *rand.Rand, phases []Phase) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		var begin time.Duration
		for _, p := range phases {
			end := begin + p.For
			for at := begin; ; {
				gap := random.ExpFloat64() / p.Rate
				if !(gap < (end - at).Seconds()) { // true for the infinity of rate 0
					break
				}
				if at += time.Duration(gap * float64(time.Second)); !yield(at) {
					return
				}
			}
			begin = end
		}
	}
}

// Open is an open loop: each request leaves when it is due, whatever became of
// those before it.
type Open struct {
	Epoch time.Time
	Due   iter.Seq[time.Duration] // since Epoch, in ascending order
	// Most is how many clients there may be, each with one request at a time. A
	// request that finds none free is Unsent.
	Most   int
	Unsent func(i int, due time.Duration)
	// Client makes a client. send sends the request of that number and returns
	// when it has ended; close is called at the end.
	Client func() (send func(i int, due time.Duration), close func())

	mu   sync.Mutex
	idle []chan<- request // the one that was busy last is the last
	all  int
}

type request struct {
	number int
	due    time.Duration
}

// Run sends the requests and returns how many were due before ctx ended. It
// waits for all that are under way.
func (o *Open) Run(ctx context.Context) (n int) {
	var busy, ends sync.WaitGroup
	defer func() {
		busy.Wait()
		for _, c := range o.idle {
			close(c)
		}
		ends.Wait()
	}()
	for due := range o.Due {
		if Pause(ctx, time.Until(o.Epoch.Add(due))) != nil {
			break
		}
		r := request{n, due}
		n++
		switch c, ok := o.client(); {
		case !ok:
			o.Unsent(r.number, due)
		case c != nil:
			busy.Add(1)
			c <- r
		default:
			next := make(chan request, 1)
			busy.Add(1)
			next <- r
			ends.Go(func() { o.play(next, &busy) })
		}
	}
	return n
}

// client returns an idle client, nil for a new one, and false if there are too
// many.
func (o *Open) client() (chan<- request, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last := len(o.idle) - 1; last >= 0 {
		c := o.idle[last]
		o.idle = o.idle[:last]
		return c, true
	}
	if o.all >= o.Most {
		return nil, false
	}
	o.all++
	return nil, true
}

// play sends the requests that one client is given, until next is closed.
func (o *Open) play(next chan request, busy *sync.WaitGroup) {
	send, end := o.Client()
	defer end()
	for r := range next {
		send(r.number, r.due)
		o.mu.Lock()
		o.idle = append(o.idle, next)
		o.mu.Unlock()
		busy.Done()
	}
}

// Closed is a closed loop: each client calls next, one request after the other,
// until ctx ends or next fails. Closed returns when all have, with the first
// client's error.
func Closed(ctx context.Context, clients int, client func(i int) (next func() error, end func())) error {
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			next, end := client(i)
			defer end()
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = next()
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Pause waits for d, which may be negative, and returns early with the cause if
// ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
