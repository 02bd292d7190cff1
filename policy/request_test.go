package policy

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// A trusted peer says what its request costs; nobody else does, and nothing else is
// a cost.
func TestCostFrom(t *testing.T) {
	p := compile(t, Spec{Routes: []RouteSpec{
		{Match: []string{"/"}, Cost: 3, CostFrom: "header:x-cost"}, {Match: []string{"/plain"}, Cost: 2},
	}}, Options{})
	long := strings.Repeat("9", 40)
	for _, tt := range []struct {
		remote string
		values []string
		want   int64
		bad    uint64
	}{
		{"127.0.0.1:1", nil, 3, 0}, {"127.0.0.1:1", []string{"7"}, 7, 0}, {"127.0.0.1:1", []string{" 7 "}, 7, 0},
		{"127.0.0.1:1", []string{"7", "7"}, 7, 0}, {"127.0.0.1:1", []string{"7", "8"}, 8, 0},
		{"127.0.0.1:1", []string{"8", "7"}, 8, 0}, {"127.0.0.1:1", []string{"x", "8"}, 8, 1}, {"127.0.0.1:1", []string{"8, -1,,7 "}, 8, 1},
		{"127.0.0.1:1", []string{"0", "8"}, 8, 1}, {"127.0.0.1:1", []string{"0", ""}, 3, 1}, {"127.0.0.1:1", []string{" , "}, 3, 0},
		{"192.0.2.1:1", []string{"7"}, 3, 0}, {"192.0.2.1:1", []string{"x"}, 3, 0},
		{"127.0.0.1:1", []string{"1000001"}, 1_000_001, 0}, {"127.0.0.1:1", []string{long}, largestCost, 0},
		{"127.0.0.1:1", []string{"9223372036854775807"}, largestCost, 0}, {"127.0.0.1:1", []string{"1000000000000"}, 1e12, 0},
		{"127.0.0.1:1", []string{"0"}, 3, 1}, {"127.0.0.1:1", []string{"-1"}, 3, 1}, {"127.0.0.1:1", []string{"+7"}, 3, 1},
		{"127.0.0.1:1", []string{""}, 3, 0}, {"127.0.0.1:1", []string{"1.5"}, 3, 1}, {"127.0.0.1:1", []string{"1e3"}, 3, 1},
		{"127.0.0.1:1", []string{"0x10"}, 3, 1}, {"127.0.0.1:1", []string{"NaN"}, 3, 1}, {"127.0.0.1:1", []string{long + long}, 3, 1},
	} {
		before := p.Ignored().Costs
		r := from(tt.remote)
		for _, v := range tt.values {
			r.Header.Add("X-Cost", v)
		}
		if _, w := p.Match(r); w.Cost != tt.want || p.Ignored().Costs-before != tt.bad {
			t.Errorf("%s, %q: cost %d, %d ignored; want %d, %d", tt.remote, tt.values, w.Cost, p.Ignored().Costs-before, tt.want, tt.bad)
		}
	}
	r := get("/plain")
	r.Header.Set("X-Cost", "7")
	if _, w := p.Match(r); w.Cost != 2 {
		t.Errorf("a route that reads no cost: %d", w.Cost)
	}
	if got := p.IdentityHeaders(); !slices.Equal(got, []string{"X-Cost"}) {
		t.Errorf("headers that strangers may not bring: %q", got)
	}
}

