package policy

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// databases is a gate with a limit for each tenant.
func databases(limit int64, each EachSpec) Spec {
	return Spec{Gates: map[string]GateSpec{"db": {Limit: &LimitSpec{Limit: limit, Queue: QueueSpec{Len: -1}}, Each: &each}}}
}

func held(t *testing.T, g weir.TryAdmitter, w weir.Work, n int) (permits []weir.Permit) {
	t.Helper()
	for range n {
		if p, err := g.TryAdmit(w); err == nil {
			permits = append(permits, p)
		}
	}
	return permits
}

// One busy key leaves the others alone, overrides hold, and a reload changes all of
// it while permits are out.
func TestLimitForEach(t *testing.T) {
	p := compile(t, databases(2, EachSpec{Overrides: map[string]OverrideSpec{"big": {Limit: 5}, "half": {Scale: 0.5}}}), Options{})
	g := p.Gate("db")
	if g.Limiter() != nil || g.Keyed() == nil || g.Snapshot().Kind != "keyed" {
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
	p.Retire(next)
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
	for _, by := range keyWords {
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
	if other.Gate("db") == p.Gate("db") || other.Gate("db").Keyed() != nil {
		t.Error("a gate of another mechanism was adopted")
	}
}

// A gate that sheds goes by the load of another, also after a reload, and refuses
// the lowest first.
func TestShedByLoad(t *testing.T) {
	var now time.Duration
	spec := Spec{
		Gates:  map[string]GateSpec{"front": {Shed: &ShedSpec{LoadOf: "db"}}, "db": fixed(100)},
		Routes: []RouteSpec{{Name: "r", Gates: []string{"front", "db"}}},
	}
	p := compile(t, spec, Options{Now: func() time.Duration { return now }})
	gate := p.Route("r").Gate().(weir.TryAdmitter)
	classes := []weir.Priority{weir.Background, weir.Normal, weir.High, weir.Critical}
	passes := func() string {
		var b strings.Builder
		now += time.Second
		p.Step()
		for _, class := range classes {
			if permit, err := gate.TryAdmit(weir.Work{Priority: class, User: "u"}); err == nil {
				b.WriteString(class.String() + " ")
				permit.Cancel()
			} else if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonShed || r.Gate != "front" {
				t.Errorf("%v: %v", class, err)
			}
		}
		return b.String()
	}
	for _, tt := range []struct {
		hold int
		want string
	}{
		{0, "background normal high critical "}, {74, "background normal high critical "}, {1, "normal high critical "},
		{15, "high critical "}, {5, "critical "}, {5, ""},
	} {
		held(t, p.Gate("db"), weir.Work{}, tt.hold)
		if got := passes(); got != tt.want {
			t.Errorf("with %d in flight: %q, want %q", p.Gate("db").Snapshot().InFlight, got, tt.want)
		}
	}
	if s := p.Gate("front").Snapshot(); s.Kind != "shed" || s.Rejected[weir.ReasonShed] == 0 || s.Name != "front" {
		t.Errorf("%+v", s)
	}
}

// A gate that sheds by the wait at another looks at what a newcomer is expected to
// wait there.
func TestShedByWait(t *testing.T) {
	var now time.Duration
	p := compile(t, Spec{Gates: map[string]GateSpec{
		"front": {Shed: &ShedSpec{WaitOf: "db", Wait: Duration(50 * time.Millisecond)}},
		"other": {Shed: &ShedSpec{WaitOf: "db", Wait: Duration(time.Hour)}},
		"db":    {Limit: &LimitSpec{Limit: 1, Queue: QueueSpec{Order: "fifo", MaxWait: NoDuration}}},
	}}, Options{Now: func() time.Duration { return now }})
	db := p.Gate("db")
	var next weir.Permit // that which is served last so far
	wake := func(granted weir.Permit, err error) {
		if err == nil {
			next = granted
		}
	}
	next = admit(t, db)
	for range 200 { // the slot comes back every 10 ms, and 100 wait for it
		for range 100 - db.Snapshot().Waiting {
			if _, _, err := db.Arrive(weir.Work{}, wake); err != weir.ErrWaiting {
				t.Fatal(err)
			}
		}
		now += 10 * time.Millisecond
		p.Step()
		next.Done(weir.OK)
	}
	if s := db.Snapshot(); s.Wait < 500*time.Millisecond {
		t.Fatalf("a newcomer waits %v", s.Wait)
	}
	if _, err := p.Gate("front").TryAdmit(weir.Work{Priority: weir.Critical}); err == nil {
		t.Error("the wait is not heeded")
	}
	if _, err := p.Gate("other").TryAdmit(weir.Work{}); err != nil {
		t.Errorf("a wait that is wanted: %v", err)
	}
}

// A reload changes thresholds while the gate lives, and what its load is of.
func TestShedReload(t *testing.T) {
	spec := func(of string, high float64) Spec {
		return Spec{Gates: map[string]GateSpec{
			"front": {Shed: &ShedSpec{LoadOf: of, Interval: Duration(time.Millisecond), Thresholds: ThresholdsSpec{High: high, Critical: 10}}},
			"a":     fixed(10), "b": fixed(10),
		}}
	}
	synctest.Test(t, func(t *testing.T) {
		p := compile(t, spec("a", 1), Options{})
		held(t, p.Gate("b"), weir.Work{}, 10)
		next := compile(t, spec("b", 0.95), Options{Previous: p})
		p.Retire(next)
		if next.Gate("front") != p.Gate("front") {
			t.Fatal("the gate was not adopted")
		}
		time.Sleep(time.Second)
		_, err := next.Gate("front").TryAdmit(weir.Work{Priority: weir.High})
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonShed {
			t.Errorf("%v, want a refusal by the load of b", err)
		}
	})
}

func TestMechanismFaults(t *testing.T) {
	gates := func(g GateSpec) Spec {
		return Spec{Gates: map[string]GateSpec{"g": g, "db": fixed(5), "tenants": {Limit: &LimitSpec{Limit: 1}, Each: &EachSpec{}}}}
	}
	for _, tt := range []struct {
		name string
		gate GateSpec
		want []string
	}{
		{"each without a limit", GateSpec{Each: &EachSpec{}}, []string{"gates.g.each: there is no limit for each key; write limit: {limit: 20} beside it"}},
		{"each with the default", GateSpec{Limit: &LimitSpec{}, Each: &EachSpec{}},
			[]string{"gates.g.limit.controller: the controller knee learns from latencies, and one key shows too few; write limit: with the slots"}},
		{"each, all at once", GateSpec{
			Limit: &LimitSpec{Limit: 5, Queue: QueueSpec{Shares: map[string]float64{"high": 10}, Weights: WeightsSpec{Users: map[string]float64{"a": 1}}}},
			Each: &EachSpec{By: "user", MaxKeys: -1, Overrides: map[string]OverrideSpec{
				"a": {}, "b": {Limit: 1, Scale: 1}, "c": {Limit: -1}, "d": {Scale: -1}, "e": {Scale: math.NaN()}, "f": {Scale: 2}}}},
			[]string{"gates.g.each.max_keys: -1 is out of range", "gates.g.limit.queue.shares.high: 10 is no share; write 0.1",
				"gates.g.limit.queue.weights.users: mean nothing where each user has a pool of its own; write each: overrides:",
				"gates.g.each.overrides.a: changes nothing; write limit: 50, or scale: 2", "gates.g.each.overrides.b: has both",
				"gates.g.each.overrides.c.limit: -1 is out of range", "gates.g.each.overrides.d.scale: -1 is out of range",
				"gates.g.each.overrides.e.scale: NaN is out of range"}},
		{"each with idle weights", GateSpec{Limit: &LimitSpec{Limit: 5, Queue: QueueSpec{Weights: WeightsSpec{Tenants: map[string]float64{"a": 1}}}}, Each: &EachSpec{}},
			[]string{"gates.g.limit.queue.weights.tenants: mean nothing where each tenant"}},
		{"each by what is no key", GateSpec{Limit: &LimitSpec{Limit: 5}, Each: &EachSpec{By: "tennant"}},
			[]string{`gates.g.each.by: "tennant" is no key; did you mean tenant?`}},
		{"shed by nothing", GateSpec{Shed: &ShedSpec{}}, []string{"gates.g.shed: there is no pressure to go by; write signals:"}},
		{"shed and limit", GateSpec{Limit: &LimitSpec{Limit: 1}, Shed: &ShedSpec{LoadOf: "db"}}, []string{"gates.g.shed: the gate has a limit too; write two gates"}},
		{"shed, all at once", GateSpec{Shed: &ShedSpec{LoadOf: "tenants", Signals: []string{"cpu", "cpu", "cpuu"}, Blind: "keeep", Wait: 1,
			Interval: Duration(time.Nanosecond), Resalt: Duration(time.Second),
			Thresholds: ThresholdsSpec{Background: 0.9, Normal: 0.5, High: -1}}},
			[]string{"gates.g.shed: there are several pressures to go by; write one of", "gates.g.shed.wait: means nothing without wait_of", `gates.g.shed.signals[1]: "cpu" is in the list already`,
				`gates.g.shed.signals[2]: there is no signal "cpuu"; did you mean cpu?`, `gates.g.shed.load_of: "tenants" is no gate with one limit`,
				`gates.g.shed.blind: "keeep" is no word for blind; did you mean keep?`, "gates.g.shed.interval: 1ns will not do; must be from 1ms",
				"gates.g.shed.resalt: 1s will not do", "gates.g.shed.thresholds.normal: 0.5 will not do; must not be below", "gates.g.shed.thresholds.high: -1 will not do"}},
		{"cursor", GateSpec{Shed: &ShedSpec{LoadOf: "db", Thresholds: ThresholdsSpec{High: 1}, Cursor: &CursorSpec{Alpha: 2, Window: 1}}},
			[]string{"gates.g.shed.thresholds: mean nothing beside a cursor", "gates.g.shed.cursor.alpha: 2 will not do", "gates.g.shed.cursor.window: 1ns will not do"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Compile(gates(tt.gate), Options{})
			got := faultsOf(t, err)
			for _, want := range tt.want {
				found := false
				for _, g := range got {
					found = found || strings.HasPrefix(g, want)
				}
				if !found {
					t.Errorf("no %s in\n%s", want, strings.Join(got, "\n"))
				}
			}
			if len(got) < len(tt.want) {
				t.Errorf("%d faults, want %d", len(got), len(tt.want))
			}
		})
	}
}
