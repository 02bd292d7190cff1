package policy

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/signal"
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
	k := v.p.Gate("db").Pools()
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

// A limiter of a key with an override keeps the settings of the gate, but for its limit.
func TestOwnOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := dialled(0)
		l := LimitSpec{Exempt: 1, RefuseOversize: true, Signals: []string{"load"}, Queue: QueueSpec{Len: -1}}
		p := must(t, ownSpec(l, EachSpec{Overrides: map[string]OverrideSpec{"a": {Limit: 40}}}), Options{Signals: loadOf(load)})
		defer p.Close()
		g := p.Gate("db")
		if n := len(held(t, g, weir.Work{Tenant: "a", Exempt: true}, 9)); n != 1 {
			t.Errorf("%d exempt, want 1", n)
		}
		if _, err := g.TryAdmit(weir.Work{Tenant: "a", Cost: 41}); err == nil || weir.AsRejection(err).Reason != weir.ReasonTooLarge {
			t.Errorf("a cost above the limit: %v", err)
		}
		held(t, g, weir.Work{Tenant: "a"}, 10)
		load.value.Store(2500)
		time.Sleep(time.Second)
		if s, _ := g.Limiters().Limiter("a", ""); s.Limit != 4 || s.Signal != "load" {
			t.Errorf("ten in flight at a pressure of 2.5: limit %d, signal %q; want 4, load", s.Limit, s.Signal)
		}
	})
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
		if s, _ := g.Limiters().Limiter("a", ""); s.Controller != "belief" || int64(first) != s.Limit || g.Snapshot().Controller != "belief" {
			t.Errorf("%d admitted, %+v", first, s)
		}
		next := must(t, ownSpec(LimitSpec{Limit: 40}, EachSpec{MaxKeys: 9, Overrides: map[string]OverrideSpec{"b": {Limit: 2}}}), Options{Hooks: hooks, Previous: old})
		old.Replace(next)
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
		next.Replace(shared)
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
		if got := l.finish(4); strings.Count(got, "a") != 3 {
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
		l.finish(7)
	})
}

