//go:build integration

package weirredis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// Only plain strict decisions go by what is leased: a dry run would spend it, and a
// debt or a reservation be made by half a bucket.
func TestLeaseOnlyStrict(t *testing.T) {
	l := quota.Limit{Rate: 1e-9, Burst: 100}
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	w.take(t, 0, 1, l)
	leases := w.stores[0].leases
	for _, k := range []quota.Take{{Mode: quota.DryRun}, {Mode: quota.Permissive}, {Mode: quota.Reserve}, {Debt: true}} {
		k.Key, k.Limits, k.Cost = "k", []quota.Limit{l}, 1
		if _, err := w.stores[0].Take(context.Background(), &k); err != nil {
			t.Fatal(err)
		}
		if n := leases.tokens("k"); n != 20 {
			t.Errorf("after %v, debt %v: %d tokens are leased, want 20 as before", k.Mode, k.Debt, n)
		}
	}
}

// A lease that could not be had is asked for again.
func TestLeaseAfterAnError(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	h := &held{fetching: true}
	if back := w.stores[0].leases.learn(h, 1, 20, quota.Result{}, reply{}, errors.New("no answer")); back != 0 || h.fetching {
		t.Errorf("%d go back, %+v; want nothing, and that somebody may ask again", back, h)
	}
}

// What is leased by a limit that has changed is in the bucket again, before anything
// is decided by the new one.
func TestLeaseOfAChangedLimit(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	w.take(t, 0, 1, quota.Limit{Rate: 1e-9, Burst: 100})
	l := quota.Limit{Rate: 1e-9, Burst: 99}
	if r := w.take(t, 0, 50, l); !r.OK {
		t.Fatalf("%+v", r)
	}
	if left := w.left(t, l); left < 48.5 || left > 49.5 {
		t.Errorf("the server has %v, want 49: 100 less 1 and 50", left)
	}
}

// A refusal is not repeated from memory for longer than For, however long its wait:
// somebody may have given tokens back.
func TestLeaseForgetsARefusal(t *testing.T) {
	l := quota.Limit{Rate: 1e-9, Burst: 10}
	w := newSharers(t, 2, Lease{Tokens: 5, For: time.Minute})
	w.take(t, 0, 10, l)
	if r := w.take(t, 0, 1, l); r.OK {
		t.Fatalf("%+v", r)
	}
	if err := w.stores[1].Give(context.Background(), "k", []quota.Limit{l}, 4); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute - time.Millisecond)
	if r := w.take(t, 0, 1, l); r.OK {
		t.Errorf("within For: %+v, want the refusal that is remembered", r)
	}
	w.pass(time.Millisecond)
	if r := w.take(t, 0, 1, l); !r.OK {
		t.Errorf("after For: %+v, want one of those given back", r)
	}
}
