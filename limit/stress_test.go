package limit

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// TestStress drives both gears from many goroutines at once: the number at work
// never exceeds the limit, everything comes back, and nobody waits for ever.
func TestStress(t *testing.T) {
	const goroutines, limit = 16, 5
	l := weir.Must(New(Config{Name: "s", Limit: limit, Queue: Queue{Len: 8, MaxWait: -1}}))
	defer l.Close()
	var working, admitted atomic.Int64
	var late sync.Map // permits that were given back long ago
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 3000 {
				p, err := stressAdmit(l, rng)
				if err != nil {
					continue
				}
				admitted.Add(1)
				if n := working.Add(1); n > limit {
					t.Errorf("%d at work, limit %d", n, limit)
				}
				if rng.IntN(4) == 0 {
					p.Sample(weir.OK)
				}
				working.Add(-1)
				if rng.IntN(8) == 0 {
					p.Cancel()
				}
				p.Done(weir.OK)
				if old, ok := late.Swap(i%50, p); ok {
					old.(weir.Permit).Done(weir.OK)
				}
			}
		})
	}
	wg.Wait()
	l.check(t)
	if s := l.Snapshot(); s.InFlight != 0 || s.Waiting != 0 {
		t.Fatalf("in flight %d, waiting %d after everybody left", s.InFlight, s.Waiting)
	}
	t.Logf("%d admitted", admitted.Load())
}

func stressAdmit(l *Limiter, rng *rand.Rand) (weir.Permit, error) {
	switch rng.IntN(4) {
	case 0:
		return l.TryAdmit(weir.Work{})
	case 1:
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		defer cancel()
		return l.Admit(ctx, weir.Work{})
	case 2:
		return l.Admit(context.Background(), weir.Work{MaxWait: time.Duration(rng.IntN(300)) * time.Microsecond})
	}
	return l.Admit(context.Background(), weir.Work{})
}

// TestStressResize changes the limit under load. What is granted never exceeds
// the largest limit, and the books balance at the end.
func TestStressResize(t *testing.T) {
	const most = 9
	l := weir.Must(New(Config{Name: "s", Limit: most, Queue: Queue{Len: 4}}))
	defer l.Close()
	var cost atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for !stop.Load() {
				units := rng.Int64N(3) + 1
				p, err := l.Admit(context.Background(), weir.Work{Cost: units, MaxWait: time.Millisecond})
				if err != nil {
					continue
				}
				if n := cost.Add(1); n > most {
					t.Errorf("%d permits out, limit at most %d", n, most)
				}
				cost.Add(-1)
				p.Done(weir.OK)
			}
		})
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for range 2000 {
		if err := l.SetLimit(rng.Int64N(most) + 1); err != nil {
			t.Error(err)
		}
		l.check(t)
	}
	stop.Store(true)
	wg.Wait()
	l.check(t)
	if s := l.Snapshot(); s.InFlight != 0 {
		t.Fatalf("in flight %d after everybody left", s.InFlight)
	}
}