func TestOwnFaults(t *testing.T) {
	_, err := Compile(ownSpec(
		LimitSpec{Controller: "kneee", Queue: QueueSpec{Shares: map[string]float64{"high": 7}}},
		EachSpec{By: "tennant", MaxKeys: 1_000_000, Overrides: map[string]OverrideSpec{"a": {Scale: 2}, "b": {}}},
	), Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{
		`gates.db.each.by: "tennant" is not known; did you mean tenant?`,
		"gates.db.each.max_keys: 1000000 is out of range where each has a limiter of its own; write from 1 to 10000",
		"gates.db.each.overrides.a.scale: each key has its own limit",
		"gates.db.each.overrides.b: changes nothing",
		`gates.db.limit.controller: "kneee" is not known`,
		"gates.db.limit.queue.shares.high: is 7, too large; write at most 1, or 0.07 for 7 %",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func pairSpec(l LimitSpec, each *EachSpec) Spec {
	l.Controller, l.Probe.ReadWrite = "probe", true
	return Spec{
		Gates: map[string]GateSpec{"db": {Limit: &l, Each: each}},
		Routes: []RouteSpec{
			{Name: "all", Match: []string{"/"}, Gates: []string{"db"}},
			{Name: "reports", Match: []string{"/reports"}, Gates: []string{"db"}, Access: "read"},
			{Name: "touch", Match: []string{"/touch"}, Gates: []string{"db"}, Access: "write"},
		},
	}
}

// Who reads and who writes is known by the method, where the route does not say.
func TestAccess(t *testing.T) {
	p := compile(t, pairSpec(LimitSpec{}, nil), Options{})
	for _, tt := range []struct {
		method, path string
		write        bool
	}{
		{"GET", "/", false}, {"HEAD", "/", false}, {"OPTIONS", "/", false}, {"TRACE", "/", false}, {"", "/", false},
		{"POST", "/", true}, {"PUT", "/", true}, {"PATCH", "/", true}, {"DELETE", "/", true}, {"get", "/", true}, {"PURGE", "/", true},
		{"POST", "/reports", false}, {"GET", "/reports", false}, {"GET", "/touch", true}, {"POST", "/touch", true},
	} {
		if _, w := p.Match(request(tt.method, "example.com", tt.path)); w.Write != tt.write {
			t.Errorf("%s %s: writes %v", tt.method, tt.path, w.Write)
		}
	}
	if p.Route("reports").Work().Write || !p.Route("touch").Work().Write || p.Route("all").Work().Write {
		t.Error("work by the names of routes")
	}
}

// Reads and writes have a pool each, so that neither takes the other's slots, and
// grow and shrink together by what both get done.
func TestReadWritePools(t *testing.T) {
	v := &virtual{t: t}
	spec := pairSpec(LimitSpec{Limit: 20, Min: 4, Max: 100, Queue: QueueSpec{Len: -1}, Probe: ProbeSpec{ProbeConfig: control.ProbeConfig{ReadRatio: 0.75}}}, nil)
	v.p = compile(t, spec, Options{Now: func() time.Duration { return v.now }})
	g := v.p.Gate("db")
	if g.Parts() != nil || g.Pools() != nil {
		t.Error("pools before the first work, or by key")
	}
	reads, writes := held(t, g, weir.Work{}, 50), held(t, g, weir.Work{Write: true}, 50)
	if len(reads) != 15 || len(writes) != 5 {
		t.Errorf("%d reads and %d writes were admitted, want 15 and 5", len(reads), len(writes))
	}
	for _, permit := range append(reads, writes...) {
		permit.Done(weir.OK)
	}
	v.work(3000, 10, weir.Work{}, weir.Work{Write: true})
	r, w := g.Parts()["read"], g.Parts()["write"]
	if w.Limit < 8 || w.Limit > 30 || r.Limit < 2*w.Limit || r.Limit > 5*w.Limit {
		t.Errorf("%d slots for reads and %d for writes", r.Limit, w.Limit)
	}
	if s := g.Snapshot(); s.Limit != r.Limit+w.Limit || s.Controller != "probe" || g.Limiters() == nil || g.Limiter() != nil {
		t.Errorf("%+v", s)
	}
}

// Each key may have a pair, and a reload keeps what is in flight.
func TestReadWriteForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		each := &EachSpec{Own: true, MaxKeys: 9}
		old := must(t, pairSpec(LimitSpec{Limit: 20, Queue: QueueSpec{Len: -1}}, each), Options{})
		g := old.Gate("db")
		for _, tenant := range []string{"a", "b"} {
			for _, write := range []bool{false, true} {
				if n := len(held(t, g, weir.Work{Tenant: tenant, Write: write}, 50)); n != 10 {
					t.Errorf("%s has %d slots, want 10", tenant, n)
				}
			}
		}
		next := must(t, pairSpec(LimitSpec{Limit: 60, Min: 30, Queue: QueueSpec{Len: -1}}, each), Options{Previous: old})
		old.Replace(next)
		if next.Gate("db") != g {
			t.Fatal("the gate was not adopted")
		}
		if s := g.Snapshot(); s.InFlight != 40 || s.Limit < 120 {
			t.Errorf("after the reload %d in flight, limit %d", s.InFlight, s.Limit)
		}
		if one := must(t, pairSpec(LimitSpec{}, nil), Options{Previous: next}); one.Gate("db") == g {
			t.Error("a gate of another kind was adopted")
		} else {
			one.Close()
		}
		if g.Parts() != nil {
			t.Error("parts of no key")
		}
		next.Close()
	})
}

func TestReadWriteFaults(t *testing.T) {
	spec := pairSpec(LimitSpec{Limit: 5, Signals: []string{"memory"}, Probe: ProbeSpec{ProbeConfig: control.ProbeConfig{ReadRatio: 1}}}, &EachSpec{Overrides: map[string]OverrideSpec{"a": {Limit: 3}}})
	spec.Gates["other"] = GateSpec{Limit: &LimitSpec{Controller: "probe", Probe: ProbeSpec{ProbeConfig: control.ProbeConfig{ReadRatio: 0.5}}}}
	spec.Gates["belief"] = GateSpec{Limit: &LimitSpec{Probe: ProbeSpec{ReadWrite: true}}}
	spec.Gates["shed"] = GateSpec{Shed: &ShedSpec{WaitOf: "db"}}
	spec.Routes = append(spec.Routes, RouteSpec{Name: "x", Access: "wirte"})
	_, err := Compile(spec, Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{
		"gates.db.limit.signals: do not hold down pools that are sized together",
		"gates.db.limit.probe.read_write: sizes a pair for each key, not one size for all; write own: true beside by:",
		"gates.db.each.overrides: mean nothing to pools that are sized together",
		"gates.db.limit.probe.read_ratio: is 1, too large",
		"gates.db.limit.limit: 5 slots for two pools are not between twice min (4) and twice max (128)",
		"gates.other.limit.probe.read_ratio: means nothing without read_write",
		"gates.belief.limit.probe: means nothing to the controller belief",
		`gates.shed.shed.wait_of: "db" is not a gate with one limit`,
		`routes[3].access: "wirte" is not known; did you mean write?`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// Requests go to the pool of their kind, through the whole policy.
func TestReadWriteRequests(t *testing.T) {
	p := compile(t, pairSpec(LimitSpec{Limit: 8, Min: 4, Queue: QueueSpec{Len: -1}}, nil), Options{})
	for range 9 {
		rt, w := p.Match(request(http.MethodPost, "example.com", "/"))
		if _, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w); err != nil {
			break
		}
	}
	if _, w := p.Match(request(http.MethodPost, "example.com", "/")); true {
		if _, err := p.Gate("db").TryAdmit(w); err == nil {
			t.Error("more writes than there are slots")
		}
	}
	rt, w := p.Match(request(http.MethodGet, "example.com", "/"))
	if _, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w); err != nil {
		t.Errorf("a read does not get in beside the writes: %v", err)
	}
	rt, w = p.Match(request(http.MethodGet, "example.com", "/touch"))
	if _, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w); err == nil {
		t.Error("a route that writes had a read's slot")
	}
}