// Where a quota is charged what requests say, one that says nothing that can be read is
// refused, never let through for less than it costs. Its peers are no cheaper: a line
// that a client adds to a proxy's makes it dearer.
func TestCostThatCannotBeRead(t *testing.T) {
	billed := QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/s", Burst: 1e12}}
	counting, permissive := billed, billed
	counting.Count, permissive.Permissive = "requests", true
	bad := []string{"1e+21, 4", "4,x", "NaN", "Inf", "1e300", "-1", "0", "0x10", "1.5", "ten", "\u0661", strings.Repeat("9", 65)}
	for name, c := range map[string]struct {
		gate GateSpec
		want int64
	}{
		"quota":          {GateSpec{Quota: &billed}, noCost},
		"observed quota": {GateSpec{Quota: &billed, Mode: Observe}, 3},
		"permissive":     {GateSpec{Quota: &permissive}, 3},
		"requests":       {GateSpec{Quota: &counting}, 3},
		"limit":          {GateSpec{Limit: &LimitSpec{Limit: 10}}, 3},
	} {
		p := compile(t, Spec{Gates: map[string]GateSpec{"g": c.gate}, Routes: []RouteSpec{
			{Match: []string{"/"}, Gates: []string{"g"}, Cost: 3, CostFrom: "header:X-Cost"},
		}}, Options{})
		for _, text := range bad {
			before := p.Ignored().Costs
			rt, w := p.Match(from("127.0.0.1:1", "X-Cost: "+text))
			want := c.want
			if want > 0 && strings.Contains(text, "4") { // what can be read beside it
				want = 4
			}
			if w.Cost != want || p.Ignored().Costs != before+1 {
				t.Errorf("%s, %.20q: cost %d, %d ignored; want %d, 1", name, text, w.Cost, p.Ignored().Costs-before, want)
			}
			permit, err := rt.Gate().Admit(t.Context(), w)
			permit.Done(weir.OK)
			if r := weir.AsRejection(err); (c.want == noCost) != (r != nil && r.Reason == weir.ReasonTooLarge && r.Value == noCost) {
				t.Errorf("%s, %.20q: %v", name, text, err)
			}
		}
		for _, text := range []string{"", " "} { // says nothing
			if _, w := p.Match(from("127.0.0.1:1", "X-Cost: "+text)); w.Cost != 3 {
				t.Errorf("%s, %q: cost %d, want the route's", name, text, w.Cost)
			}
		}
		if _, w := p.Match(from("192.0.2.1:1", "X-Cost: NaN")); w.Cost != 3 {
			t.Errorf("%s: a stranger's cost is %d, want the route's", name, w.Cost)
		}
	}
}

// A quota is charged all of what work costs; to a limit after it the same is slots, of
// which there are never so many.
func TestCostBeyondSlots(t *testing.T) {
	spec := Spec{Gates: map[string]GateSpec{
		"budget": {Quota: &QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Limits: []string{"1e12 a day"}}}},
		"slots":  {Limit: &LimitSpec{Limit: 10}},
	}, Routes: []RouteSpec{{Name: "r", Match: []string{"/"}, Gates: []string{"budget", "slots"}, CostFrom: "header:X-Cost", Settle: "header:X-Actual-Cost"}}}
	p := compile(t, spec, Options{})
	rt, w := p.Match(from("127.0.0.1:1", "X-Cost: 600000000000"))
	permit, err := rt.Gate().Admit(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	slots := rt.Gates()[1]
	if n := slots.Snapshot().InFlight; n != 10 {
		t.Errorf("%d slots, want all 10", n)
	}
	left := func() float64 {
		d, _ := rt.Gates()[0].Quota().Peek(t.Context(), weir.Work{})
		return d.Remaining
	}
	if left() != 4e11 {
		t.Errorf("%v tokens left, want 4e11", left())
	}
	units, _, _ := rt.Settle(http.Header{"X-Actual-Cost": {"900000000000"}})
	if permit.SetCost("", units); left() != 1e11 {
		t.Errorf("%v tokens left after all, want 1e11", left())
	}
	permit.Done(weir.OK)
	if n := slots.Snapshot().InFlight; n != 0 {
		t.Errorf("%d slots in the end", n)
	}
	spec.Gates["slots"] = GateSpec{Limit: &LimitSpec{Limit: 10, RefuseOversize: true}}
	p = compile(t, spec, Options{})
	rt, w = p.Match(from("127.0.0.1:1", "X-Cost: 600000000000"))
	_, err = rt.Gate().Admit(t.Context(), w)
	if r := weir.AsRejection(err); r == nil || r.Gate != "slots" || r.Value != limit.MaxLimit {
		t.Errorf("%v, want a refusal of %d slots", err, limit.MaxLimit)
	}
}

