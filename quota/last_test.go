package quota

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// elsewhere is a store on another machine, and counts what it is asked.
type elsewhere struct {
	flaky
	asked int
}

func (e *elsewhere) Take(ctx context.Context, t *Take) (Result, error) {
	e.asked++
	return e.flaky.Take(ctx, t)
}

// What is left is told without another question, of what was heard lately.
func TestLast(t *testing.T) {
	clock := &still{}
	store := &elsewhere{flaky: flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}}
	rules := append(everyUser(Per(5, time.Hour)), Rule{User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true})
	q := newQuota(t, Config{Name: "q", Now: clock.now, Store: store, Rules: rules, OnStoreError: Open})
	for _, w := range []weir.Work{alice, bob, {User: "root"}, {User: "eve"}, {Exempt: true}} {
		if d, ok := q.Last(ctx, w); ok {
			t.Errorf("of %+v, which has never come, it tells %+v", w, d)
		}
	}
	for left := 4.; left >= 0; left-- {
		if _, err := q.TryAdmit(alice); err != nil {
			t.Fatal(err)
		}
		if d, ok := q.Last(ctx, alice); !ok || d.Remaining != left || d.Rule != "user=*" || d.Key != "q/user=alice" || len(d.Limits) != 1 {
			t.Errorf("%+v, %v, want %v left", d, ok, left)
		}
	}
	if _, err := q.TryAdmit(alice); err == nil {
		t.Fatal("admitted for nothing")
	}
	if d, ok := q.Last(ctx, alice); !ok || d.OK || d.Wait != 12*time.Minute {
		t.Errorf("after a refusal %+v, %v", d, ok)
	}
	if store.asked != 6 {
		t.Errorf("asked %d times, want 6", store.asked)
	}
	if _, ok := q.Last(ctx, bob); ok {
		t.Error("another is taken for her")
	}
	clock.advance(time.Second)
	if _, ok := q.Last(ctx, alice); ok {
		t.Error("what was heard a second ago counts")
	}
	store.err = errors.New("gone")
	if _, err := q.TryAdmit(bob); err != nil {
		t.Fatal(err)
	}
	if d, ok := q.Last(ctx, bob); ok {
		t.Errorf("it tells %+v, and the store was gone", d)
	}
}

// Of many buckets the last of each place is remembered, and a rule with fewer windows
// than the answer was about says nothing.
func TestLastIsBounded(t *testing.T) {
	clock := &still{}
	store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
	two := everyUser(Per(100, time.Hour), Per(5, time.Hour))
	q := newQuota(t, Config{Name: "q", Now: clock.now, Store: store, Rules: two})
	known := 0
	for i := range 5000 {
		_, _ = q.TryAdmit(weir.Work{User: fmt.Sprint(i)})
	}
	for i := range 5000 {
		if _, ok := q.Last(ctx, weir.Work{User: fmt.Sprint(i)}); ok {
			known++
		}
	}
	if most := len(q.heard.places); known > most || known < most/2 {
		t.Errorf("%d are known, of at most %d", known, most)
	}
	if err := q.SetRules(everyUser(Per(100, time.Hour))); err != nil {
		t.Fatal(err)
	}
	if d, ok := q.Last(ctx, weir.Work{User: "4999"}); ok {
		t.Errorf("it tells of a window that is gone: %+v", d)
	}
}

// A Memory is asked, at whatever time.
func TestLastOfAMemory(t *testing.T) {
	r := newRig(t, Config{Rules: []Rule{{User: Named("alice"), Limits: []Limit{Per(5, time.Hour)}}}})
	if d, ok := r.Last(ctx, alice); !ok || d.Remaining != 5 {
		t.Errorf("%+v, %v", d, ok)
	}
	if _, ok := r.Last(ctx, bob); ok {
		t.Error("it tells of work that no rule matches")
	}
}
