package policy

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/shed"
)

func limitSpec(l LimitSpec) Spec { return Spec{Gates: map[string]GateSpec{"api": {Limit: &l}}} }

func routeSpec(routes ...RouteSpec) Spec {
	return Spec{Gates: map[string]GateSpec{"api": fixed(10), "db": fixed(20)}, Routes: routes}
}

func matching(patterns ...string) Spec { return routeSpec(RouteSpec{Name: "r", Match: patterns}) }

func TestFaults(t *testing.T) {
	const ms = Duration(time.Millisecond)
	tests := []struct {
		name string
		spec Spec
		want []string // each a prefix of a fault and the start of its remedy: "path: problem; instead"
	}{
		{"no mechanism", Spec{Gates: map[string]GateSpec{"api": {}}},
			[]string{"gates.api: the gate has no mechanism; write limit: "}},
		{"words for priorities", Spec{Identity: IdentitySpec{Priority: "const:workload-hihg", Priorities: map[string]string{
			"": "high", " x": "high", "A": "high", "a": "high", "workload-high": "hihg", strings.Repeat("x", 65): "low",
			"workload-low": "background"}}},
			[]string{`identity.priorities[""]: "" is not a word that a header could bring; write 1 to 64 bytes`,
				`identity.priorities[" x"]: " x" is not a word`,
				`identity.priorities.a: "a" is "A" in other letters; write one of the two`,
				`identity.priorities.workload-high: "hihg" is not a priority; did you mean high?`,
				`identity.priorities.xxx`,
				`identity.priority: "workload-hihg" is not a priority; did you mean workload-low?`}},
		{"mode", Spec{Gates: map[string]GateSpec{"api": {Mode: "enfroce", Limit: &LimitSpec{Limit: 1}}}},
			[]string{`gates.api.mode: "enfroce" is not known; did you mean enforce?`}},
		{"mode far off", Spec{Gates: map[string]GateSpec{"api": {Mode: "shadowing", Limit: &LimitSpec{Limit: 1}}}},
			[]string{`gates.api.mode: "shadowing" is not known; write one of enforce, observe, off`}},
		{"gate name", Spec{Gates: map[string]GateSpec{"a\nb": fixed(1), "": fixed(1), strings.Repeat("x", 300): fixed(1)}},
			[]string{`gates[""]: a gate without a name`, `gates["a\nb"]: the name "a\nb" has characters`, "gates.xxx"}},

		{"fixed without limit", limitSpec(LimitSpec{Controller: "fixed"}),
			[]string{"gates.api.limit.limit: the controller fixed has no limit to keep; write the number of slots"}},
		{"negative limit", limitSpec(LimitSpec{Limit: -3}), []string{"gates.api.limit.limit: is -3, too small; write at least 1"}},
		{"huge limit", limitSpec(LimitSpec{Limit: 1 << 40}), []string{"gates.api.limit.limit: is 1099511627776, too large"}},
		{"fixed with a band", limitSpec(LimitSpec{Limit: 5, Min: 1, Max: 9}),
			[]string{"gates.api.limit.min: means nothing to the controller fixed", "gates.api.limit.max: means nothing"}},
		{"fixed with what is AIMD's", limitSpec(LimitSpec{Limit: 5, Threshold: ms, Percentile: 0.5, Backoff: 0.9, Window: ms, MinSamples: 1}),
			[]string{"gates.api.limit.window: ", "gates.api.limit.threshold: ", "gates.api.limit.percentile: ", "gates.api.limit.backoff: ",
				"gates.api.limit.min_samples: "}},
		{"fixed by its limit", limitSpec(LimitSpec{Limit: 5, Min: 2}),
			[]string{"gates.api.limit.min: means nothing to the controller fixed, whose limit does not move; leave it out, or write controller: belief or knee or aimd"}},
		{"belief with what is AIMD's", limitSpec(LimitSpec{Threshold: ms}),
			[]string{"gates.api.limit.threshold: means nothing to the controller belief; leave it out, or write controller: aimd"}},
		{"controller", limitSpec(LimitSpec{Controller: "amid", Limit: 5}),
			[]string{`gates.api.limit.controller: "amid" is not known; did you mean aimd?`}},
		{"min over max", limitSpec(LimitSpec{Controller: "aimd", Min: 50, Max: 10}),
			[]string{"gates.api.limit.min: 50 is above max (10); write a min"}},
		{"min over the default of max", limitSpec(LimitSpec{Controller: "aimd", Min: 5000}),
			[]string{"gates.api.limit.min: 5000 is above max (1000, the default)"}},
		{"max under the default of min", limitSpec(LimitSpec{Controller: "gradient2", Max: 10}),
			[]string{"gates.api.limit.max: 10 is below min (20, the default); write at least 20"}},
		{"limit outside", limitSpec(LimitSpec{Controller: "aimd", Min: 5, Max: 10, Limit: 4}),
			[]string{"gates.api.limit.limit: 4 is not between min (5) and max (10)"}},
		{"percent", limitSpec(LimitSpec{Controller: "aimd", Percentile: 95}),
			[]string{"gates.api.limit.percentile: is 95, too large; write at most 1, or 0.95 for 95 %"}},
		{"aimd, all at once", limitSpec(LimitSpec{Controller: "aimd", Min: -1, Threshold: -ms, Percentile: math.NaN(),
			Backoff: math.Inf(1), Window: ms, MinSamples: -1}),
			[]string{"gates.api.limit.min: is -1, too small", "gates.api.limit.threshold: is -1ms, too small", "gates.api.limit.percentile: NaN",
				"gates.api.limit.backoff: is +Inf, too large", "gates.api.limit.window: is 1ms, too small", "gates.api.limit.min_samples: is -1"}},
		{"queue", limitSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Len: -2, MaxWait: -5 * ms, Order: "FIFO"}}),
			[]string{"gates.api.limit.queue.len: is -2, too small; write at least 0, or -1",
				"gates.api.limit.queue.max_wait: is -5ms, too small",
				`gates.api.limit.queue.order: "FIFO" is not known; did you mean fifo?`}},
		{"shares and weights", limitSpec(LimitSpec{Limit: 1, Exempt: -2, Queue: QueueSpec{
			Shares: map[string]float64{"background": 5, "hihg": 0.1, "high": math.NaN(), "normal": -0.1},
			Weights: WeightsSpec{Users: map[string]float64{"a": 0, "b": -1, "c": 1e-3},
				Tenants: map[string]float64{"d": math.Inf(1), "e": 1e7, strings.Repeat("x", 300): 1}}}}),
			[]string{"gates.api.limit.queue.shares.background: is 5, too large; write at most 1, or 0.05 for 5 %",
				"gates.api.limit.queue.shares.high: NaN is not a number",
				"gates.api.limit.queue.shares.normal: is -0.1, too small; write at least 0",
				"gates.api.limit.queue.weights.users.a: is 0, too small; write at least 0.001",
				"gates.api.limit.queue.weights.users.b: is -1, too small",
				"gates.api.limit.queue.weights.tenants.d: is +Inf, too large; write at most 1000",
				"gates.api.limit.queue.weights.tenants.e: is 1e+07, too large",
				"gates.api.limit.exempt: is -2, too small; write at least 0, or -1",
				`gates.api.limit.queue.shares.hihg: "hihg" is not a priority; did you mean high?`,
				"gates.api.limit.queue.weights.tenants.xxx"}},
		{"a share just above one", limitSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Shares: map[string]float64{"high": 1.5}}}),
			[]string{"gates.api.limit.queue.shares.high: is 1.5, too large; write at most 1, or 0.015 for 1.5 %"}},
		{"shares over the whole", limitSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Shares: map[string]float64{"high": 0.5, "normal": 0.6}}}),
			[]string{"gates.api.limit.queue.shares: the shares are 1.1 together; write shares that are no more than 1 together"}},
		{"huge queue", limitSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Len: 1 << 30}}),
			[]string{"gates.api.limit.queue.len: is 1073741824, too large"}},

		{"unknown gate", routeSpec(RouteSpec{Match: []string{"/"}, Gates: []string{"apy", "metrics"}}),
			[]string{`routes[0].gates[0]: there is no gate "apy"; did you mean api?`,
				`routes[0].gates[1]: there is no gate "metrics"; write one of api, db`}},
		{"no gates at all", Spec{Routes: []RouteSpec{{Match: []string{"/"}, Gates: []string{"api"}}}},
			[]string{`routes[0].gates[0]: there is no gate "api"; there are no gates to choose from`}},
		{"gate twice", routeSpec(RouteSpec{Match: []string{"/"}, Gates: []string{"api", "db", "api"}}),
			[]string{`routes[0].gates[2]: "api" is in the chain already`}},
		{"unreachable route", routeSpec(RouteSpec{Gates: []string{"api"}}),
			[]string{"routes[0].match: the route has neither a pattern nor a name"}},
		{"same name", routeSpec(RouteSpec{Name: "a"}, RouteSpec{Name: "b"}, RouteSpec{Name: "a"}),
			[]string{`routes[2].name: "a" is the name of an earlier route too`}},
		{"route values", routeSpec(RouteSpec{Name: "a", Priority: "hihg", Cost: -1, Timeout: -ms, MaxWait: -2 * ms}),
			[]string{`routes[0].priority: "hihg" is not known; did you mean high?`, "routes[0].cost: is -1, too small; write at least 1",
				"routes[0].timeout: is -1ms, too small", "routes[0].max_wait: is -2ms, too small; write at least 0s, or -1"}},
		{"cost over the limit", routeSpec(RouteSpec{Name: "a", Cost: 11, Gates: []string{"api", "db"}}),
			[]string{"routes[0].cost: 11 can never be met by gate api, which has at most 10 slots"}},

		{"empty pattern", matching(""), []string{`routes[0].match[0]: the pattern is empty; write "/"`}},
		{"no path", matching("GET"), []string{`routes[0].match[0]: "GET" has no path`}},
		{"no slash", matching("GET v1/x"), nil}, // a host and a path
		{"lower-case method", matching("get /x"), []string{`routes[0].match[0]: the method get is not in upper case, and methods are compared by letter; write "GET /x"`}},
		{"query", matching("GET /x?y=1"), []string{`routes[0].match[0]: a pattern matches the path, not the query; write "GET /x"`}},
		{"space", matching("GET /a b"), []string{`routes[0].match[0]: the path "/a b" has a space in it`}},
		{"fragment", matching("GET example.com/x#y"), []string{`routes[0].match[0]: a pattern matches the path, and no client sends what follows a #; write "GET example.com/x", or %23 for a # in the path`}},
		{"no escape", matching("/a%20b/%zz", "/100%"), []string{`routes[0].match[0]: "%zz" in the path is not a percent sign with two hexadecimal digits; write %25 for a percent sign`,
			`routes[0].match[1]: "%" in the path is not a percent sign with two hexadecimal digits; write %25 for a percent sign`}},
		{"space without a method", matching("/a b", "/a /b", "example.com/a b"), []string{`routes[0].match[0]: the path "/a b" has a space in it; write %20`,
			`routes[0].match[1]: the path "/a /b" has a space in it`, `routes[0].match[2]: the path "/a b" has a space in it`}},
		{"two methods", matching("GET POST /v1/"), []string{`routes[0].match[0]: "GET POST /v1/" has more than one word before the path; write "GET /v1/" and "POST /v1/"`}},
		{"a host and a space", matching("GET example.org /v1/"), []string{`routes[0].match[0]: "GET example.org /v1/" has more than one word before the path; write "GET example.org/v1/"`}},
		{"typographic quotes", matching("“/v1/”"), []string{`routes[0].match[0]: "“/v1/”" has typographic quotes, which are a part of the text; write "/v1/"`}},
		{"one typographic quote", matching("GET “users/"), []string{`routes[0].match[0]: "GET “users/" has typographic quotes, which are a part of the text; write "GET /users/"`}},
		{"forgotten space", matching("GET/v1/"), []string{`routes[0].match[0]: a space is missing between the method GET and the path; write "GET /v1/"`}},
		{"host outside of ASCII", matching("bücher.example/"), []string{"routes[0].match[0]: the host bücher.example would match nothing: hosts are compared in ASCII, as clients send them; write the name in Punycode"}},
		{"host with two colons", matching("GET example.com:80:80/x"), []string{`routes[0].match[0]: the host example.com:80:80 would match nothing: requests to a host with several colons are refused; write "GET example.com/x"`}},
		{"host that is an address", matching("::1/x"), nil},
		{"host", matching("Example.com:80/x"), []string{`routes[0].match[0]: the host Example.com:80 would match nothing: hosts are compared in lower case and without port; write "example.com/x"`}},
		{"unclean", matching("/a//b"), []string{`routes[0].match[0]: "/a//b" would match nothing: paths are compared without empty, . and .. segments; write "/a/b"`}},
		{"wildcard", matching("/a/{b}c", "/{...}", "/{a b}", "/{x}/{x}", "/{$}/a"),
			[]string{"routes[0].match[0]: bad wildcard segment", "routes[0].match[1]: empty wildcard",
				"routes[0].match[2]: ", `routes[0].match[3]: duplicate wildcard name "x"`, "routes[0].match[4]: {$} not at end"}},
		{"method", matching("GE(T /x"), []string{`routes[0].match[0]: invalid method "GE(T"`}},
		{"duplicate", routeSpec(RouteSpec{Match: []string{"GET /a"}}, RouteSpec{Name: "b", Match: []string{"/b", "GET  /a"}}),
			[]string{`routes[1].match[1]: "GET  /a" stands at routes[0].match[0] already; leave one of them out`}},
		{"same requests", matching("/a/{x}", "/a/{y}"),
			[]string{`routes[0].match[1]: "/a/{y}" conflicts with "/a/{x}" at routes[0].match[0]: /a/{y} matches the same requests as /a/{x}; make one`}},
		{"overlap", matching("/a/{x}", "/{y}/b"), []string{`routes[0].match[1]: "/{y}/b" conflicts with "/a/{x}" at routes[0].match[0]: `}},
		{"everything twice", matching("/", "/{rest...}"), []string{`routes[0].match[1]: "/{rest...}" conflicts with "/" at`}},

		{"source", Spec{Identity: IdentitySpec{Tenant: "heder:X-A", User: "X-User", Client: "header:X A", Priority: "const:urgent"}},
			[]string{`identity.tenant: "heder:X-A" is not a source; did you mean header:?`, `identity.user: "X-User" is not a source; did you mean header:X-User? write header:NAME`,
				`identity.client: "X A" is not a header name`, `identity.priority: "urgent" is not a priority; write one of background`}},
		{"source without value", Spec{Identity: IdentitySpec{Tenant: "header:", User: "path:", Client: "const:"}},
			[]string{`identity.tenant: "" is not a header name`, "identity.user: path: names no wildcard", "identity.client: const: has no value"}},
		{"priority by choice of the client", Spec{Identity: IdentitySpec{Priority: "path:p"}, Routes: []RouteSpec{{Match: []string{"/{p}"}}}},
			[]string{"identity.priority: a path is chosen by the client"}},
		{"priority by itself", Spec{Identity: IdentitySpec{Priority: "high"}}, []string{`identity.priority: "high" is not a source; did you mean const:high? write header:NAME or const:VALUE`}},
		{"priority by what it cannot come from", Spec{Identity: IdentitySpec{Priority: "X-Priority"}}, []string{`identity.priority: "X-Priority" is not a source; did you mean header:X-Priority? write header:NAME or const:VALUE`}},
		{"priority by address", Spec{Identity: IdentitySpec{Priority: "peer"}}, []string{"identity.priority: an address is not a priority"}},
		{"no such wildcard", Spec{Identity: IdentitySpec{Tenant: "path:databse"}, Routes: []RouteSpec{{Match: []string{"/v1/{database}/x"}}}},
			[]string{"identity.tenant: no route has the wildcard {databse}; did you mean database?"}},
		{"no wildcard", Spec{Identity: IdentitySpec{User: "path:u"}}, []string{"identity.user: no route has the wildcard {u}; there are no wildcards"}},
		{"networks", Spec{Identity: IdentitySpec{Trusted: []string{"10.0.0.1", "10.0.0.1/8", "localhost", "::ffff:10.0.0.0/104", "fe80::1", "10.0.0.0/8"}}},
			[]string{`identity.trusted_proxies[0]: "10.0.0.1" is not a network in CIDR notation; write 10.0.0.1/32`,
				"identity.trusted_proxies[1]: 10.0.0.1/8 has bits set beyond its 8; write 10.0.0.0/8, or 10.0.0.1/32",
				`identity.trusted_proxies[2]: "localhost" is not a network`, "identity.trusted_proxies[3]: ::ffff:10.0.0.0/104 is an IPv4 network in IPv6 form",
				`identity.trusted_proxies[4]: "fe80::1" is not a network in CIDR notation; write fe80::1/128`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Compile(tt.spec, Options{})
			if err == nil {
				p.Close()
			}
			wantFaults(t, err, tt.want)
		})
	}
}

