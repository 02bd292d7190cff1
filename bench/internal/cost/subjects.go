package cost

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"golang.org/x/sync/semaphore"
)

// fixed is admit and done of a limit that nobody moves, one slot at a time.
func fixed() group {
	return group{
		Name:  "admit + done, fixed limit",
		Floor: Subject{Name: "pair of compare-and-swaps", New: ready(casPair)},
		Peers: []Subject{
			{Name: "weir TryAdmit", Goal: goal{Ratio: 1.5, Shared: 1.3}, New: weirLoop(size, nil, tryAdmit)},
			{Name: "weir TryAdmit, eight held", New: weirLoop(size, nil, tryAdmitHolding)},
			{Name: "weir Admit", Goal: goal{Ratio: 2}, New: weirLoop(size, nil, admit(context.Background()))},
			{Name: "weir Admit, cancellable context", Goal: goal{Ratio: 2}, New: cancellable(size, nil, admit)},
			{Name: "weir Admit, priority, user, tenant", New: weirLoop(size, nil, admitWork(context.Background(), named))},
			{Name: "sync.Mutex and a count", New: ready(mutex)},
			{Name: "buffered channel", New: ready(channel)},
			{Name: "x/sync semaphore TryAcquire", New: ready(semaphoreTry)},
			{Name: "x/sync semaphore Acquire", New: ready(semaphoreAcquire)},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeTry), Parks: true},
		},
	}
}

// sampled is the same for a limit that learns from latency.
func sampled() group {
	return group{
		Name:  "admit + done with a latency sample",
		Floor: Subject{Name: "two clock reads and the pair", New: ready(clockedCASPair)},
		Peers: []Subject{
			{Name: "weir TryAdmit, AIMD", Goal: goal{Ratio: 1.4}, New: weirLoop(0, aimd, tryAdmit)},
			{Name: "weir Admit, AIMD", New: weirLoop(0, aimd, admit(context.Background()))},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeTry), Parks: true},
		},
	}
}

// refusal is being told no, with gate, reason and time to come back.
func refusal() group {
	return group{
		Name:  "refusal",
		Floor: Subject{Name: "counter alone", New: ready(refusedCount)},
		Peers: []Subject{
			{Name: "weir TryAdmit", Goal: goal{Extra: 30}, New: weirFull(refusedTry)},
			{Name: "weir Admit, no wait room", Goal: goal{Extra: 30}, New: weirFull(refusedAdmit)},
			{Name: "full channel", New: ready(fullChannel)},
			{Name: "x/sync semaphore TryAcquire", New: ready(semaphoreFull)},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeFull), Parks: true},
		},
	}
}

// handoff is passing the only slot from one goroutine to the next.
func handoff() group {
	return group{
		Name:  "hand-off to a waiter",
		Pair:  true,
		Floor: Subject{Name: "channel under select with a context", New: channelHandoff},
		Peers: []Subject{
			{Name: "weir Admit, cancellable context", Goal: goal{Ratio: 1.2}, New: cancellable(1, nil, passOn)},
			{Name: "weir Admit", New: weirLoop(1, nil, passOn(context.Background()))},
			{Name: "weir Admit, priority, user, tenant", New: weirLoop(1, nil, passOnWork(context.Background(), named))},
			{Name: "x/sync semaphore Acquire", New: ready(semaphoreHandoff)},
			{Name: "failsafe-go adaptive limiter, queueing", New: ready(failsafeHandoff)},
		},
	}
}

// weirLoop sets up a limiter and the loop that uses it. controller nil means a
// fixed limit of n. The wait room and all else are the defaults.
func weirLoop(n int64, controller func() control.Controller, use func(*limit.Limiter) Loop) func() (Loop, func()) {
	return func() (Loop, func()) {
		cfg := limit.Config{Name: "bench", Limit: n}
		if controller != nil {
			cfg.Controller = controller()
		}
		l := weir.Must(limit.New(cfg))
		return use(l), l.Close
	}
}

// cancellable is weirLoop with a context that could be cancelled, as that of
// every HTTP request can.
func cancellable(n int64, controller func() control.Controller, use func(context.Context) func(*limit.Limiter) Loop) func() (Loop, func()) {
	return func() (Loop, func()) {
		ctx, cancel := context.WithCancel(context.Background())
		loop, stop := weirLoop(n, controller, use(ctx))()
		return loop, func() { stop(); cancel() }
	}
}

