// Package peers is the layer of the scoreboard that other projects stand on. Their
// limiters are beside weir's, before the same simulated backends, under the same scenario
// files.
//
// The simulator (package sim) owns backend, clients and figures. The limiters of
// others read the wall clock, so a run takes place inside a testing/synctest
// bubble. A bubble's wall clock moves when everybody waits. The simulator asks the
// bubble to let time pass up to its next event, and hears on the way who was
// admitted meanwhile. A minute of a thousand requests a second takes about a
// second. Goroutines that are due at the same instant run in no fixed order, and
// some peers draw random numbers of their own. So a figure repeats within its
// spread, not to the last digit.
//
// Because a bubble needs a test, the scoreboard is one:
//
//	make scoreboard-peers
//
// A second board is about who goes first: peers that have priorities and peers that
// are fair, each in the scenarios about what it has:
//
//	make scoreboard-order-peers
//
// Each [peer] is the library as published: its version is in go.mod, its default
// settings are in its comment. Some peers need a number that somebody has to measure
// first, as a semaphore its size. They are given the backend's best concurrency, and
// are marked as told. Some peers read the processor. That reading is injected: once
// as of a process that only waits for its backend, once as of one that is its backend.
package peers

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/sim"
	"github.com/weir-go/weir/slot"
)

// peer is somebody to compare with, or weir itself.
type peer struct {
	// Name is shown in tables.
	Name string
	// Weir marks our own default, which the verdict is about.
	Weir bool
	// Told marks a peer that was given the backend's best concurrency, which
	// somebody would have to measure first and keep up to date.
	Told bool
	// Untold keeps the deadline from the gate: Work.Deadline is not set, and
	// late work counts as good.
	Untold bool
	// Computing says that the peer reads the backend's usage as its own
	// processor's.
	Computing bool

	make maker
	// alone, if set, is held while the peer runs: it keeps something in its
	// process.
	alone *sync.Mutex
}

// env is what a peer is made for: one run.
type env struct {
	// Scenario is what will be run, Seed with which random numbers.
	Scenario *sim.Scenario
	Seed     uint64
	// Best is the concurrency at which the backend's throughput is highest.
	Best int

	ctx   context.Context // ends with the run
	usage *usage
}

// peers returns everybody, weir first.
func peers() []peer {
	return []peer{
		{Name: "weir", Weir: true, make: newWeir},
		{Name: "weir (deadline not told)", Untold: true, make: newWeir},
		{Name: "no control", make: newOpen},
		{Name: "semaphore (waiting)", Told: true, make: newSemaphore(true)},
		{Name: "semaphore (refusing)", Told: true, make: newSemaphore(false)},
		{Name: "failsafe-go", make: newFailsafe},
		{Name: "failsafe-go (queueing)", make: newFailsafeQueueing},
		{Name: "aegis BBR (waiting)", make: newBBR(false)},
		{Name: "aegis BBR (computing)", Computing: true, make: newBBR(true)},
		{Name: "go-zero (waiting)", make: newGoZero(false), alone: &oneGoZero},
		{Name: "go-zero (computing)", Computing: true, make: newGoZero(true), alone: &oneGoZero},
		{Name: "Kubernetes APF", Told: true, make: newQueueSet(flowEach)},
		{Name: "AIMD", make: bare(newAIMD)},
		{Name: "Vegas", make: bare(newVegas(control.AggregateMean))},
		{Name: "Vegas (minimum)", make: bare(newVegas(control.AggregateMin))},
		{Name: "Gradient2", make: bare(newGradient2(control.AggregateMean))},
		{Name: "Gradient2 (minimum)", make: bare(newGradient2(control.AggregateMin))},
	}
}

// run plays a scenario with a peer before its backend, once for each seed, each
// in a bubble of its own. Whatever policy the scenario names is left out.
func run(t *testing.T, s *sim.Scenario, p *peer, seeds []uint64) (*sim.Report, error) {
	if p.alone != nil {
		p.alone.Lock()
		defer p.alone.Unlock()
	}
	if p.Untold {
		s = untold(s)
	}
	var report *sim.Report
	for _, seed := range seeds {
		var one *sim.Report
		var err error
		synctest.Test(t, func(t *testing.T) {
			one, err = sim.Run(context.Background(), s, sim.Options{Seeds: []uint64{seed}, Outside: func(seed uint64) (sim.Outside, error) {
				_, best := s.Backend.Capacity()
				return newBubble(p, &env{Scenario: s, Seed: seed, Best: best})
			}})
		})
		if err != nil {
			return nil, err
		}
		if report == nil {
			report = one
			continue
		}
		report.Seeds = append(report.Seeds, seed)
		report.Runs = append(report.Runs, one.Runs...)
	}
	return report, nil
}

// untold is the scenario with nobody telling deadlines.
func untold(s *sim.Scenario) *sim.Scenario {
	c := *s
	c.Traffic = append([]sim.Class(nil), s.Traffic...)
	no := false
	for i := range c.Traffic {
		c.Traffic[i].TellDeadline = &no
	}
	return &c
}

// limiter is a gate as its own library shows it.
type limiter struct {
	// try asks for admission. It returns what to call when the work is done, nil for a
	// refusal. Without it everybody waits.
	try func(*weir.Work) done
	// wait asks and blocks until there is an answer or ctx ends. It calls answer once,
	// with nil for a refusal. It runs on a goroutine of its own. Without it nobody waits.
	wait func(ctx context.Context, w *weir.Work, answer func(done))
	// patience is how long it waits of the time left until the deadline, 0 for none.
	// Without it work waits until its deadline.
	patience func(left time.Duration) time.Duration
	// close ends what the limiter has started.
	close func()

	weir *limit.Limiter // weir's own gate, which needs no goroutine to wait in
}

