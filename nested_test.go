package weir_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

func TestNestedCallTakesNoSecondSlot(t *testing.T) {
	l := newLimit(t, "l", 1)
	err := weir.Do(context.Background(), l, weir.Work{}, func(ctx context.Context) error {
		return weir.Do(ctx, l, weir.Work{MaxWait: weir.NoWait}, func(ctx context.Context) error {
			if n := inFlight(l); n != 1 {
				return fmt.Errorf("%d in flight", n)
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	if inFlight(l) != 0 {
		t.Error("not given back")
	}
}

func TestNestedCallAfterDoneNeedsItsOwnSlot(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	ctx := weir.WithPermit(context.Background(), l, p)
	p.Done(weir.OK)
	other, _ := l.TryAdmit(weir.Work{}) // the same slot, another generation
	defer other.Done(weir.OK)
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("admitted on a permit that is done")
	}
}

func TestNestedCallsAreBounded(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	defer p.Done(weir.OK)
	ctx := weir.WithPermit(context.Background(), l, p)
	var riding []weir.Permit
	for range weir.MaxNested {
		r, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait})
		if err != nil {
			t.Fatal(err)
		}
		riding = append(riding, r)
	}
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("no bound")
	}
	riding[0].Done(weir.OK)
	riding[0].Done(weir.OK)
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err != nil {
		t.Error(err)
	}
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("Done twice made two places")
	}
}

func TestNestedFindsTheRightGate(t *testing.T) {
	a, b := newLimit(t, "a", 1), newLimit(t, "b", 1)
	ctx := context.Background()
	pa, _ := a.TryAdmit(weir.Work{})
	pb, _ := b.TryAdmit(weir.Work{})
	defer pa.Done(weir.OK)
	defer pb.Done(weir.OK)
	ctx = weir.WithPermit(weir.WithPermit(ctx, a, pa), b, pb)
	for _, g := range []weir.Gate{a, b} {
		if _, err := g.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err != nil {
			t.Error(err)
		}
	}
}

// A gate that two chains share takes no second slot either, wherever it stands.
func TestNestedThroughChains(t *testing.T) {
	a, b, c := newLimit(t, "a", 1), newLimit(t, "b", 1), newLimit(t, "c", 1)
	outer := weir.All(a, b)
	for _, inner := range []weir.Gate{outer, a, b, weir.All(a, c), weir.All(c, b)} {
		err := weir.Do(context.Background(), outer, weir.Work{}, func(ctx context.Context) error {
			return weir.Do(ctx, inner, weir.Work{MaxWait: weir.NoWait}, func(context.Context) error { return nil })
		})
		if err != nil {
			t.Error(err)
		}
		if inFlight(a, b, c) != 0 {
			t.Error("not all given back")
		}
	}
}

// What rides on one slot is bounded however deep the calls go, and whichever
// chains they take.
func TestNestedCallsShareOneBound(t *testing.T) {
	a, b, c, d := newLimit(t, "a", 1), newLimit(t, "b", 1), newLimit(t, "c", 1), newLimit(t, "d", 1)
	noWait := weir.Work{MaxWait: weir.NoWait}
	tests := map[string]struct{ first, then weir.Gate }{
		"a gate":            {a, a},
		"a chain":           {weir.All(b, a), a},
		"a chain of chains": {weir.All(c, weir.All(b, a)), a},
		"through a chain":   {a, weir.All(c, a)},
		"through two":       {a, weir.All(c, weir.All(a, d))},
	}
	for name, tt := range tests {
		p, err := tt.first.Admit(t.Context(), noWait)
		if err != nil {
			t.Fatal(name, err)
		}
		ctx := weir.WithPermit(t.Context(), tt.first, p)
		var riding []weir.Permit
		for { // each call from within the one before
			r, err := tt.then.Admit(ctx, noWait)
			if err != nil {
				break
			}
			ctx = weir.WithPermit(ctx, tt.then, r)
			riding = append(riding, r)
		}
		if len(riding) != weir.MaxNested || inFlight(a) != 1 {
			t.Errorf("%s: %d calls rode on one permit, want %d; %d in flight", name, len(riding), weir.MaxNested, inFlight(a))
		}
		p.Done(weir.OK)
		if r, ok := weir.Nested(ctx, a); ok {
			t.Errorf("%s: rides on a permit that is done", name)
			r.Done(weir.OK)
		}
		for _, r := range riding {
			r.Done(weir.OK)
		}
		if n := inFlight(a, b, c, d); n != 0 {
			t.Errorf("%s: %d not given back", name, n)
		}
	}
}

