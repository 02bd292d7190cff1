package live

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// burner is a backend that really computes. A microsecond of work is a number
// of rounds of arithmetic, found once by the CPU time they take, so that the same
// request is the same work however busy the machine is.
type burner struct {
	perSecond float64
	scale     atomic.Uint64 // bits of a float64
	sink      atomic.Uint64 // of results, so that they are computed

	mu sync.Mutex
	account
}

func newBurner() *burner {
	b := new(burner)
	b.perSecond = b.calibrate()
	b.setScale(1)
	return b
}

// calibrate returns the rounds that a second of CPU time is: the best of a few
// tries, because what disturbs them only slows them down.
func (b *burner) calibrate() float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const rounds = 20_000_000
	best := math.Inf(1)
	for range 5 {
		before := threadTime()
		b.sink.Store(spin(rounds)) // else the compiler sees that nobody wants it
		best = min(best, (threadTime() - before).Seconds())
	}
	return rounds / max(best, 1e-6)
}

// spin is a chain of dependent operations, which no compiler shortens.
func spin(rounds int) uint64 {
	x := uint64(rounds) | 1
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

func (b *burner) do(work time.Duration) bool {
	b.mu.Lock()
	ok := b.account.entered()
	b.mu.Unlock()
	if !ok {
		return false
	}
	scale := math.Float64frombits(b.scale.Load())
	b.sink.Store(spin(int(work.Seconds() * b.perSecond / scale)))
	b.mu.Lock()
	b.account.finished(work.Seconds())
	b.mu.Unlock()
	return true
}

func (b *burner) setScale(scale float64) { b.scale.Store(math.Float64bits(scale)) }

func (b *burner) take() account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.account.take()
}
