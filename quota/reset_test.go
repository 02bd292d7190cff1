package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// A debt of any size is forgiven in all windows, of whom it is and of nobody else, and
// what was there before is told.
func TestReset(t *testing.T) {
	limits := []Limit{Per(10, time.Second), Per(1000, time.Hour), Each(5000, Day, nil)}
	for _, debt := range []int64{0, 3, 900_000_000_000_000, 1 << 62} {
		r := newRig(t, Config{Rules: everyUser(limits...)})
		r.admit(bob)
		p := r.admit(alice)
		p.SetCost("", debt)
		p.Done(weir.OK)
		was := r.left(alice)
		d, err := r.Reset(ctx, alice)
		if err != nil || d.Key != "q/user=alice" || d.Rule != "user=*" || len(d.Limits) != 3 || d.Remaining != was || d.OK != (was >= 0) {
			t.Errorf("%d: %v %+v, want that it held %v", debt, err, d, was)
		}
		if got := r.left(alice); got != 10 {
			t.Errorf("%d: %v left, want 10", debt, got)
		}
		if got := r.left(bob); got != 9 {
			t.Errorf("%v left to bob, want 9", got)
		}
		hash := maphash.String(r.memory.seed, d.Key)
		for i, l := range limits {
			if b, _, _, _ := r.memory.shard(hash).table.Load().find(windowID(hash, i)).read(); b.tokens != l.Burst {
				t.Errorf("%d: window %d holds %v of %v", debt, i+1, b.tokens, l.Burst)
			}
		}
		if _, err := r.Reset(ctx, alice); err != nil || r.left(alice) != 10 {
			t.Errorf("once more: %v, %v left, want 10", err, r.left(alice))
		}
	}
}

// Who has no bucket is told why.
func TestResetOfNobody(t *testing.T) {
	r := newRig(t, Config{Rules: []Rule{
		{User: Named("root"), Exempt: true}, {User: Named("eve"), Blocked: true}, {User: Named("alice"), Limits: []Limit{Per(1, time.Hour)}},
	}})
	for part, w := range map[string]weir.Work{
		"no rule matches": bob, "root exempts": {User: "root"}, "eve blocks": {User: "eve"}, "the work is exempt": {User: "alice", Exempt: true},
	} {
		if _, err := r.Reset(ctx, w); !errors.Is(err, ErrNoBucket) || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), `gate "q"`) {
			t.Errorf("%+v: %v, want %q", w, err, part)
		}
	}
	r.Close()
	if _, err := r.Reset(ctx, alice); !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want %v", err, ErrClosed)
	}
}

// Whom the store had no place for has nothing that could be filled, and is not told that
// it was; whoever comes new to a store where nobody shares is full, which is fine.
func TestResetWithoutAPlace(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Limit{Rate: .001, Burst: 10}), Store: m, Now: clock.now}), t, &clock}
	if _, err := r.Reset(ctx, alice); err != nil {
		t.Errorf("nobody shares yet: %v", err)
	}
	r.admit(of(alice, 4))
	if _, err := r.Reset(ctx, alice); !errors.Is(err, ErrNoBucket) || !strings.Contains(err.Error(), "MaxKeys") {
		t.Errorf("%v, want that there is no place", err)
	}
	if got := r.left(bob); got != 6 {
		t.Errorf("%v left of what is shared, want 6", got)
	}
}

// What stands in for a store is filled with it; while the store cannot tell, that is said.
func TestResetWithAStore(t *testing.T) {
	var clock still
	down := errors.New("the store is down")
	store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: store, Now: clock.now}), t, &clock}
	r.admit(of(alice, 3))
	r.refused(alice)
	store.err = down
	r.admit(of(alice, 3)) // by the one that stands in
	r.refused(alice)
	if _, err := r.Reset(ctx, alice); !errors.Is(err, down) || !strings.Contains(err.Error(), "left as it is") {
		t.Errorf("%v, want %v", err, down)
	}
	r.refused(alice)
	store.err = nil
	if r.Foretell(ctx, alice) == nil {
		t.Error("alice was refused just now, which is not remembered")
	}
	if d, err := r.Reset(ctx, alice); err != nil || d.Remaining != 0 || !d.OK {
		t.Errorf("%v %+v", err, d)
	}
	if rej := r.Foretell(ctx, alice); rej != nil {
		t.Errorf("a full bucket is taken for empty: %v", rej)
	}
	if last, ok := r.Last(ctx, alice); !ok || last.Remaining != 3 {
		t.Errorf("%v %+v, want 3 left", ok, last)
	}
	r.admit(of(alice, 3))
	store.err = down
	r.admit(of(alice, 3))
	store.err = nil
	r.Quota.store = &giveless{store}
	if _, err := r.Reset(ctx, alice); !errors.Is(err, errLost) || !strings.Contains(err.Error(), "once more") {
		t.Errorf("%v, want %v", err, errLost)
	}
}

// giveless is a store that loses what is given.
type giveless struct{ Store }

var errLost = errors.New("lost on the way")

func (g *giveless) Give(_ context.Context, _ string, _ []Limit, _ float64) error { return errLost }

// Who waits keeps its time, and gives nothing back that would be too much.
func TestResetWhileSomebodyWaits(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 2, MaxWait: 5 * time.Second}})
	r.admit(alice)
	woken := 0
	_, place, err := r.Arrive(alice, func(weir.Permit, error) { woken++ })
	if !errors.Is(err, weir.ErrWaiting) {
		t.Fatal(err)
	}
	if d, err := r.Reset(ctx, alice); err != nil || d.Remaining != -1 || r.left(alice) != 1 {
		t.Errorf("%v %+v, %v left, want 1", err, d, r.left(alice))
	}
	place.Cancel()
	if got := r.left(alice); got != 1 || woken != 0 {
		t.Errorf("%v left after one gave up, want 1", got)
	}
}
