package weir_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// afar is a quota whose store takes a second to answer.
type afar struct {
	*quota.Memory
	mu    sync.Mutex
	asked []time.Time
	panic bool
}

func (s *afar) Decide(ctx context.Context, r *quota.Request) (quota.Decision, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	s.mu.Unlock()
	time.Sleep(time.Second)
	if s.panic {
		panic("the store is broken")
	}
	return s.Memory.Decide(ctx, r)
}

func newAfar(t *testing.T, name string, n float64) (*quota.Quota, *afar) {
	t.Helper()
	m, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &afar{Memory: m}
	q, err := quota.New(quota.Config{Name: name, Store: s, Rules: []quota.Rule{{Windows: []quota.Window{quota.Per(n, time.Hour)}}}})
	if err != nil {
		t.Fatal(err)
	}
	return q, s
}

func near(t *testing.T, name string, n float64) *quota.Quota {
	t.Helper()
	q, err := quota.New(quota.Config{Name: name, Rules: []quota.Rule{{Windows: []quota.Window{quota.Per(n, time.Hour)}}}})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// leftOf is what a quota still has.
func leftOf(t *testing.T, q *quota.Quota) float64 {
	t.Helper()
	a, _ := q.Peek(t.Context(), weir.Work{})
	return a.Remaining
}

// Neighbours that ask servers are asked at once; what one refuses, the others get back.
func TestAllAsksServersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := near(t, "first", 9)
		a, _ := newAfar(t, "a", 9)
		b, _ := newAfar(t, "b", 2)
		c, _ := newAfar(t, "c", 9)
		last := near(t, "last", 9)
		all := weir.All(first, a, b, c, last)
		for i := range 2 {
			began := time.Now()
			p, err := all.Admit(t.Context(), weir.Work{})
			if err != nil || time.Since(began) != time.Second {
				t.Fatalf("admission %d: %v after %v", i, err, time.Since(began))
			}
			p.Done(weir.OK)
		}
		_, err := all.Admit(t.Context(), weir.Work{})
		if r := weir.AsRejection(err); r == nil || r.Gate != "b" || r.RetryAfter != 30*time.Minute-3*time.Second+time.Second {
			t.Errorf("%v", err)
		}
		for _, q := range []*quota.Quota{first, a, c, last} {
			if left := int(leftOf(t, q) + 0.01); left != 7 {
				t.Errorf("after a refusal %d are left of %s, want 7 of 9", left, q.Name())
			}
		}
		p, err := weir.All(a, c).(weir.TryAdmitter).TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		p.Cancel()
		if got := int(leftOf(t, a) + 0.01); got != 7 {
			t.Errorf("%d are left, want 7", got)
		}
	})
}

// A local gate between two servers keeps its turn, and the last gate is asked last.
func TestAllKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, sa := newAfar(t, "a", 9)
		between := near(t, "between", 1)
		b, sb := newAfar(t, "b", 9)
		last, sl := newAfar(t, "last", 9)
		all := weir.All(a, between, b, last)
		began := time.Now()
		if _, err := all.Admit(t.Context(), weir.Work{}); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := all.Admit(t.Context(), weir.Work{}); weir.AsRejection(err) == nil {
			t.Errorf("%v", err)
		}
		if len(sa.asked) != 2 || len(sb.asked) != 1 || len(sl.asked) != 1 {
			t.Errorf("asked %d, %d and %d times", len(sa.asked), len(sb.asked), len(sl.asked))
		}
	})
}

// Who is over a quota of its own, and asks on and on, takes nothing from one that is shared.
func TestAllUnderAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, s := newAfar(t, "own", 1)
		shared, asked := newAfar(t, "shared", 5)
		all := weir.All(own, shared, near(t, "last", 99))
		if _, err := all.Admit(t.Context(), weir.Work{}); err != nil {
			t.Fatal(err)
		}
		if _, err := all.Admit(t.Context(), weir.Work{}); err == nil {
			t.Fatal("two are let in, of 1")
		}
		var flood sync.WaitGroup
		for range 30 {
			flood.Go(func() {
				if _, err := all.Admit(t.Context(), weir.Work{}); err == nil {
					t.Error("the flood is let in")
				}
			})
		}
		flood.Wait()
		if len(s.asked) != 32 || len(asked.asked) != 2 {
			t.Errorf("own was asked %d times and shared %d, want 32 and 2", len(s.asked), len(asked.asked))
		}
	})
}

// A gate that panics does so where it was asked, and the others get back what they gave.
func TestAllAtOncePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAfar(t, "a", 9)
		b, broken := newAfar(t, "b", 9)
		broken.panic = true
		func() {
			defer func() {
				if r := recover(); r != "the store is broken" {
					t.Errorf("%v", r)
				}
			}()
			_, err := weir.All(a, b, near(t, "last", 9)).Admit(t.Context(), weir.Work{})
			t.Error(errors.Join(errors.New("it did not panic"), err))
		}()
		if got := leftOf(t, a); got != 9 {
			t.Errorf("%v are left, of 9", got)
		}
	})
}

// quitter is a gate on a server that ends its goroutine.
type quitter struct{ weir.Gate }

func (quitter) IsDistant() bool                         { return true }
func (quitter) TryAdmit(weir.Work) (weir.Permit, error) { runtime.Goexit(); panic("unreachable") }

// A gate that does not answer has not admitted.
func TestAllWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAfar(t, "a", 9)
		last := near(t, "last", 9)
		if _, err := weir.All(a, quitter{near(t, "b", 9)}, last).Admit(t.Context(), weir.Work{}); err == nil {
			t.Error("admitted")
		}
		if left := int(leftOf(t, a) + 0.01); left != 9 {
			t.Errorf("%d are left of a, want 9", left)
		}
	})
}