// Carrying the same permit twice makes no second bound.
func TestNestedPermitCarriedTwice(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	defer p.Done(weir.OK)
	ctx := weir.WithPermit(t.Context(), l, p)
	for i := range weir.MaxNested + 1 {
		ctx = weir.WithPermit(ctx, l, p)
		if _, ok := weir.Nested(ctx, l); ok != (i < weir.MaxNested) {
			t.Fatalf("call %d: %v", i, ok)
		}
	}
}

// A fan-out from many goroutines keeps the bound, and gives back what it took.
func TestNestedFanOut(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	ctx := weir.WithPermit(t.Context(), l, p)
	var now, most atomic.Int64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			r, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait})
			if err != nil {
				return
			}
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			now.Add(-1)
			r.Done(weir.OK)
		})
	}
	wg.Wait()
	if m := most.Load(); m < 1 || m > weir.MaxNested || inFlight(l) != 1 {
		t.Errorf("%d at once, %d in flight", m, inFlight(l))
	}
	if p.Done(weir.OK); inFlight(l) != 0 {
		t.Error("not given back")
	}
}

// gateFunc is a gate of a type that cannot be compared.
type gateFunc func(weir.Work) (weir.Permit, error)

func (f gateFunc) Admit(_ context.Context, w weir.Work) (weir.Permit, error) { return f(w) }

func TestNestedGatesThatCannotBeCompared(t *testing.T) {
	open := gateFunc(func(weir.Work) (weir.Permit, error) { return weir.Permit{}, nil })
	slots := newLimit(t, "slots", 1)
	outer, inner := weir.All(open, slots), weir.All(open, slots)
	err := weir.Do(t.Context(), outer, weir.Work{}, func(ctx context.Context) error {
		return weir.Do(ctx, inner, weir.Work{MaxWait: weir.NoWait}, func(context.Context) error { return nil })
	})
	if err != nil || inFlight(slots) != 0 {
		t.Errorf("%v, %d in flight", err, inFlight(slots))
	}
}

// The gates of a policy, and chains of them, are covered like any others, and so
// is a gate that a nested call reaches by another route.
func TestNestedThroughAPolicy(t *testing.T) {
	one := policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}}
	p, err := policy.Compile(policy.Spec{
		Gates: map[string]policy.GateSpec{"a": one, "b": one},
		Routes: []policy.RouteSpec{
			{Name: "a", Match: []string{"/a"}, Gates: []string{"a"}},
			{Name: "ab", Match: []string{"/ab"}, Gates: []string{"a", "b"}},
			{Name: "ba", Match: []string{"/ba"}, Gates: []string{"b", "a"}},
		},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	noWait := weir.Work{MaxWait: weir.NoWait}
	for _, outer := range []string{"ab", "ba"} {
		for _, inner := range []string{"a", "ab", "ba"} {
			err := weir.Do(t.Context(), p.Route(outer).Gate(), noWait, func(ctx context.Context) error {
				return weir.Do(ctx, p.Route(inner).Gate(), noWait, func(context.Context) error {
					if a, b := p.Gate("a").Snapshot().InFlight, p.Gate("b").Snapshot().InFlight; a != 1 || b != 1 {
						return fmt.Errorf("%d and %d in flight", a, b)
					}
					return nil
				})
			})
			if err != nil {
				t.Errorf("%s from within %s: %v", inner, outer, err)
			}
		}
	}
	if a, b := p.Gate("a").Snapshot().InFlight, p.Gate("b").Snapshot().InFlight; a != 0 || b != 0 {
		t.Errorf("%d and %d not given back", a, b)
	}
}