func TestFaultsComeAllAtOnceWithKeys(t *testing.T) {
	_, err := Compile(Spec{
		Identity: IdentitySpec{Tenant: "nobody"},
		Gates:    map[string]GateSpec{"a.b": {Mode: "on"}},
		Routes:   []RouteSpec{{Match: []string{"/x"}, Gates: []string{"c"}}},
	}, Options{})
	var faults *Faults
	if !errors.As(err, &faults) {
		t.Fatalf("error is %T, want *Faults", err)
	}
	want := [][]string{{"identity", "tenant"}, {"gates", "a.b", "mode"}, {"gates", "a.b"}, {"routes", "[0]", "gates", "[0]"}}
	if len(faults.List) != len(want) {
		t.Fatalf("got %v", err)
	}
	for i, f := range faults.List {
		if !slices.Equal(f.Path, want[i]) {
			t.Errorf("fault %d has keys %q, want %q", i, f.Path, want[i])
		}
	}
	if got := faults.List[1].Path.String(); got != `gates["a.b"].mode` {
		t.Errorf("path is %s", got)
	}
	var one Fault
	if !errors.As(err, &one) || one.Path.String() != "identity.tenant" {
		t.Errorf("errors.As found %+v", one)
	}
}

// What the checks compare with are another package's defaults and bounds: at the
// edge of each both must agree.
func TestChecksAgreeWithTheControllers(t *testing.T) {
	agree := func(what string, spec LimitSpec, ok bool) {
		t.Helper()
		k, _ := spec.kind()
		if _, err := k.make(&spec); (err == nil) != ok {
			t.Errorf("%s: the controller says %v, want ok %v", what, err, ok)
		}
		p, err := Compile(limitSpec(spec), Options{})
		if err == nil {
			p.Close()
		}
		if (err == nil) != ok {
			t.Errorf("%s: the policy says %v, want ok %v", what, err, ok)
		}
	}
	for _, k := range kinds {
		if k.word == "fixed" {
			continue
		}
		agree(k.word+" at all defaults", with(k.word, LimitSpec{}), true)
		agree(k.word+" with the highest min", with(k.word, LimitSpec{Min: k.defaultOf("Max")}), true)
		agree(k.word+" with a min too high", with(k.word, LimitSpec{Min: k.defaultOf("Max") + 1}), false)
		agree(k.word+" with the lowest max", with(k.word, LimitSpec{Max: k.defaultOf("Min")}), true)
	}
	agree("the shortest window", LimitSpec{Controller: "aimd", Window: Duration(10 * time.Millisecond)}, true)
	agree("a window too short", LimitSpec{Controller: "aimd", Window: Duration(10*time.Millisecond - 1)}, false)
	agree("the largest percentile", LimitSpec{Controller: "aimd", Percentile: 1}, true)
	agree("the least backoff", LimitSpec{Controller: "aimd", Backoff: 0.5}, true)
	agree("a backoff of 1", LimitSpec{Controller: "aimd", Backoff: 1}, false)
}

