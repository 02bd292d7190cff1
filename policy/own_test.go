package policy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

func ownSpec(l LimitSpec, e EachSpec) Spec {
	e.Own = true
	return Spec{Gates: map[string]GateSpec{"db": {Limit: &l, Each: &e}}}
}

// Each key finds its own limit: what one backend carries says nothing of another.
func TestOwnControllers(t *testing.T) {
	v := onVirtualTime(t, GateSpec{
		Limit: &LimitSpec{Controller: "probe", Limit: 10, Min: 2, Max: 100, Queue: QueueSpec{Len: -1}},
		Each:  &EachSpec{Own: true, Overrides: map[string]OverrideSpec{"fixed": {Limit: 7}}},
	})
	carries := map[string]int{"small": 10, "large": 60, "fixed": 60}
	out := map[string][]weir.Permit{}
	for range 4000 {
		for tenant, most := range carries {
			for permit, err := v.try(weir.Work{Tenant: tenant}); err == nil; permit, err = v.try(weir.Work{Tenant: tenant}) {
				out[tenant] = append(out[tenant], permit)
			}
			done := min(most, len(out[tenant]))
			for _, permit := range out[tenant][:done] {
				permit.Done(weir.OK)
			}
			out[tenant] = out[tenant][done:]
		}
		v.pass(10 * time.Millisecond)
	}
	limits := map[string]int64{}
	for tenant := range carries {
		s, ok := v.p.Gate("db").Limiters().Limiter(tenant, "")
		if !ok {
			t.Fatalf("%s is not known", tenant)
		}
		limits[tenant] = s.Limit
	}
	if limits["small"] > 25 || limits["large"] < 45 || limits["fixed"] != 7 {
		t.Errorf("limits %v for what carries %v", limits, carries)
	}
	if u := v.p.Gate("db").Pools().Usage(1); u.Name != "db" || u.Kind != "keyed" || u.Keys != 3 || len(u.Top) != 1 {
		t.Errorf("%+v", u)
	}
}

// The default controller finds the limit of each key, and a reload changes the
// settings of all of them while permits are out.
func TestOwnReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		hooks := weir.Hooks{LimitChanged: func(string, int64, int64, string) { changes++ }}
		old := must(t, ownSpec(LimitSpec{}, EachSpec{}), Options{Hooks: hooks})
		g := old.Gate("db")
		work := weir.Work{Tenant: "a"}
		first := len(held(t, g, work, 100))
		if s, _ := g.Limiters().Limiter("a", ""); s.Controller != "knee" || int64(first) != s.Limit || g.Snapshot().Controller != "knee" {
			t.Errorf("%d admitted, %+v", first, s)
		}
		next := must(t, ownSpec(LimitSpec{Limit: 40}, EachSpec{MaxKeys: 9, Overrides: map[string]OverrideSpec{"b": {Limit: 2}}}), Options{Hooks: hooks, Previous: old})
		old.Retire(next)
		if next.Gate("db") != g {
			t.Fatal("the gate was not adopted")
		}
		if more := len(held(t, g, work, 100)); first+more != 40 {
			t.Errorf("%d and %d more were admitted, want 40", first, more)
		}
		if n := len(held(t, g, weir.Work{Tenant: "b"}, 100)); n != 2 {
			t.Errorf("%d of b, want 2", n)
		}
		if changes > 0 {
			t.Errorf("%d changes of limits were told, under the name of all keys", changes)
		}
		shared := must(t, databases(5, EachSpec{}), Options{Previous: next})
		if shared.Gate("db") == g || shared.Gate("db").Limiters() != nil {
			t.Error("a gate of another kind was adopted")
		}
		next.Retire(shared)
		shared.Close()
		time.Sleep(time.Minute)
	})
}

// A cost above what a key has at all is refused where the file says so, and runs
// alone where it does not.
func TestOversizeForEach(t *testing.T) {
	for _, each := range []EachSpec{{}, {Own: true}} {
		each.Overrides = map[string]OverrideSpec{"big": {Limit: 8}}
		for _, refuse := range []bool{false, true} {
			p := compile(t, Spec{Gates: map[string]GateSpec{"db": {Limit: &LimitSpec{Limit: 3, RefuseOversize: refuse, Queue: QueueSpec{Len: -1}}, Each: &each}}}, Options{})
			g := p.Gate("db")
			if _, err := g.TryAdmit(weir.Work{Tenant: "big", Cost: 8}); err != nil {
				t.Errorf("own %v: what fits is refused: %v", each.Own, err)
			}
			for _, w := range []weir.Work{{Tenant: "a", Cost: 4}, {Tenant: "big", Cost: 9}} {
				_, err := g.TryAdmit(w)
				if r := weir.AsRejection(err); refuse != (r != nil && r.Reason == weir.ReasonTooLarge) {
					t.Errorf("own %v, refuse_oversize %v, %s: %v", each.Own, refuse, w.Tenant, err)
				}
			}
		}
	}
}

// Those that wait share the places, of which one key takes a quarter; priorities and
// weights count within each key.
func TestOwnRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := must(t, ownSpec(LimitSpec{Limit: 1, RefuseOversize: true, Queue: QueueSpec{
			Len: 20, MaxWait: Duration(time.Hour), Order: "fifo",
			Shares: map[string]float64{"background": 0.25}, Weights: WeightsSpec{Users: map[string]float64{"a": 3}},
		}}, EachSpec{}), Options{})
		defer p.Close()
		g := p.Gate("db")
		l := &line{t: t, slot: admit(t, g)}
		l.wait(g, 4, "a", weir.Work{User: "a"})
		l.wait(g, 1, "b", weir.Work{User: "b"})
		if _, _, err := g.Arrive(weir.Work{User: "a"}, func(weir.Permit, error) {}); err == weir.ErrWaiting {
			t.Errorf("%v, want a refusal: the key has a quarter of the places", err)
		}
		if got := l.serve(4); strings.Count(got, "a") != 3 {
			t.Errorf("served %s, want three of a", got)
		}
		other := weir.Work{Tenant: "other"}
		if _, err := g.TryAdmit(other); err != nil {
			t.Fatal(err)
		}
		_, waiter, err := g.Arrive(other, func(weir.Permit, error) {})
		if err != weir.ErrWaiting || !waiter.Cancel() {
			t.Errorf("another key: %v", err)
		}
		_, err = g.TryAdmit(weir.Work{Tenant: "third", Cost: 2})
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonTooLarge {
			t.Errorf("a cost above the limit: %v", err)
		}
		l.serve(7)
	})
}

func TestOwnFaults(t *testing.T) {
	_, err := Compile(ownSpec(
		LimitSpec{Controller: "kneee", Queue: QueueSpec{Shares: map[string]float64{"high": 7}}},
		EachSpec{By: "tennant", MaxKeys: 1_000_000, Overrides: map[string]OverrideSpec{"a": {Scale: 2}, "b": {}}},
	), Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{
		`gates.db.each.by: "tennant" is no key; did you mean tenant?`,
		"gates.db.each.max_keys: 1000000 is out of range where each has a limiter of its own; write from 1 to 10000",
		"gates.db.each.overrides.a.scale: there is no limit of the others",
		"gates.db.each.overrides.b: changes nothing",
		`gates.db.limit.controller: "kneee" is no controller`,
		"gates.db.limit.queue.shares.high: 7 is no share; write 0.07",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