// A limit that counts requests takes one slot of each, beside a quota of tokens on the
// same route, and what they have cost in the end changes nothing of it; gates that count
// cost are told, whatever their kind.
func TestLimitOfRequests(t *testing.T) {
	spec := Spec{Identity: IdentitySpec{Tenant: "const:t"}, Gates: map[string]GateSpec{
		"budget": {Quota: &QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Limits: []string{"1000 a day"}}}},
		"calls":  {Quota: &QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Limits: []string{"50 a day"}}, Count: "requests"}},
		"each":   {Limit: &LimitSpec{Limit: 400, Count: "requests"}, Each: &EachSpec{}},
		"rows":   {Limit: &LimitSpec{Limit: 400}, Each: &EachSpec{}},
		"slots":  {Limit: &LimitSpec{Limit: 2, Count: "requests"}},
	}, Routes: []RouteSpec{{Name: "r", Match: []string{"/"}, Gates: []string{"budget", "calls", "each", "rows", "slots"}, Cost: 300}}}
	p := compile(t, spec, Options{})
	holds := func(when string, want map[string]float64) {
		t.Helper()
		for name, n := range want {
			g := p.Gate(name)
			got := float64(g.Snapshot().InFlight)
			if q := g.Quota(); q != nil {
				d, _ := q.Peek(t.Context(), weir.Work{})
				got = d.Remaining
			}
			if got != n {
				t.Errorf("%s: %s has %v, want %v", when, name, got, n)
			}
		}
	}
	rt, w := p.Match(from("127.0.0.1:1"))
	permit, err := rt.Gate().Admit(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	holds("admitted", map[string]float64{"budget": 700, "calls": 49, "each": 1, "rows": 300, "slots": 1})
	p.SetCost(permit.SetCost, 100)
	holds("settled", map[string]float64{"budget": 900, "calls": 49, "each": 1, "rows": 100, "slots": 1})
	permit.Done(weir.OK)

	spec.Gates["slots"], spec.Gates["each"] = GateSpec{Limit: &LimitSpec{Limit: 300}}, GateSpec{Limit: &LimitSpec{Limit: 400}, Each: &EachSpec{}}
	p = compile(t, spec, Options{Previous: p})
	rt, w = p.Match(from("127.0.0.1:1"))
	if permit, err = rt.Gate().Admit(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	holds("after a reload", map[string]float64{"budget": 600, "calls": 48, "each": 300, "slots": 300})
	p.SetCost(permit.SetCost, 100)
	holds("settled then", map[string]float64{"budget": 800, "calls": 48, "each": 100, "slots": 300})
	permit.Done(weir.OK)

	_, err = Compile(Spec{Gates: map[string]GateSpec{"a": {Limit: &LimitSpec{Limit: 1, Count: "request"}}, "b": {Limit: &LimitSpec{Limit: 1, Count: "requests", RefuseOversize: true}}}}, Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{`gates.a.limit.count: "request" is not known; did you mean requests?`, "gates.b.limit.refuse_oversize: means nothing where each request takes one slot"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// What an answer says it has cost is read, and the client does not see it unless it
// may.
func TestSettle(t *testing.T) {
	p := compile(t, Spec{Routes: []RouteSpec{
		{Name: "hidden", Settle: "header:X-Actual-Cost"}, {Name: "kept", Settle: "header:X-Actual-Cost", SettleKeep: true}, {Name: "plain"},
	}}, Options{})
	for _, tt := range []struct {
		route  string
		values []string
		want   int64
		ok     bool
		bad    bool
	}{
		{"hidden", []string{"7"}, 7, true, false}, {"kept", []string{"0"}, 0, true, false}, {"plain", []string{"7"}, 0, false, false},
		{"hidden", nil, 0, false, false}, {"hidden", []string{"-1"}, 0, false, true}, {"kept", []string{"much"}, 0, false, true},
		{"kept", []string{"99999999999999999999"}, largestCost, true, false}, {"hidden", []string{"1", "2"}, 2, true, false},
		{"hidden", []string{"0", "x"}, 0, true, true}, {"hidden", []string{""}, 0, false, true},
	} {
		h := http.Header{}
		if tt.values != nil {
			h["X-Actual-Cost"] = tt.values
		}
		units, ok, bad := p.Route(tt.route).Settle(h)
		if ok != tt.ok || ok && units != tt.want || bad != tt.bad {
			t.Errorf("%s, %q: %d, %v, %v; want %d, %v, %v", tt.route, tt.values, units, ok, bad, tt.want, tt.ok, tt.bad)
		}
		if _, seen := h["X-Actual-Cost"]; seen != (tt.values != nil && tt.route != "hidden") {
			t.Errorf("%s, %q: the client sees %v", tt.route, tt.values, h)
		}
	}
	if _, ok, bad := (*Route)(nil).Settle(http.Header{"X": {"1"}}); ok || bad {
		t.Error("no route, but a cost")
	}
}

func TestCostFaults(t *testing.T) {
	_, err := Compile(Spec{Routes: []RouteSpec{
		{Name: "a", CostFrom: "peer", Settle: "X-Cost", SettleKeep: true},
		{Name: "b", CostFrom: "header:a b", SettleKeep: true},
		{Name: "c", CostFrom: "header:X-Cost", Exempt: true},
		{Name: "d", Cost: math.MaxInt64}, {Name: "e", Cost: -1},
		{Name: "f", SettleEvent: "$.usage"}, {Name: "g", SettleEvent: "usage..tokens"}, {Name: "h", SettleEvent: "a.b.c.d.e.f.g.h.i"}, {Name: "i", SettleEvent: "a.b-c.d_0"},
	}}, Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{
		"routes[0].cost_from: a cost comes from a header only; write header:NAME, such as header:X-Cost",
		`routes[0].settle: "X-Cost" is not a source; did you mean header:X-Cost?`,
		`routes[1].cost_from: "a b" is not a header name`,
		"routes[1].settle_keep: means nothing without settle",
		"routes[2].cost_from: means nothing to exempt work",
		"routes[3].cost: is 9223372036854775807, too large; write at most 1000000000000000",
		"routes[4].cost: is -1, too small",
		`routes[5].settle_event: "$.usage" is not a path to a number in JSON; write names with dots between, at most eight, such as usage.total_tokens`,
		`routes[6].settle_event: "usage..tokens" is not a path`,
		`routes[7].settle_event: "a.b.c.d.e.f.g.h.i" is not a path`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// What is settled changes what a key holds, and a reload changes where costs come
// from.
func TestSettledCostCounts(t *testing.T) {
	spec := databases(10, EachSpec{})
	spec.Routes = []RouteSpec{{Name: "r", Match: []string{"/"}, Gates: []string{"db"}, CostFrom: "header:X-Cost", Settle: "header:X-Actual-Cost"}}
	p := compile(t, spec, Options{})
	rt, w := p.Match(from("127.0.0.1:1", "X-Cost: 6"))
	permit, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w)
	if err != nil || rt.Gates()[0].Snapshot().InFlight != 6 {
		t.Fatalf("%v, %d in flight", err, rt.Gates()[0].Snapshot().InFlight)
	}
	units, _, _ := rt.Settle(http.Header{"X-Actual-Cost": {"2"}})
	permit.SetCost("", units)
	if n := rt.Gates()[0].Snapshot().InFlight; n != 2 {
		t.Errorf("%d in flight, want 2", n)
	}
	permit.Done(weir.OK)
	spec.Routes[0].CostFrom = "header:X-Units"
	next := compile(t, spec, Options{Previous: p})
	if _, w := next.Match(from("127.0.0.1:1", "X-Cost: 6", "X-Units: 4")); w.Cost != 4 {
		t.Errorf("after the reload it costs %d", w.Cost)
	}
}

// No text makes a cost below 0 or above what a gate takes, and what is a number
// stays it.
func FuzzParseUnits(f *testing.F) {
	for _, text := range []string{"", "0", "7", "-1", "+1", "1e9", "99999999999999999999", "1073741825", "1000000000000001", "\u0661", " 1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := parseUnits(text)
		if n < 0 || n > largestCost || !ok && n != 0 {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
		if want, err := strconv.ParseUint(text, 10, 49); err == nil && len(text) <= longestNumber && (!ok || uint64(n) != want) {
			t.Errorf("%q: %d, %v; want %d", text, n, ok, want)
		}
	})
}

// Whatever stands beside a number in a header of costs, before it or behind, in a line of
// its own or joined with it: it is no cheaper, unless the whole is refused.
func FuzzCostBeside(f *testing.F) {
	for _, text := range []string{"", "3", "7", "1e+21", "-9", ",", "x,8", "99999999999999999999", " 6 ", "0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		alone, saidAlone, badAlone := greatest([]string{text}, 1)
		for _, lines := range [][]string{{"5", text}, {text, "5"}, {"5," + text}, {text + ",5"}} {
			units, said, bad := greatest(lines, 1)
			if !said || units < 5 || saidAlone && units < alone || units > largestCost || bad != badAlone {
				t.Errorf("%q: %d, %v, %v; alone %d, %v, %v", lines, units, said, bad, alone, saidAlone, badAlone)
			}
		}
	})
}

func admissionsSpec() Spec {
	return Spec{
		Identity: IdentitySpec{Priority: "header:X-Priority", Priorities: map[string]string{"urgent": "high"}, Admissions: "header:X-Admissions"},
		Gates:    map[string]GateSpec{"api": fixed(10)},
		Routes: []RouteSpec{
			{Name: "scan", Match: []string{"/"}, Gates: []string{"api"}, DemoteAfter: 3},
			{Name: "plain", Match: []string{"/plain"}, Gates: []string{"api"}},
			{Name: "open", Match: []string{"/open"}, DemoteAfter: 1},
		},
	}
}

// Work is demoted from the admission on that the route says, if a trusted peer has
// counted them, and everybody further on hears of it.
func TestDemoteAfter(t *testing.T) {
	p := compile(t, admissionsSpec(), Options{})
	for _, tt := range []struct {
		remote, path, headers string
		want                  weir.Priority
		admissions, priority  string // of what is passed on
		ignored, demoted      uint64
	}{
		{"127.0.0.1:1", "/", "", weir.Normal, "1", "normal", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 0", weir.Normal, "1", "normal", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 2", weir.Normal, "3", "normal", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 3", weir.Background, "4", "background", 0, 1},
		{"127.0.0.1:1", "/", "X-Admissions: 3, X-Priority: urgent", weir.Background, "4", "background", 0, 1},
		{"127.0.0.1:1", "/", "X-Admissions: 2, X-Priority: urgent", weir.High, "3", "urgent", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 9, X-Priority: critical", weir.Critical, "10", "critical", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 9, X-Priority: background", weir.Background, "10", "background", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 99999999999999999999999", weir.Background, "1073741825", "background", 0, 1},
		{"127.0.0.1:1", "/", "X-Admissions: -3", weir.Normal, "1", "normal", 1, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 3, X-Admissions: 4", weir.Normal, "1", "normal", 1, 0},
		{"192.0.2.1:1", "/", "X-Admissions: 3, X-Priority: high", weir.Normal, "1", "normal", 0, 0},
		{"127.0.0.1:1", "/plain", "X-Admissions: 9", weir.Normal, "10", "normal", 0, 0},
		{"127.0.0.1:1", "/open", "X-Admissions: 9", weir.Background, "9", "background", 0, 1},
		{"127.0.0.1:1", "/open", "", weir.Normal, "", "normal", 0, 0},
	} {
		i, d := p.Ignored().Admissions, p.Demoted()
		var headers []string
		if tt.headers != "" {
			headers = strings.Split(tt.headers, ", ")
		}
		in := from(tt.remote, headers...)
		in.URL.Path = tt.path
		_, w := p.Match(in)
		out := in.Header.Clone()
		p.Forward(out, in, &w, time.Now())
		if w.Priority != tt.want || out.Get("X-Admissions") != tt.admissions || out.Get("X-Priority") != tt.priority {
			t.Errorf("%s %s with %q: %v, passed on %v; want %v, %q, %q", tt.remote, tt.path, tt.headers, w.Priority, out, tt.want, tt.admissions, tt.priority)
		}
		if i, d := p.Ignored().Admissions-i, p.Demoted()-d; i != tt.ignored || d != tt.demoted {
			t.Errorf("%s with %q: %d ignored, %d demoted; want %d, %d", tt.remote, tt.headers, i, d, tt.ignored, tt.demoted)
		}
	}
	if got := p.IdentityHeaders(); len(got) != 2 || got[0] != "X-Admissions" {
		t.Errorf("headers that strangers may not bring: %q", got)
	}
}

// A chain of servers demotes an operation that each of them sees once: what it has
// been admitted upstream counts.
func TestAdmissionsArePassedOn(t *testing.T) {
	p := compile(t, admissionsSpec(), Options{})
	header := http.Header{}
	var classes []string
	for range 5 {
		in := from("127.0.0.1:1")
		in.Header = header
		_, w := p.Match(in)
		header = header.Clone()
		p.Forward(header, in, &w, time.Now())
		classes = append(classes, w.Priority.String())
	}
	if got := strings.Join(classes, " "); got != "normal normal normal background background" {
		t.Error(got)
	}
}

// What was demoted is not forgotten by a reload, which changes after how many
// admissions.
func TestDemotionReload(t *testing.T) {
	spec := admissionsSpec()
	p := compile(t, spec, Options{})
	p.Match(from("127.0.0.1:1", "X-Admissions: 5"))
	spec.Routes[0].DemoteAfter = 7
	next := compile(t, spec, Options{Previous: p})
	if _, w := next.Match(from("127.0.0.1:1", "X-Admissions: 5")); w.Priority != weir.Normal || next.Demoted() != 1 {
		t.Errorf("%v, %d demoted", w.Priority, next.Demoted())
	}
}

func TestAdmissionsFaults(t *testing.T) {
	for _, tt := range []struct {
		admissions string
		routes     []RouteSpec
		want       []string
	}{
		{"peer", nil, []string{"identity.admissions: admissions are counted in a header only"}},
		{"X-Count", nil, []string{`identity.admissions: "X-Count" is not a source; did you mean header:X-Count?`}},
		{"header:x-priority", nil, []string{"identity.admissions: X-Priority says something else already"}},
		{"header:Grpc-Timeout", nil, []string{"identity.admissions: Grpc-Timeout says something else already"}},
		{"", []RouteSpec{{Name: "a", DemoteAfter: 3}}, []string{"routes[0].demote_after: nothing says how often an operation has been admitted; write identity: {admissions: header:X-Admissions}"}},
		{"header:X-Count", []RouteSpec{{Name: "a", DemoteAfter: -1}, {Name: "b", DemoteAfter: 3, Exempt: true}, {Name: "c", DemoteAfter: 3, Priority: "critical"}},
			[]string{"routes[0].demote_after: is -1, too small", "routes[1].demote_after: exempt and critical", "routes[2].demote_after: exempt and critical"}},
	} {
		_, err := Compile(Spec{Identity: IdentitySpec{Priority: "header:X-Priority", Admissions: tt.admissions}, Routes: tt.routes}, Options{})
		got := strings.Join(faultsOf(t, err), "\n")
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in\n%s", want, got)
			}
		}
	}
}

func TestTimeoutHeaders(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, tt := range []struct {
		name, value string
		want        time.Duration
		ok          bool
	}{
		{"grpc-timeout", "1S", time.Second, true},
		{"grpc-timeout", "250m", 250 * time.Millisecond, true},
		{"grpc-timeout", "5u", 5 * time.Microsecond, true},
		{"grpc-timeout", "99999999n", 99999999, true},
		{"grpc-timeout", "2M", 2 * time.Minute, true},
		{"grpc-timeout", "1H", time.Hour, true},
		{"grpc-timeout", "0n", 0, true},
		{"grpc-timeout", "99999999H", year, true},
		{"grpc-timeout", "999999999n", 0, false}, // nine digits
		{"grpc-timeout", "1s", 0, false},
		{"grpc-timeout", "-1S", 0, false},
		{"grpc-timeout", "+1S", 0, false},
		{"grpc-timeout", "1.5S", 0, false},
		{"grpc-timeout", "S", 0, false},
		{"grpc-timeout", "", 0, false},
		{"grpc-timeout", "1", 0, false},
		{"X-Request-Timeout", "2", 2 * time.Second, true},
		{"X-Request-Timeout", "0.25", 250 * time.Millisecond, true},
		{"X-Request-Timeout", "1m30s", 90 * time.Second, true},
		{"X-Request-Timeout", "250ms", 250 * time.Millisecond, true},
		{"X-Request-Timeout", "99999999999999999999", year, true},
		{"X-Request-Timeout", "2000000h", year, true},
		{"X-Request-Timeout", "0", 0, false},
		{"X-Request-Timeout", "0s", 0, false},
		{"X-Request-Timeout", "-1", 0, false},
		{"X-Request-Timeout", "-1s", 0, false},
		{"X-Request-Timeout", "1e9", 0, false},
		{"X-Request-Timeout", "NaN", 0, false},
		{"X-Request-Timeout", "Inf", 0, false},
		{"X-Request-Timeout", "0x10", 0, false},
		{"X-Request-Timeout", "1.2.3", 0, false},
		{"X-Request-Timeout", "PT5S", 0, false},
		{"X-Request-Timeout", "soon", 0, false},
		{"X-Request-Timeout", "0.0000000001", 0, false},
		{"X-Request-Timeout", strings.Repeat("1", 10<<10), 0, false},
		{"X-Timeout-Ms", "250", 250 * time.Millisecond, true},
		{"X-Timeout-Ms", "0.5", 500 * time.Microsecond, true},
		{"X-Timeout-Ms", "250ms", 0, false},
		{"X-Timeout-Ms", "-250", 0, false},
	} {
		h := newTimeoutHeader(tt.name)
		r := from("192.0.2.1:9", tt.name+": "+tt.value)
		d, value, bad := h.sent(httpHeader{r})
		if d != tt.want || (value != "") != tt.ok || (bad == 0) != tt.ok {
			t.Errorf("%s: %.40q is %v (%q, %d bad), want %v, %t", tt.name, tt.value, d, value, bad, tt.want, tt.ok)
		}
	}
}

// matched is the work of a request that carries headers, and how long it has left
// and may wait.
func matched(t *testing.T, spec Spec, remote string, headers ...string) (left, wait time.Duration) {
	t.Helper()
	p := compile(t, spec, Options{})
	_, w := p.Match(from(remote, headers...))
	if !w.Deadline.IsZero() {
		left = time.Until(w.Deadline)
	}
	return left, w.MaxWait
}

// The earliest deadline holds, whoever brings it.
func TestEarliestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		route := func(timeout time.Duration) Spec {
			return Spec{Routes: []RouteSpec{{Match: []string{"/"}, Timeout: Duration(timeout)}}}
		}
		off := route(time.Second)
		off.Deadline.Headers = []string{}
		other := route(0)
		other.Deadline.Headers = []string{"X-Envoy-Expected-Rq-Timeout-Ms"}
		for _, tt := range []struct {
			spec    Spec
			headers string
			want    time.Duration
		}{
			{route(0), "", 0},
			{route(time.Second), "", time.Second},
			{route(time.Second), "X-Request-Timeout: 0.5", 500 * time.Millisecond},
			{route(time.Second), "X-Request-Timeout: 5", time.Second},
			{route(time.Second), "Grpc-Timeout: 99999999H", time.Second},
			{route(time.Second), "X-Request-Timeout: soon", time.Second},
			{route(time.Second), "X-Request-Timeout: -1", time.Second},
			{route(0), "X-Request-Timeout: soon", 0},
			{route(0), "Grpc-Timeout: 300m|X-Request-Timeout: 0.2", 200 * time.Millisecond},
			{route(0), "Grpc-Timeout: 100m|X-Request-Timeout: 0.2", 100 * time.Millisecond},
			{route(0), "X-Request-Timeout: 3|X-Request-Timeout: 2|X-Request-Timeout: soon", 2 * time.Second},
			{off, "X-Request-Timeout: 0.5", time.Second},
			{other, "X-Request-Timeout: 0.5", 0},
			{other, "X-Envoy-Expected-Rq-Timeout-Ms: 15", 15 * time.Millisecond},
		} {
			for _, remote := range []string{"127.0.0.1:9", "192.0.2.1:9"} {
				var headers []string
				if tt.headers != "" {
					headers = strings.Split(tt.headers, "|")
				}
				if left, _ := matched(t, tt.spec, remote, headers...); left != tt.want {
					t.Errorf("%s with %s: %v left, want %v", remote, tt.headers, left, tt.want)
				}
			}
		}
	})
}

// Where the earliest deadline is served first, a stranger's only bounds its wait.
func TestDeadlineIsNoAdvantage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			order, remote, sent string
			maxWait             time.Duration // of the route
			left, wait          time.Duration
		}{
			{"edf", "127.0.0.1:9", "0.5", 0, 500 * time.Millisecond, 0},
			{"edf", "192.0.2.1:9", "0.5", 0, time.Second, 500 * time.Millisecond},
			{"edf", "192.0.2.1:9", "0.5", 100 * time.Millisecond, time.Second, 100 * time.Millisecond},
			{"edf", "192.0.2.1:9", "0.5", -1, time.Second, weir.NoWait},
			{"edf", "192.0.2.1:9", "60", 0, time.Second, time.Minute},
			{"edf", "192.0.2.1:9", "soon", 0, time.Second, 0},
			{"fifo", "192.0.2.1:9", "0.5", 0, 500 * time.Millisecond, 0},
		} {
			spec := limitSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Order: tt.order}})
			spec.Routes = []RouteSpec{{Match: []string{"/"}, Timeout: Duration(time.Second), MaxWait: Duration(tt.maxWait)}}
			if left, wait := matched(t, spec, tt.remote, "X-Request-Timeout: "+tt.sent); left != tt.left || wait != tt.wait {
				t.Errorf("%s, %s: %s leaves %v and a wait of %v, want %v and %v", tt.order, tt.remote, tt.sent, left, wait, tt.left, tt.wait)
			}
		}
	})
}