func TestFaultsPrint(t *testing.T) {
	_, err := Compile(Spec{Gates: map[string]GateSpec{"a": {}, "b": {Mode: "x", Limit: &LimitSpec{Limit: 1}}}}, Options{})
	want := `policy: 2 faults
	gates.a: the gate has no mechanism; write limit: {limit: 20}, or limit: {} for one that is found by itself
	gates.b.mode: "x" is not known; write one of enforce, observe, off`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	many := routeSpec(make([]RouteSpec, 250)...)
	_, err = Compile(many, Options{})
	if text := err.Error(); strings.Count(text, "\n") != 101 || !strings.HasSuffix(text, "and 150 more; mend these first") {
		t.Errorf("250 faults print as\n%s", text)
	}
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
			[]string{"gates.g.limit.controller: the controller belief learns from latencies, and one key shows too few; write limit: with the slots"}},
		{"each, all at once", GateSpec{
			Limit: &LimitSpec{Limit: 5, Queue: QueueSpec{Shares: map[string]float64{"high": 10}, Weights: WeightsSpec{Users: map[string]float64{"a": 1}}}},
			Each: &EachSpec{By: "user", MaxKeys: -1, Overrides: map[string]OverrideSpec{
				"a": {}, "b": {Limit: 1, Scale: 1}, "c": {Limit: -1}, "d": {Scale: -1}, "e": {Scale: math.NaN()}, "f": {Scale: 2}}}},
			[]string{"gates.g.each.max_keys: is -1, too small", "gates.g.limit.queue.shares.high: is 10, too large; write at most 1, or 0.1 for 10 %",
				"gates.g.limit.queue.weights.users: mean nothing where each user has a pool of its own; write each: overrides:",
				"gates.g.each.overrides.a: changes nothing; write limit: 50, or scale: 2", "gates.g.each.overrides.b: has both",
				"gates.g.each.overrides.c.limit: is -1, too small", "gates.g.each.overrides.d.scale: is -1, too small",
				"gates.g.each.overrides.e.scale: NaN is not a number"}},
		{"each with idle weights", GateSpec{Limit: &LimitSpec{Limit: 5, Queue: QueueSpec{Weights: WeightsSpec{Tenants: map[string]float64{"a": 1}}}}, Each: &EachSpec{}},
			[]string{"gates.g.limit.queue.weights.tenants: mean nothing where each tenant"}},
		{"each by what is no key", GateSpec{Limit: &LimitSpec{Limit: 5}, Each: &EachSpec{By: "tennant"}},
			[]string{`gates.g.each.by: "tennant" is not known; did you mean tenant?`}},
		{"shed by nothing", GateSpec{Shed: &ShedSpec{}}, []string{"gates.g.shed: there is no source of pressure; write signals:"}},
		{"shed and limit", GateSpec{Limit: &LimitSpec{Limit: 1}, Shed: &ShedSpec{LoadOf: "db"}}, []string{"gates.g.shed: the gate has a limit too; write two gates"}},
		{"shed, all at once", GateSpec{Shed: &ShedSpec{LoadOf: "tenants", Signals: []string{"cpu", "cpu", "cpuu"}, Blind: "keeep", Wait: 1,
			Interval: Duration(time.Nanosecond), Resalt: Duration(time.Second),
			Thresholds: shed.Thresholds{Background: 0.9, Normal: 0.5, High: -1}}},
			[]string{"gates.g.shed: there are several sources of pressure; write one of", "gates.g.shed.wait: means nothing without wait_of", `gates.g.shed.signals[1]: "cpu" is in the list already`,
				`gates.g.shed.signals[2]: there is no signal "cpuu"; did you mean cpu?`, `gates.g.shed.load_of: "tenants" is not a gate with one limit`,
				`gates.g.shed.blind: "keeep" is not known; did you mean keep?`, "gates.g.shed.interval: is 1ns, too small; write at least 1ms",
				"gates.g.shed.resalt: 1s will not do", "gates.g.shed.thresholds.normal: 0.5 will not do; must not be below", "gates.g.shed.thresholds.high: is -1, too small"}},
		{"cursor", GateSpec{Shed: &ShedSpec{LoadOf: "db", Thresholds: shed.Thresholds{High: 1}, Cursor: &shed.Cursor{Overload: -1}}},
			[]string{"gates.g.shed.thresholds: mean nothing beside a cursor", "gates.g.shed.cursor.overload: is -1, too small"}},
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
