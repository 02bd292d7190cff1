package policy

import (
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// virtual is a policy with one gate, db, on a clock of the test's own.
type virtual struct {
	t   *testing.T
	p   *Policy
	now time.Duration
}

func onVirtualTime(t *testing.T, g GateSpec, routes ...RouteSpec) *virtual {
	t.Helper()
	v := &virtual{t: t}
	v.p = compile(t, Spec{Gates: map[string]GateSpec{"db": g}, Routes: routes}, Options{Now: func() time.Duration { return v.now }})
	return v
}

// pass lets time pass and the gates do what is due meanwhile.
func (v *virtual) pass(d time.Duration) {
	for end := v.now + d; ; v.p.Step() {
		next, ok := v.p.Next()
		if !ok || next > end {
			v.now = end
			return
		}
		v.now = max(v.now, next)
	}
}

func (v *virtual) try(w weir.Work) (weir.Permit, error) { return v.p.Gate("db").TryAdmit(w) }

// work keeps each pool as full as it gets for some turns of 10 ms, in each of which
// as much is done as the backend carries for each.
func (v *virtual) work(turns, carries int, works ...weir.Work) {
	v.t.Helper()
	out := make([][]weir.Permit, len(works))
	for range turns {
		for i, w := range works {
			for permit, err := v.try(w); err == nil; permit, err = v.try(w) {
				out[i] = append(out[i], permit)
			}
		}
		v.pass(10 * time.Millisecond)
		for i := range works {
			done := min(carries, len(out[i]))
			for _, permit := range out[i][:done] {
				permit.Done(weir.OK)
			}
			out[i] = out[i][done:]
		}
	}
	for _, permits := range out {
		for _, permit := range permits {
			permit.Done(weir.OK)
		}
	}
}

// Probing sizes the pools of all keys alike, by what they get done together: up
// while that brings more, and not much beyond.
func TestProbeForEach(t *testing.T) {
	v := onVirtualTime(t, GateSpec{
		Limit: &LimitSpec{Controller: "probe", Limit: 10, Min: 4, Max: 100, Queue: QueueSpec{Len: -1}},
		Each:  &EachSpec{Overrides: map[string]OverrideSpec{"fixed": {Limit: 7}, "half": {Scale: 0.5}}},
	})
	tenants := []weir.Work{{Tenant: "a"}, {Tenant: "b"}, {Tenant: "half"}, {Tenant: "fixed"}}
	v.work(3000, 30, tenants...)
	k := v.p.Gate("db").Keyed()
	size := map[string]int64{}
	for _, w := range tenants {
		use, ok := k.Key(w.Tenant)
		if !ok {
			t.Fatalf("%s is not known", w.Tenant)
		}
		size[w.Tenant] = use.Limit
	}
	if size["a"] < 50 || size["a"] > 80 { // at 60 the pool with half of it does 30 too
		t.Errorf("pools that do 30 at a time have %d slots", size["a"])
	}
	if size["b"] != size["a"] || size["half"] != size["a"]/2 || size["fixed"] != 7 {
		t.Errorf("sizes %v", size)
	}
	if s := v.p.Gate("db").Snapshot(); s.Controller != "probe" || s.Faults != 0 {
		t.Errorf("%+v", s)
	}
}