// A grpc-timeout of 0 is a deadline that has come.
func TestTimeoutIsOver(t *testing.T) {
	p := compile(t, routeSpec(RouteSpec{Match: []string{"/"}, Gates: []string{"api"}}), Options{})
	rt, w := p.Match(from("192.0.2.1:9", "Grpc-Timeout: 0n"))
	_, err := rt.Gate().Admit(t.Context(), w)
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDeadline {
		t.Errorf("%v, want a refusal for its deadline", err)
	}
}

// What goes on to the upstream is what the policy decided, and the time that is
// left.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := Spec{
			Identity: IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority",
				Priorities: map[string]string{"workload-low": "background"}},
			Routes: []RouteSpec{{Match: []string{"/"}, Priority: "high"}, {Match: []string{"/t"}, Timeout: Duration(2 * time.Second)}},
		}
		const spent = 250 * time.Millisecond
		for _, tt := range []struct{ remote, path, sent, want string }{
			{"192.0.2.1:9", "/", "", "X-Priority: high"},
			{"192.0.2.1:9", "/", "X-Priority: critical|X-Tenant: acme|X-User: root|X-Other: 1", "X-Other: 1|X-Priority: high"},
			{"127.0.0.1:9", "/", "X-Priority: critical|X-Tenant: acme|X-User: root", "X-Priority: critical|X-Tenant: acme|X-User: root"},
			{"127.0.0.1:9", "/", "X-Priority: workload-low", "X-Priority: workload-low"},
			{"127.0.0.1:9", "/", "X-Priority: urgent", "X-Priority: high"},
			{"127.0.0.1:9", "/", "X-Tenant: a|X-Tenant: b|X-Priority: critical|X-Priority: normal", "X-Priority: high"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: 2", "X-Priority: high|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: 2s", "X-Priority: high|X-Request-Timeout: 1750ms"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: 0.1", "X-Priority: high|X-Request-Timeout: 0.001"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: soon", "X-Priority: high|X-Request-Timeout: soon"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 1S", "Grpc-Timeout: 750000u|X-Priority: high"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 99999999H", "Grpc-Timeout: 31535999S|X-Priority: high"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 1S|X-Request-Timeout: 5|X-Request-Timeout: 3", "Grpc-Timeout: 750000u|X-Priority: high|X-Request-Timeout: 0.75"},
			{"192.0.2.1:9", "/t", "", "X-Priority: normal|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/t", "Content-Type: application/grpc+proto", "Content-Type: application/grpc+proto|Grpc-Timeout: 1750000u|X-Priority: normal"},
			{"192.0.2.1:9", "/t", "X-Request-Timeout: 60", "X-Priority: normal|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/t", "X-Request-Timeout: soon", "X-Priority: normal|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/t", "X-Request-Timeout: 0|X-Request-Timeout: 1s", "X-Priority: normal|X-Request-Timeout: 750ms"},
			{"192.0.2.1:9", "/t", "Content-Type: application/grpc|X-Request-Timeout: -1", "Content-Type: application/grpc|Grpc-Timeout: 1750000u|X-Priority: normal|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 1S|X-Request-Timeout: 1e-3", "Grpc-Timeout: 750000u|X-Priority: high|X-Request-Timeout: 0.75"},
		} {
			p := compile(t, spec, Options{})
			var headers []string
			if tt.sent != "" {
				headers = strings.Split(tt.sent, "|")
			}
			in := from(tt.remote, headers...)
			in.URL.Path = tt.path
			_, w := p.Match(in)
			arrived := time.Now()
			time.Sleep(spent)
			out := in.Header.Clone()
			p.Forward(out, in, &w, arrived)
			var b strings.Builder
			if err := out.Write(&b); err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(strings.TrimSuffix(b.String(), "\r\n"), "\r\n", "|")
			if got != tt.want {
				t.Errorf("%s%s with %q: forwarded %q, want %q", tt.remote, tt.path, tt.sent, got, tt.want)
			}
		}
	})
}

