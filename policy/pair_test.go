package policy

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

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
	spec := pairSpec(LimitSpec{Limit: 20, Min: 4, Max: 100, Queue: QueueSpec{Len: -1}, Probe: ProbeSpec{ReadRatio: 0.75}}, nil)
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
		old.Retire(next)
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
	spec := pairSpec(LimitSpec{Limit: 5, Signals: []string{"memory"}, Probe: ProbeSpec{ReadRatio: 1}}, &EachSpec{Overrides: map[string]OverrideSpec{"a": {Limit: 3}}})
	spec.Gates["other"] = GateSpec{Limit: &LimitSpec{Controller: "probe", Probe: ProbeSpec{ReadRatio: 0.5}}}
	spec.Gates["knee"] = GateSpec{Limit: &LimitSpec{Probe: ProbeSpec{ReadWrite: true}}}
	spec.Gates["shed"] = GateSpec{Shed: &ShedSpec{WaitOf: "db"}}
	spec.Routes = append(spec.Routes, RouteSpec{Name: "x", Access: "wirte"})
	_, err := Compile(spec, Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{
		"gates.db.limit.signals: do not hold down pools that are sized together",
		"gates.db.limit.probe.read_write: sizes a pair for each key, not one size for all; write own: true beside by:",
		"gates.db.each.overrides: mean nothing to pools that are sized together",
		"gates.db.limit.probe.read_ratio: 1 is not a share between 0 and 1",
		"gates.db.limit.limit: 5 slots for two pools are not between twice min (4) and twice max (128)",
		"gates.other.limit.probe.read_ratio: means nothing without read_write",
		"gates.knee.limit.probe: means nothing to the controller knee",
		`gates.shed.shed.wait_of: "db" is no gate with one limit`,
		`routes[3].access: "wirte" is no access; did you mean write?`,
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