// maker makes a peer's limiter for a run.
type maker func(*env) (*limiter, error)

// done gives a slot back.
type done func(weir.Outcome)

// bubble is a limiter before a simulated backend, inside a testing/synctest
// bubble. It implements [sim.Outside]: the simulator's goroutine calls Arrive
// and Wait, and those who wait for admission do it on goroutines of their own.
type bubble struct {
	limiter *limiter
	usage   *usage
	start   time.Time
	timer   *time.Timer

	ctx    context.Context // ends with the run
	cancel context.CancelFunc

	mu   sync.Mutex
	news []func()
	ring chan struct{}
}

func newBubble(p *peer, e *env) (*bubble, error) {
	b := &bubble{start: time.Now(), timer: time.NewTimer(time.Hour), ring: make(chan struct{}, 1)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.usage = newUsage(e)
	e.ctx, e.usage = b.ctx, b.usage
	var err error
	b.limiter, err = p.make(e)
	return b, err
}

// now is the time of the run.
func (b *bubble) now() time.Duration { return time.Since(b.start) }

// Arrive implements [weir.Arriver]. Work.Deadline is on the simulator's clock.
func (b *bubble) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	var deadline time.Time
	if !w.Deadline.IsZero() {
		deadline = b.start.Add(w.Deadline.Sub(weir.VirtualEpoch))
	}
	gate := b.limiter
	if gate.weir != nil {
		return b.arriveWeir(w, deadline, wake)
	}
	if gate.try != nil {
		if give := gate.try(&w); give != nil {
			return b.permit(give), nil, nil
		}
	}
	if gate.wait == nil {
		return weir.Permit{}, nil, refusal
	}
	ctx, cancel := b.waiting(deadline)
	go func() {
		defer cancel()
		gate.wait(ctx, &w, func(give done) {
			b.tell(func() {
				if give == nil {
					wake(weir.Permit{}, refusal)
					return
				}
				wake(b.permit(give), nil)
			})
		})
	}()
	return weir.Permit{}, leaver(cancel), weir.ErrWaiting
}

// arriveWeir is Arrive of weir's gate. Its answers may come from its timer's
// goroutine, or from a Done on the simulator's own; either way they become news.
func (b *bubble) arriveWeir(w weir.Work, deadline time.Time, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	w.Deadline = deadline
	return b.limiter.weir.Arrive(w, func(p weir.Permit, err error) {
		b.tell(func() { wake(p, err) })
	})
}

// waiting returns the context of a request that waits: until its deadline, if it
// has one and the limiter does not give up sooner.
func (b *bubble) waiting(deadline time.Time) (context.Context, context.CancelFunc) {
	if b.limiter.patience != nil {
		var left time.Duration
		if !deadline.IsZero() {
			left = time.Until(deadline)
		}
		deadline = time.Now().Add(b.limiter.patience(left))
	}
	if deadline.IsZero() {
		return context.WithCancel(b.ctx)
	}
	return context.WithDeadline(b.ctx, deadline)
}

// leaver takes a waiter back by ending its context; its answer comes all the
// same.
type leaver context.CancelFunc

func (l leaver) Cancel() bool { l(); return false }

// tell queues news for the simulator's goroutine.
func (b *bubble) tell(f func()) {
	b.mu.Lock()
	b.news = append(b.news, f)
	b.mu.Unlock()
	select {
	case b.ring <- struct{}{}:
	default: // it has been rung
	}
}

// Wait implements [sim.Outside].
func (b *bubble) Wait(until time.Duration) (time.Duration, []func()) {
	b.timer.Reset(until - b.now())
	select {
	case <-b.ring:
	case <-b.timer.C:
	}
	b.mu.Lock()
	news := b.news
	b.news = nil
	b.mu.Unlock()
	return b.now(), news
}

// Close implements [sim.Outside].
func (b *bubble) Close() {
	b.timer.Stop()
	b.cancel()
	if b.limiter.weir != nil {
		b.limiter.weir.Close()
	}
	if b.limiter.close != nil {
		b.limiter.close()
	}
}

// permit makes a permit of somebody else's.
func (b *bubble) permit(give done) weir.Permit {
	h := &held{bubble: b, give: give}
	h.group.Holder = h
	h.group.Attention.Store(1) // every release is ours to hear of
	h.slot.Init(&h.group, 0)
	b.usage.add(b.now(), 1)
	return weir.NewPermit(h.slot.Issue())
}

// held is one admission by a peer. It implements [slot.Holder].
type held struct {
	bubble *bubble
	give   done
	slot   slot.Slot
	group  slot.Group
}

func (h *held) Done(t slot.Ticket, outcome uint8) {
	if live, _ := t.Recall(); live {
		h.bubble.usage.add(h.bubble.now(), -1)
		h.give(weir.Outcome(outcome))
	}
}

func (h *held) Cancel(t slot.Ticket) { h.Done(t, uint8(weir.NoSample)) }

// The simulator does not sample apart, and the cost of these permits is fixed.
func (h *held) Sample(slot.Ticket, uint8)          {}
func (h *held) SetCost(slot.Ticket, string, int64) {}
