package cost

import (
	"errors"
	"runtime"
	"sync/atomic"
)

// between makes a loop in which two goroutines pass the only slot to and fro:
// each finds it taken by the other, parks, and is woken by the other's give, so
// that every operation is one hand-off.
//
// That holds as long as give passes the slot to the one who waits, and once both
// are in step; between sees to the first step. On several cores the two can
// fall out of step for a while, when the one that was woken is quicker to give
// the slot back than the other to ask for it.
func between(take func() error, give func()) Loop {
	turns := func(n int) error {
		for range n {
			if err := take(); err != nil {
				return err
			}
			give()
		}
		return nil
	}
	return func(n int) error {
		if err := take(); err != nil {
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
		give()
		err := turns(n - n/2 - 1)
		return errors.Join(err, <-other)
	}
}
