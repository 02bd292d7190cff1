package cost

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

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

// channelHandoff passes one slot through a channel. A send that waits in a full
// channel is completed by the receive that makes room, so each release hands
// the slot to the one who waits.
func channelHandoff() (Loop, func(), error) {
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
	return loop, cancel, nil
}