// What the file says of a limit holds of pools for reads and for writes as well: how
// many keys there may be, how many may wait, and what costs too much.
func TestReadWriteSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := LimitSpec{Limit: 8, Min: 4, RefuseOversize: true, Queue: QueueSpec{Len: 8, MaxWait: Duration(time.Hour), Order: "fifo"}}
		p := must(t, pairSpec(limit, &EachSpec{Own: true, MaxKeys: 1}), Options{})
		defer p.Close()
		g := p.Gate("db")
		work := weir.Work{Tenant: "a"}
		in := held(t, g, work, 50)
		if len(in) != 4 {
			t.Fatalf("%d reads were admitted, want 4", len(in))
		}
		for i := range 3 {
			_, waiter, err := g.Arrive(work, func(weir.Permit, error) {})
			if waits := err == weir.ErrWaiting; waits != (i < 2) {
				t.Errorf("number %d: %v; a quarter of 8 places is the key's", i, err)
			} else if waits {
				defer waiter.Cancel()
			}
		}
		for _, tt := range []struct {
			work   weir.Work
			reason weir.Reason
			rule   string
		}{
			{weir.Work{Tenant: "a", Write: true, Cost: 5}, weir.ReasonTooLarge, ""},
			{weir.Work{Tenant: "b"}, weir.ReasonLimit, "keys"},
		} {
			_, err := g.TryAdmit(tt.work)
			if r := weir.AsRejection(err); r == nil || r.Reason != tt.reason || tt.rule != "" && r.Rule != tt.rule {
				t.Errorf("%+v: %v, want %v %s", tt.work, err, tt.reason, tt.rule)
			}
		}
		for _, permit := range in {
			permit.Done(weir.OK)
		}
	})
}

// One busy key leaves the others alone, overrides hold, and a reload changes all of
// it while permits are out.
func TestLimitForEach(t *testing.T) {
	p := compile(t, databases(2, EachSpec{Overrides: map[string]OverrideSpec{"big": {Limit: 5}, "half": {Scale: 0.5}}}), Options{})
	g := p.Gate("db")
	if g.Limiter() != nil || g.Pools() == nil || g.Snapshot().Kind != "keyed" {
		t.Errorf("%T, %+v", g.Limiter(), g.Snapshot())
	}
	var out []weir.Permit
	for tenant, want := range map[string]int{"a": 2, "b": 2, "": 2, "big": 5, "half": 1} {
		got := held(t, g, weir.Work{Tenant: tenant}, 9)
		if len(got) != want {
			t.Errorf("%q holds %d, want %d", tenant, len(got), want)
		}
		out = append(out, got...)
	}
	next := compile(t, databases(3, EachSpec{Overrides: map[string]OverrideSpec{"b": {Limit: 4}}}), Options{Previous: p})
	p.Replace(next)
	if next.Gate("db") != g {
		t.Fatal("the gate was not adopted")
	}
	for tenant, want := range map[string]int{"a": 1, "b": 2, "big": 0, "half": 2} {
		if got := len(held(t, g, weir.Work{Tenant: tenant}, 9)); got != want {
			t.Errorf("after the reload %q gets %d more, want %d", tenant, got, want)
		}
	}
	for _, permit := range out {
		permit.Done(weir.OK)
	}
	if n := g.Snapshot().Rejected[weir.ReasonLimit]; n == 0 {
		t.Error("no refusal was counted")
	}
}

