package throttle

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func budgetOf(t testing.TB, cfg BudgetConfig) *budgetCore {
	t.Helper()
	cfg, err := cfg.complete()
	if err != nil {
		t.Fatal(err)
	}
	b := newBudget(&cfg)
	return &b
}

// A thousand requests that all fail get a hundred retries, not 111: retries are no requests.
func TestBudgetIsATenth(t *testing.T) {
	b := budgetOf(t, BudgetConfig{Floor: -1})
	retries := 0
	for range 1000 {
		b.request(0)
		for retries <= 1000 { // a budget without a bound ends too
			if _, ok := b.charge(0); !ok {
				break
			}
			retries++
		}
	}
	if retries != 100 {
		t.Errorf("%d retries for 1,000 requests, want 100", retries)
	}
}

// Half a minute without a failure saves no retries up. In each second of a later fault, a tenth of the requests
// are tried again.
func TestBudgetSavesNothing(t *testing.T) {
	b := budgetOf(t, BudgetConfig{})
	for second := range 40 {
		retries := 0
		for i := range 100 {
			now := time.Duration(second)*time.Second + time.Duration(i)*10*time.Millisecond
			b.request(now)
			if second < 30 {
				continue
			}
			if _, ok := b.charge(now); ok {
				retries++
			}
		}
		if second >= 30 && (retries < 8 || retries > 10) {
			t.Errorf("second %d: %d retries for 100 requests, want 10", second, retries)
		}
	}
}

// Small clients have a floor: 10 a minute are 5 in 30 s.
func TestBudgetFloor(t *testing.T) {
	b := budgetOf(t, BudgetConfig{})
	b.request(0)
	for i := range 6 {
		if _, ok := b.charge(0); ok != (i < 5) {
			t.Errorf("retry %d: charged %v", i+1, ok)
		}
	}
	if n := b.left(29 * time.Second); n != 0 {
		t.Errorf("%d retries are left within the window", n)
	}
	if n := b.left(30 * time.Second); n != 5 {
		t.Errorf("%d retries are left after the window, want 5", n)
	}
}

// A window may have one retry even if it is so short that the floor is less than one.
func TestBudgetFloorOfAShortWindow(t *testing.T) {
	b := budgetOf(t, BudgetConfig{Window: 2 * time.Second})
	b.request(0)
	if _, ok := b.charge(0); !ok {
		t.Error("a client with few requests may never retry")
	}
	if _, ok := b.charge(0); ok {
		t.Error("two retries in a window whose floor is a third of one")
	}
}

// Five requests a second allow half a retry a second. A bin may have one retry, so that a tenth is reached.
func TestBudgetOfFewRequests(t *testing.T) {
	b := budgetOf(t, BudgetConfig{})
	retries := 0
	for second := range 60 {
		now := time.Duration(second) * time.Second
		for range 5 {
			b.request(now)
			if _, ok := b.charge(now); ok && second >= 30 {
				retries++
			}
		}
	}
	if retries != 15 {
		t.Errorf("%d retries for 150 requests, want 15", retries)
	}
}

// A refunded retry can be used again, once, and only within its window.
func TestBudgetRefund(t *testing.T) {
	b := budgetOf(t, BudgetConfig{})
	var charges []Charge
	for range 5 {
		c, ok := b.charge(0)
		if !ok {
			t.Fatal("the floor is 5")
		}
		charges = append(charges, c)
	}
	b.refund(10*time.Second, charges[0])
	if n := b.left(10 * time.Second); n != 1 {
		t.Errorf("%d left after one was given back, want 1", n)
	}
	b.refund(10*time.Second, Charge{})
	if n := b.left(10 * time.Second); n != 1 {
		t.Errorf("%d left after nothing was given back, want 1", n)
	}
	for _, c := range charges[1:] {
		b.refund(40*time.Second, c) // all of it is forgotten already
	}
	if n := b.left(40 * time.Second); n != 5 {
		t.Errorf("%d left in a new window, want 5", n)
	}
	for range 2 { // where the ring had the first ones
		b.charge(60 * time.Second)
	}
	b.refund(60*time.Second, charges[0])
	if n := b.left(60 * time.Second); n != 3 {
		t.Errorf("%d left: a charge of an earlier window was given back, want 3", n)
	}
}

// A jump of the clock allows no additional retries. A jump back is no time, a jump forward is a new window.
func TestBudgetClockJumps(t *testing.T) {
	b := budgetOf(t, BudgetConfig{})
	spend := func(now time.Duration) (n int) {
		for range 100 {
			if _, ok := b.charge(now); ok {
				n++
			}
		}
		return n
	}
	for _, tt := range []struct {
		now  time.Duration
		want int
	}{{0, 5}, {-time.Hour, 0}, {time.Hour, 5}, {0, 0}, {math.MaxInt64, 5}, {math.MinInt64, 0}} {
		if got := spend(tt.now); got != tt.want {
			t.Errorf("at %v: %d retries, want %d", tt.now, got, tt.want)
		}
	}
}

// In any stretch of a window there are no more retries than the ratio of its requests, or the floor.
func TestBudgetModel(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		b := budgetOf(t, BudgetConfig{Ratio: 0.05 + 0.5*random.Float64()})
		width := b.window.width
		requests, retries := map[int64]float64{}, map[int64]float64{}
		var pending []Charge
		var now time.Duration
		for range 5000 {
			now += time.Duration(random.ExpFloat64() * float64(20*time.Millisecond))
			bin := int64(now / width)
			switch random.IntN(5) {
			case 0, 1, 2:
				b.request(now)
				requests[bin]++
			case 3:
				if c, ok := b.charge(now); ok {
					pending = append(pending, c)
					retries[bin]++
				}
			case 4:
				if n := len(pending); n > 0 {
					c := pending[n-1]
					pending = pending[:n-1]
					b.refund(now, c)
					retries[c.bin]--
				}
			}
			var asked, again float64
			for i := bin - budgetBins + 1; i <= bin; i++ {
				asked, again = asked+requests[i], again+retries[i]
			}
			if most := max(b.ratio*asked, 5); again > most+1 && b.left(now) > 0 {
				t.Fatalf("seed %d: %v retries for %v requests, and %d left", seed, again, asked, b.left(now))
			}
			if got := float64(b.window.sums[retried]); got != again {
				t.Fatalf("seed %d: counts %v retries, the model %v", seed, got, again)
			}
		}
	}
}
