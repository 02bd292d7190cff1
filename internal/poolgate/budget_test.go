package poolgate

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestBudget(t *testing.T) {
	said := func(d time.Duration) string { return d.String() }
	const none = time.Duration(0)
	age := time.Duration(math.MaxInt64)
	for _, tt := range []struct {
		name    string
		share   float64
		tell    func(time.Duration) string
		left    time.Duration // until the deadline; none: there is none
		told    bool
		bounded time.Duration // until that of the bounded context; none: it is the caller's own
		text    string
	}{
		{"half of it", 0.5, said, 10 * time.Second, false, 5 * time.Second, "5s"},
		{"all of it", 1, said, 10 * time.Second, false, 10 * time.Second, "10s"},
		{"never more than is left", 7, said, 10 * time.Second, true, 10 * time.Second, "10s"},
		{"all of an age", 1, said, age, false, age, age.String()},
		{"no deadline", 0.5, said, none, false, none, ""},
		{"no deadline any more", 0.5, said, none, true, none, "0s"},
		{"too late", 0.5, said, -time.Second, true, -time.Second, ""},
		{"nothing to say", 0.5, nil, 10 * time.Second, true, 5 * time.Second, ""},
		{"no budget", 0, said, 10 * time.Second, true, none, ""},
		{"no such share", math.NaN(), said, 10 * time.Second, true, none, ""},
		{"a share below none", -1, said, 10 * time.Second, true, none, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if tt.left != none {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, time.Now().Add(tt.left))
				defer cancel()
			}
			b := NewBudget(tt.share, tt.tell)
			if fault := b.Fault(); (fault == nil) != (tt.share >= 0 && tt.share <= 1) {
				t.Errorf("%s: %v", tt.name, fault)
			}
			if got := b.Text(ctx, tt.told); got != tt.text {
				t.Errorf("%s: it says %q, want %q", tt.name, got, tt.text)
			}
			bounded, free := b.Bound(ctx)
			if tt.bounded == none {
				if bounded != ctx || free != nil {
					t.Errorf("%s: the context is another one", tt.name)
				}
				return
			}
			defer free()
			deadline, _ := bounded.Deadline()
			if got := time.Until(deadline); got != tt.bounded {
				t.Errorf("%s: %v for the statement, want %v", tt.name, got, tt.bounded)
			}
			if over := bounded.Err() != nil; over != (tt.left < 0) {
				t.Errorf("%s: it begins with %v", tt.name, bounded.Err())
			}
		})
	}
}

type key struct{}

// The context of a statement ends with its budget or with its parent, and then so do contexts made of it. Once it
// is freed neither ends it.
func TestBound(t *testing.T) {
	for name, tt := range map[string]struct {
		leave time.Duration // when the caller leaves
		free  bool
		want  error
		after time.Duration
	}{
		"budget":                  {time.Hour, false, context.DeadlineExceeded, 5 * time.Second},
		"caller leaves":           {time.Second, false, context.Canceled, time.Second},
		"freed":                   {time.Hour, true, nil, 0},
		"freed, caller leaves":    {time.Second, true, nil, 0},
		"caller has left by then": {0, false, context.Canceled, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			parent, leave := context.WithTimeout(context.WithValue(t.Context(), key{}, name), 10*time.Second)
			defer leave()
			if tt.leave == 0 {
				leave()
			}
			began := time.Now()
			bounded, free := NewBudget(0.5, nil).Bound(parent)
			defer free()
			if bounded.Value(key{}) != name {
				t.Errorf("%s: it has lost its values", name)
			}
			child, cancel := context.WithCancel(bounded)
			defer cancel()
			if tt.free {
				free()
			}
			time.AfterFunc(tt.leave, leave)
			if tt.want == nil {
				time.Sleep(time.Minute)
			} else {
				<-child.Done()
			}
			if took := time.Since(began); tt.want != nil && took != tt.after {
				t.Errorf("%s: it ended after %v, want %v", name, took, tt.after)
			}
			if bounded.Err() != tt.want || child.Err() != tt.want {
				t.Errorf("%s: %v, one made of it %v; want %v", name, bounded.Err(), child.Err(), tt.want)
			}
		})
	}
}