func aimd() control.Controller { return weir.Must(control.NewAIMD(control.AIMDConfig{})) }

func tryAdmit(l *limit.Limiter) Loop {
	return func(n int) error {
		for range n {
			p, err := l.TryAdmit(weir.Work{})
			if err != nil {
				return err
			}
			p.Done(weir.OK)
		}
		return nil
	}
}

// tryAdmitHolding ends the oldest of eight permits with each new one, as a server does
// whose work overlaps. The slot just given back is never the one just taken.
func tryAdmitHolding(l *limit.Limiter) Loop {
	return func(n int) (err error) {
		var held [8]weir.Permit
		for i := range n {
			held[i%len(held)].Done(weir.OK)
			if held[i%len(held)], err = l.TryAdmit(weir.Work{}); err != nil {
				break
			}
		}
		for _, p := range held {
			p.Done(weir.OK)
		}
		return err
	}
}

// named is work that says whose it is and how important.
var named = weir.Work{Op: "GET /reports", User: "alice@example.com", Tenant: "acme", Priority: weir.High}

func admit(ctx context.Context) func(*limit.Limiter) Loop { return admitWork(ctx, weir.Work{}) }

func admitWork(ctx context.Context, w weir.Work) func(*limit.Limiter) Loop {
	return func(l *limit.Limiter) Loop {
		return func(n int) error { return admitLoop(ctx, l, w, n) }
	}
}

// admitLoop is a function of its own so that the compiler inlines Permit.Done, as it does in
// the code of a service. It does not within two closures.
func admitLoop(ctx context.Context, l *limit.Limiter, w weir.Work, n int) error {
	for range n {
		p, err := l.Admit(ctx, w)
		if err != nil {
			return err
		}
		p.Done(weir.OK)
	}
	return nil
}

// weirFull sets up a limiter whose only slot is taken and where nothing waits.
func weirFull(use func(*limit.Limiter) Loop) func() (Loop, func()) {
	return func() (Loop, func()) {
		l := weir.Must(limit.New(limit.Config{Name: "bench", Limit: 1, Queue: limit.Queue{Len: -1}}))
		p := weir.Must(l.TryAdmit(weir.Work{}))
		return use(l), func() { p.Done(weir.OK); l.Close() }
	}
}

func refusedTry(l *limit.Limiter) Loop {
	return func(n int) error {
		for range n {
			if _, err := l.TryAdmit(weir.Work{}); err == nil {
				return errTaken
			}
		}
		return nil
	}
}

func refusedAdmit(l *limit.Limiter) Loop {
	ctx := context.Background()
	return func(n int) error {
		for range n {
			if _, err := l.Admit(ctx, weir.Work{}); err == nil {
				return errTaken
			}
		}
		return nil
	}
}

func passOn(ctx context.Context) func(*limit.Limiter) Loop { return passOnWork(ctx, weir.Work{}) }

func passOnWork(ctx context.Context, w weir.Work) func(*limit.Limiter) Loop {
	return func(l *limit.Limiter) Loop {
		var held weir.Permit // by whoever has the slot
		return between(func() error {
			p, err := l.Admit(ctx, w)
			if err == nil {
				held = p
			}
			return err
		}, func() { held.Done(weir.OK) })
	}
}

func semaphoreTry() Loop {
	s := semaphore.NewWeighted(size)
	return func(n int) error {
		for range n {
			if !s.TryAcquire(1) {
				return errFull
			}
			s.Release(1)
		}
		return nil
	}
}

func semaphoreAcquire() Loop {
	s := semaphore.NewWeighted(size)
	ctx := context.Background()
	return func(n int) error {
		for range n {
			if err := s.Acquire(ctx, 1); err != nil {
				return err
			}
			s.Release(1)
		}
		return nil
	}
}

func semaphoreFull() Loop {
	s := semaphore.NewWeighted(1)
	taken := s.TryAcquire(1)
	return func(n int) error {
		for range n {
			if !taken || s.TryAcquire(1) {
				return errTaken
			}
		}
		return nil
	}
}

// failsafeTry uses the adaptive limiter at its published defaults, but for a
// lower bound that keeps it from refusing the goroutines at work. Each Record
// is a latency sample.
func failsafeTry() Loop {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(size, 200, size).Build()
	return func(n int) error {
		for range n {
			p, ok := l.TryAcquirePermit()
			if !ok {
				return errFull
			}
			p.Record()
		}
		return nil
	}
}

