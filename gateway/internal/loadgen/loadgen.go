// Package loadgen offers open-loop load: requests leave at times of their own,
// whether or not earlier ones were answered, as the requests of many
// independent users do. A closed loop (a fixed number of clients, each waiting
// for its answer) slows down with the system it measures and so cannot
// overload it.
//
// Three rules keep its figures honest. Latency counts from the moment a request
// was due, not from the moment it could be sent. A generator that could not
// keep up says so: sends that left too far behind their time ([LateAfter]) are
// counted, and a second in which too many did is void ([Tally.Void]). And every
// request is accounted to the second in which it was due, where it ends as
// exactly one of the fields of [Tally].
//
// It exists beside vegeta, which the integration tests use, because vegeta
// counts latency from the actual send and accounts by the time of the answer:
// exactly the difference that matters while a system is overloaded.
package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of a load, so that a slip of the keyboard does not become an attack.
const (
	MaxRate     = 20_000           // requests a second, in any phase
	MaxDuration = 10 * time.Minute // of all phases together
	MaxOpen     = 8192             // requests without an answer
)

// LateAfter is how far behind its time a request may leave, as a share of its
// client's patience, before its send counts as late.
const LateAfter = 0.05

// Phase is a stretch of load at one mean rate.
type Phase struct {
	Rate float64 // requests a second; 0 is silence
	For  time.Duration
}

// Load is an open-loop load with Poisson arrivals.
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

// Answer is what a client got.
type Answer uint8

// The answers.
const (
	OK      Answer = iota // what it wanted
	Refused               // told to come back later
	Failed                // an error that is neither
	GaveUp                // nothing, within its patience
)

// Duration is the length of all phases.
func (l *Load) Duration() time.Duration {
	var d time.Duration
	for _, p := range l.Phases {
		d += p.For
	}
	return d
}

func (l *Load) lateAfter() time.Duration {
	return time.Duration(LateAfter * float64(l.Patience))
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
	if d := l.Duration(); d > MaxDuration {
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

// Start checks l and begins to send. The meter fills as the load runs. The load
// ends with its phases or with ctx, which also cancels what is under way.
func (l Load) Start(ctx context.Context) (*Meter, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	seconds := int(math.Ceil(l.Duration().Seconds()))
	r := &run{
		load:  l,
		meter: &Meter{seconds: make([]Tally, seconds), done: make(chan struct{})},
		epoch: time.Now(),
		room:  make(chan struct{}, MaxOpen),
	}
	go func() {
		defer close(r.meter.done)
		r.pace(ctx)
		r.open.Wait()
	}()
	return r.meter, nil
}

// run is one load under way.
type run struct {
	load  Load
	meter *Meter
	epoch time.Time
	room  chan struct{} // bounds the requests without an answer
	open  sync.WaitGroup
}

// pace lets each request leave when it is due.
func (r *run) pace(ctx context.Context) {
	random := rand.New(rand.NewPCG(r.load.Seed, 0))
	timer := time.NewTimer(0)
	defer timer.Stop()
	var begin time.Duration
	for _, p := range r.load.Phases {
		// A Poisson process has no memory, so each phase may start afresh.
		due, end := begin, begin+p.For
		for {
			due += gap(random, p.Rate, p.For)
			if due >= end {
				break
			}
			if !r.until(ctx, timer, due) {
				return
			}
			r.launch(ctx, due)
		}
		begin = end
	}
	r.until(ctx, timer, begin)
}

// gap draws the time to the next arrival; never is longer than the phase.
func gap(random *rand.Rand, rate float64, never time.Duration) time.Duration {
	seconds := random.ExpFloat64() / rate
	if !(seconds < never.Seconds()) { // true for the infinity of rate 0
		return never
	}
	return time.Duration(seconds * float64(time.Second))
}

// until waits until at and reports false if ctx ended before.
func (r *run) until(ctx context.Context, timer *time.Timer, at time.Duration) bool {
	wait := at - time.Since(r.epoch)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer.Reset(wait)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// launch sends the request that is due now.
func (r *run) launch(ctx context.Context, due time.Duration) {
	select {
	case r.room <- struct{}{}:
	default:
		r.meter.unsent(due)
		return
	}
	r.open.Go(func() {
		defer func() { <-r.room }()
		r.meter.sent(due, time.Since(r.epoch)-due > r.load.lateAfter())
		ctx, cancel := context.WithDeadline(ctx, r.epoch.Add(due+r.load.Patience))
		defer cancel()
		answer := r.load.Send(ctx)
		latency := time.Since(r.epoch) - due
		if latency > r.load.Patience && answer != Refused {
			answer = GaveUp
		}
		r.meter.ended(due, answer, min(latency, r.load.Patience))
	})
}
