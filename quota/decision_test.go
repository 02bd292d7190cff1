package quota

import (
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func TestPermissiveTellsTheWait(t *testing.T) {
	r := newRig(t, Config{Debt: true, Mode: Permissive, Rules: everyUser(Samples(10, 10, time.Second))})
	for i, want := range []time.Duration{0, 8 * time.Second, 17 * time.Second} {
		d, err := r.Charge(ctx, of(alice, 90))
		if err != nil || !d.OK || d.Wait != want || d.Rule != "user=*" || len(d.Limits) != 1 {
			t.Errorf("%d: %+v, %v, want a wait of %v", i, d, err, want)
		}
	}
	r.admit(of(alice, 10))
	if d, err := r.Peek(ctx, alice); err == nil || d.OK || d.Wait != 18*time.Second {
		t.Errorf("%+v, %v", d, err)
	}
	if s := r.Snapshot(); s.Admitted != 4 || len(s.Rejected) != 0 {
		t.Errorf("%+v", s)
	}
}

// Clients of both kinds charge one bucket: who is refused adds nothing to what the
// others have to wait for. Whatever the gate's own mode is.
func TestChargeInAModeOfItsOwn(t *testing.T) {
	for _, own := range []Mode{Strict, Permissive} {
		r := newRig(t, Config{Debt: true, Mode: own, Rules: everyUser(Samples(10, 10, time.Second))})
		for i, step := range []struct {
			mode Mode
			ok   bool
			wait time.Duration
		}{
			{Strict, true, 0},
			{Strict, true, 0}, // leaves a debt of 80
			{Strict, false, 8 * time.Second},
			{Permissive, true, 17 * time.Second},
			{Strict, false, 17 * time.Second},
			{Reserve, false, 17 * time.Second},
		} {
			d, err := r.ChargeIn(ctx, step.mode, of(alice, 90))
			if d.OK != step.ok || d.Wait != step.wait || (err == nil) != step.ok {
				t.Errorf("%v, %d: %+v, %v, want %+v", own, i, d, err, step)
			}
			if rej := weir.AsRejection(err); rej != nil && rej.RetryAfter != step.wait {
				t.Errorf("%v, %d: %v, want %v", own, i, rej, step.wait)
			}
		}
		if s := r.Snapshot(); s.Admitted != 3 || s.Rejected[weir.ReasonQuota] != 3 {
			t.Errorf("%v: %+v", own, s)
		}
	}
}

// Peek takes nothing and counts nothing.
func TestPeek(t *testing.T) {
	heard := 0
	r := newRig(t, Config{Rules: append(everyUser(Per(5, time.Hour)), Rule{User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true}),
		Hooks: weir.Hooks{Admitted: func(string, weir.Work, time.Duration) { heard++ }, Rejected: func(weir.Work, *weir.Rejection) { heard++ }}})
	for range 3 {
		if d, err := r.Peek(ctx, of(alice, 5)); err != nil || !d.OK || d.Remaining != 5 || d.Free || d.Cost != 5 || d.Key != "q/user=alice" || len(r.Limits(d.Rule)) != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := r.Peek(ctx, of(alice, 6)); r.rejection(err).Reason != weir.ReasonTooLarge || d.Wait != Never {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := r.Peek(ctx, weir.Work{User: "root"}); err != nil || !d.Free || !d.OK {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := r.Peek(ctx, weir.Work{User: "eve"}); r.rejection(err).Reason != weir.ReasonBlocked || d.OK || d.Rule != "user=eve" {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if r.Limits("user=root") != nil || r.Limits("nobody") != nil {
		t.Error("an exempt rule has limits")
	}
	if s := r.Snapshot(); s.Admitted+s.ExemptAdmitted != 0 || len(s.Rejected) != 0 || heard != 0 || r.memory.Stats().Keys != 0 {
		t.Errorf("%+v, heard %d, %+v", s, heard, r.memory.Stats())
	}
	if d, err := r.Charge(ctx, of(alice, 5)); err != nil || d.Remaining != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := r.Charge(ctx, alice); r.rejection(err).Reason != weir.ReasonQuota || heard != 2 {
		t.Errorf("%v, heard %d", err, heard)
	}
}