func failsafeFull() Loop {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 1, 1).Build()
	_, taken := l.TryAcquirePermit()
	return func(n int) error {
		for range n {
			if _, ok := l.TryAcquirePermit(); ok || !taken {
				return errTaken
			}
		}
		return nil
	}
}

func semaphoreHandoff() Loop {
	s := semaphore.NewWeighted(1)
	ctx := context.Background()
	return between(func() error { return s.Acquire(ctx, 1) }, func() { s.Release(1) })
}

func failsafeHandoff() Loop {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 1, 1).WithQueueing(2, 3).Build()
	ctx := context.Background()
	var held adaptivelimiter.Permit // by whoever has the slot
	return between(func() error {
		p, err := l.AcquirePermit(ctx)
		if err == nil {
			held = p
		}
		return err
	}, func() { held.Record() })
}

// size is the number of slots wherever nothing is to be refused: more than
// there are goroutines at work.
const size = 64

var errFull = errors.New("full, and it should not be")

// counter is the least a concurrency limit can be: one word.
type counter struct{ held atomic.Int64 }

func (c *counter) take() bool {
	for {
		held := c.held.Load()
		if held >= size {
			return false
		}
		if c.held.CompareAndSwap(held, held+1) {
			return true
		}
	}
}

func (c *counter) give() {
	for {
		held := c.held.Load()
		if c.held.CompareAndSwap(held, held-1) {
			return
		}
	}
}

func casPair() Loop {
	var c counter
	return func(n int) error {
		for range n {
			if !c.take() {
				return errFull
			}
			c.give()
		}
		return nil
	}
}

func clockedCASPair() Loop {
	var c counter
	epoch := time.Now()
	return func(n int) error {
		var sum time.Duration
		for range n {
			start := time.Since(epoch)
			if !c.take() {
				return errFull
			}
			c.give()
			sum += time.Since(epoch) - start
		}
		if sum < 0 {
			return errors.New("the clock went backwards")
		}
		return nil
	}
}

// refusedCount is the least a refusal can be: look at the word, count.
func refusedCount() Loop {
	var c counter
	var refused atomic.Uint64
	c.held.Store(size)
	return func(n int) error {
		for range n {
			if c.take() {
				return errTaken
			}
			refused.Add(1)
		}
		return nil
	}
}

var errTaken = errors.New("admitted, and it should not be")

func channel() Loop {
	slots := make(chan struct{}, size)
	return func(n int) error {
		for range n {
			select {
			case slots <- struct{}{}:
			default:
				return errFull
			}
			<-slots
		}
		return nil
	}
}

func fullChannel() Loop {
	slots := make(chan struct{}, 1)
	slots <- struct{}{}
	return func(n int) error {
		for range n {
			select {
			case slots <- struct{}{}:
				return errTaken
			default:
			}
		}
		return nil
	}
}

func mutex() Loop {
	var mu sync.Mutex
	var held int
	return func(n int) error {
		for range n {
			mu.Lock()
			full := held >= size
			if !full {
				held++
			}
			mu.Unlock()
			if full {
				return errFull
			}
			mu.Lock()
			held--
			mu.Unlock()
		}
		return nil
	}
}

// channelHandoff passes one slot through a channel. The receive that makes room
// completes a send that waits. So each release hands the slot to the one who waits.
func channelHandoff() (Loop, func()) {
	slots := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	loop := between(func() error {
		select {
		case slots <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, func() { <-slots })
	return loop, cancel
}

// between makes a loop in which two goroutines pass the only slot to and fro. Each
// finds it taken by the other, parks, and is woken by the other's release. So every
// operation is one hand-off.
//
// That holds while both are in step; between sees to the first step. On several cores
// they can fall out of step for a while. Then the one that was woken gives the slot back
// before the other asks for it.
func between(acquire func() error, release func()) Loop {
	turns := func(n int) error {
		for range n {
			if err := acquire(); err != nil {
				return err
			}
			release()
		}
		return nil
	}
	return func(n int) error {
		if err := acquire(); err != nil {
			return err
		}
		var begun atomic.Bool
		other := make(chan error)
		go func() {
			begun.Store(true)
			other <- turns(n / 2)
		}()
		for !begun.Load() {
			runtime.Gosched()
		}
		for range 10 {
			runtime.Gosched() // until the other waits
		}
		release()
		err := turns(n - n/2 - 1)
		return errors.Join(err, <-other)
	}
}
