package throttle

import (
	"sync"
	"time"
)

// Budget bounds the retries of all calls to one target, by a ratio to the requests. A floor allows some retries
// a minute, however few requests there are. Retries that are not used are not saved up for a fault. [Caller]
// has a Budget for each target. It is safe for concurrent use.
type Budget struct {
	now func() time.Duration

	mu   sync.Mutex
	core budgetCore
}

// NewBudget makes a Budget. now is the clock for virtual time, nil for the real one. The error names
// every setting out of range.
func NewBudget(cfg BudgetConfig, now func() time.Duration) (*Budget, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if now == nil {
		epoch := time.Now()
		now = func() time.Duration { return time.Since(epoch) }
	}
	return &Budget{now: now, core: newBudget(&cfg)}, nil
}

// Request counts a request: the first attempt of a call.
func (b *Budget) Request() {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.core.request(now)
}

// Charge charges a retry when it is decided, before its back-off. It reports false if the budget is
// used up. Call Refund if the retry is not sent after all.
func (b *Budget) Charge() (Charge, bool) {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.core.charge(now)
}

// Refund gives a charge back. It must be called at most once for each charge. The zero Charge changes nothing,
// and neither does a charge that has left the window.
func (b *Budget) Refund(c Charge) {
	if !c.made { // nearly every call ends so, and needs no look at the clock
		return
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.core.refund(now, c)
}

// Left returns how many more retries there may be now.
func (b *Budget) Left() int {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.core.left(now)
}

// Charge is one retry that a [Budget] has charged. The zero Charge is no retry.
type Charge struct {
	bin  int64
	made bool
}

// budgetBins is the number of parts of a budget's window.
const budgetBins = 30

// The kinds of events that a budget counts.
const (
	requested = iota
	retried
)

// budgetCore is a Budget without a clock or a lock.
type budgetCore struct {
	window window
	ratio  float64
	floor  float64 // in the window
}

func newBudget(cfg *BudgetConfig) budgetCore {
	b := budgetCore{window: newWindow(cfg.Window, budgetBins, 2), ratio: cfg.Ratio}
	if cfg.Floor > 0 {
		b.floor = max(1, float64(cfg.Floor)*cfg.Window.Minutes())
	}
	return b
}

func (b *budgetCore) request(now time.Duration) { b.window.add(now, requested) }

func (b *budgetCore) charge(now time.Duration) (Charge, bool) {
	if b.left(now) == 0 {
		return Charge{}, false
	}
	return Charge{bin: b.window.add(now, retried), made: true}, true
}

func (b *budgetCore) refund(now time.Duration, c Charge) {
	if c.made {
		b.window.remove(now, retried, c.bin)
	}
}

// left counts retries against requests, not against attempts, so that retries do not allow further retries. The
// ratio holds for the window and for each bin. Without the second rule, the first seconds of a fault would
// spend the retries of the whole window. Attempts would be 1.3 times the requests for ten seconds. A bin with
// few requests may have one retry. The floor may be spent at any moment, also in one bin.
func (b *budgetCore) left(now time.Duration) int {
	b.window.advance(now)
	const rounding = 1e-9 // so that a tenth of 10 is 1
	again := float64(b.window.sums[retried])
	inWindow := max(b.ratio*float64(b.window.sums[requested]), b.floor) - again
	bin := b.window.newest
	inBin := max(1, b.ratio*float64(bin[requested])) - float64(bin[retried])
	return max(0, int(min(inWindow, max(inBin, b.floor-again))+rounding))
}
