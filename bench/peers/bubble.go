package peers

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// limiter is a gate as its own library shows it.
type limiter interface {
	// try asks for admission. It returns what to call when the work is done, or
	// the reason why not: errWait means that wait may be called.
	try() (done, error)
	// wait asks and blocks until there is an answer or ctx ends. It calls answer
	// once. It runs on a goroutine of its own.
	wait(ctx context.Context, answer func(done, error))
}

// impatient is a limiter that waits less than it might.
type impatient interface {
	// patience is how long it waits of the time left until the deadline, or in
	// the absence of one, which is when left is 0.
	patience(left time.Duration) time.Duration
}

// done gives a slot back.
type done func(weir.Outcome)

// bubble is a limiter before a simulated backend, inside a testing/synctest
// bubble. It implements [sim.Outside]: the simulator's goroutine calls Arrive
// and Wait, and those who wait for admission do it on goroutines of their own.
type bubble struct {
	limiter limiter
	usage   *usage
	start   time.Time
	timer   *time.Timer

	ctx    context.Context // ends with the run
	cancel context.CancelFunc

	slots weir.Slots
	spare []*weir.Slot
	inUse []done // by slot

	mu   sync.Mutex
	news []func()
	ring chan struct{}
}

func newBubble(p *Peer, e *Env) (*bubble, error) {
	b := &bubble{start: time.Now(), timer: time.NewTimer(time.Hour), ring: make(chan struct{}, 1)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.slots.Attention.Store(1) // every release is ours to hear of
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
		deadline = b.start.Add(w.Deadline.Sub(limit.VirtualEpoch))
	}
	if native, ok := b.limiter.(weirLimiter); ok {
		return b.arriveWeir(native, w, deadline, wake)
	}
	gate := b.limiter
	if t, ok := gate.(telling); ok {
		gate = t.of(&w)
	}
	give, err := gate.try()
	switch err {
	case nil:
		return b.permit(give), nil, nil
	case errWait:
	default:
		return weir.Permit{}, nil, refusal
	}
	ctx, cancel := b.waiting(deadline)
	go func() {
		defer cancel()
		gate.wait(ctx, func(give done, err error) {
			b.tell(func() {
				if err != nil {
					wake(weir.Permit{}, refusal)
					return
				}
				wake(b.permit(give), nil)
			})
		})
	}()
	return weir.Permit{}, leaver(cancel), weir.ErrWaiting
}

// waiting returns the context of a request that waits: until its deadline, if it
// has one and the limiter does not give up sooner.
func (b *bubble) waiting(deadline time.Time) (context.Context, context.CancelFunc) {
	if i, ok := b.limiter.(impatient); ok {
		var left time.Duration
		if !deadline.IsZero() {
			left = time.Until(deadline)
		}
		deadline = time.Now().Add(i.patience(left))
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
	for _, give := range b.inUse {
		if give != nil {
			give(weir.NoSample)
		}
	}
	if c, ok := b.limiter.(interface{ Close() }); ok {
		c.Close()
	}
}

// permit makes a permit of somebody else's.
func (b *bubble) permit(give done) weir.Permit {
	if len(b.spare) == 0 {
		s := new(weir.Slot)
		s.Init(b, &b.slots, uint32(len(b.inUse)))
		b.spare, b.inUse = append(b.spare, s), append(b.inUse, nil)
	}
	s := b.spare[len(b.spare)-1]
	b.spare = b.spare[:len(b.spare)-1]
	b.inUse[s.ID()] = give
	b.usage.add(b.now(), 1)
	return s.Issue()
}

// PermitDone implements [weir.Holder].
func (b *bubble) PermitDone(p weir.Permit, o weir.Outcome) {
	s := p.Slot()
	if live, _ := s.Recall(p); !live {
		return
	}
	give := b.inUse[s.ID()]
	b.inUse[s.ID()] = nil
	b.spare = append(b.spare, s)
	b.usage.add(b.now(), -1)
	give(o)
}

// PermitSampled implements [weir.Holder]; the simulator does not sample apart.
func (b *bubble) PermitSampled(weir.Permit, weir.Outcome) {}

// PermitCancelled implements [weir.Holder].
func (b *bubble) PermitCancelled(p weir.Permit) { b.PermitDone(p, weir.NoSample) }

// SlotFreed implements [weir.Holder]; no slot of ours is ever free.
func (b *bubble) SlotFreed(*weir.Slot) {}