// Whose pool it is can be chosen, and is no setting that a live gate changes.
func TestLimitForEachBy(t *testing.T) {
	works := map[string][2]weir.Work{
		"tenant": {{Tenant: "a", User: "x"}, {Tenant: "b", User: "x"}},
		"user":   {{Tenant: "a", User: "x"}, {Tenant: "a", User: "y"}},
		"client": {{Client: "x"}, {Client: "y"}},
		"route":  {{Op: "x"}, {Op: "y"}},
	}
	var p *Policy
	for _, by := range []string{"tenant", "user", "client", "route"} {
		next := compile(t, databases(1, EachSpec{By: by}), Options{Previous: p})
		g := next.Gate("db")
		if p != nil && g == p.Gate("db") {
			t.Errorf("by %s: the gate of another key was adopted", by)
		}
		for _, w := range works[by] {
			if len(held(t, g, w, 2)) != 1 {
				t.Errorf("by %s: %+v does not have a pool of one", by, w)
			}
		}
		p = next
	}
	other := compile(t, Spec{Gates: map[string]GateSpec{"db": fixed(1)}}, Options{Previous: p})
	if other.Gate("db") == p.Gate("db") || other.Gate("db").Pools() != nil {
		t.Error("a gate of another mechanism was adopted")
	}
}

// lagging returns a gate with a pool for each tenant that follows a lag.
func lagging(controller string, each EachSpec) Spec {
	l := &LimitSpec{Controller: controller, Min: 1, Max: 100, Queue: QueueSpec{Len: -1}}
	switch controller {
	case "lag":
		l.Lag = LagSpec{LagMapConfig: control.LagMapConfig{Signal: "behind", Target: 10, Critical: 110}, Interval: Duration(time.Second)}
	case "drain":
		l.Drain = DrainSpec{DrainConfig: control.DrainConfig{Signal: "behind", Target: 10}, Interval: Duration(time.Second)}
	}
	return Spec{Gates: map[string]GateSpec{"db": {Limit: l, Each: &each}}}
}

// lagNow is a source on virtual time.
type lagNow float64

func (l *lagNow) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "behind", Value: float64(*l), Known: true})
}

// Who holds most is cut, and the others keep what one lag for all would take from them.
func TestShrinkLargestFirst(t *testing.T) {
	now, lag := time.Duration(0), lagNow(100)
	for shrink, want := range map[string]int64{"alike": 10, "": 10, "largest_first": 55} {
		now = 0
		spec := lagging("lag", EachSpec{Shrink: shrink, Overrides: map[string]OverrideSpec{"strict": {Target: 5, Critical: 20}}})
		p := compile(t, spec, Options{Now: func() time.Duration { return now }, Readings: &lag,
			Signals: map[string]signal.Signal{"behind": dialled(0)}})
		g := p.Gate("db")
		held(t, g, weir.Work{Tenant: "loud"}, 100)
		now = time.Second
		p.Step()
		quiet, _ := g.Pools().Key("quiet")
		strict, _ := g.Pools().Key("strict")
		if quiet.Limit != want || (strict.Limit != 1) != (shrink == "largest_first") {
			t.Errorf("shrink %q: %d, want %d; strict %d", shrink, quiet.Limit, want, strict.Limit)
		}
		if reason := g.Snapshot().LimitReason; strings.Contains(reason, "45 of it beyond the limit") != (shrink == "largest_first") {
			t.Errorf("shrink %q: %s", shrink, reason)
		}
		p.Close()
	}
}

func TestLagOfKeysFaults(t *testing.T) {
	behind := map[string]OverrideSpec{
		"a": {Target: 200}, "b": {Target: 5, Limit: 3}, "c": {Critical: 5}, "d": {Target: 20, Critical: 10}, "ok": {Target: 5, Scale: 2},
	}
	tests := []struct {
		spec Spec
		want []string
	}{
		{lagging("lag", EachSpec{Shrink: "largest", Overrides: behind}), []string{
			`gates.db.each.shrink: "largest" is not known`,
			"gates.db.each.overrides.a.target: the target of 200 is not below the critical lag of 110; write a target below critical",
			"gates.db.each.overrides.b: has both a limit and thresholds; leave limit out, or target and critical",
			"gates.db.each.overrides.c.critical: the target of 10 is not below the critical lag of 5",
			"gates.db.each.overrides.d.critical: the target of 20 is not below the critical lag of 10",
		}},
		{lagging("drain", EachSpec{Overrides: map[string]OverrideSpec{"a": {Critical: 9}}}), []string{
			"gates.db.each.overrides.a.critical: means nothing to the controller drain; leave it out",
		}},
		{databases(3, EachSpec{Shrink: "largest_first", Overrides: map[string]OverrideSpec{"a": {Target: 9}}}), []string{
			"gates.db.each.shrink: means nothing without one controller that goes by a lag; leave it out, or write controller: lag or drain",
			"gates.db.each.overrides.a: has thresholds, which mean nothing without one controller that goes by a lag",
		}},
		{lagging("lag", EachSpec{Own: true, Shrink: "largest_first"}), []string{"gates.db.each.shrink: means nothing"}},
	}
	for _, tt := range tests {
		_, err := Compile(tt.spec, Options{Signals: map[string]signal.Signal{"behind": dialled(0)}})
		got := strings.Join(faultsOf(t, err), "\n")
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in\n%s", want, got)
			}
		}
	}
}