func TestTimeoutFaults(t *testing.T) {
	_, err := Compile(Spec{Deadline: DeadlineSpec{Headers: []string{"X Timeout", "grpc-timeout", "Grpc-Timeout"}}}, Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{`deadline.headers[0]: "X Timeout" is not a header name`, `deadline.headers[2]: "Grpc-Timeout" is in the list already`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// Whatever is sent, nobody gets longer than the route allows, nothing panics, and
// what goes on is a time that is read as at most what was left.
func FuzzTimeouts(f *testing.F) {
	for _, v := range []string{"1S", "99999999H", "-1", "0.5", "1e300", "250ms", "9223372036854775807", ".", "5H", "0n"} {
		f.Add(v, v)
	}
	const timeout = time.Hour
	p := compile(f, Spec{Routes: []RouteSpec{{Match: []string{"/"}, Timeout: Duration(timeout)}}}, Options{})
	f.Fuzz(func(t *testing.T, grpc, plain string) {
		in := from("192.0.2.1:9")
		in.Header = http.Header{grpcTimeout: {grpc}, "X-Request-Timeout": {plain}}
		arrived := time.Now()
		_, w := p.Match(in)
		if w.Deadline.IsZero() || w.Deadline.After(time.Now().Add(timeout)) {
			t.Errorf("deadline %v for %q, %q", w.Deadline, grpc, plain)
		}
		out := in.Header.Clone()
		p.Forward(out, in, &w, arrived)
		for _, h := range p.timeouts {
			before, understood, _ := h.sent(httpHeader{in})
			if after, value, _ := h.sent(httpHeader{&http.Request{Header: out}}); value == "" || understood != "" && after > max(before, time.Millisecond) {
				t.Errorf("%s: %q became %q", h.name.Canonical, in.Header[h.name.Canonical], out[h.name.Canonical])
			}
		}
	})
}
