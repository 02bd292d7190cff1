package explain

import (
	"cmp"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// pressure is a source of one reading.
type pressure struct{ value float64 }

func (s *pressure) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "memory", Value: s.value, Known: true})
}

// compiled is a configuration whose one route goes through gates, written in YAML.
func compiled(t *testing.T, gates, order string) (*config.Config, *policy.Policy) {
	t.Helper()
	cfg, err := config.Parse("weir.yaml", []byte("upstreams: {app: {targets: [\"http://127.0.0.1:3000\"]}}\ngates:\n"+gates+
		"\nroutes: [{match: [/], gates: ["+order+"], upstream: app}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Compile(cfg.Policy(), policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return cfg, p
}

// take takes a place in a gate for the rest of the test.
func take(t *testing.T, p *policy.Policy, gate string, cost int64) {
	t.Helper()
	_, w := p.Match(httptest.NewRequest("GET", "/", nil))
	w.Cost = cost
	if _, err := p.Gate(gate).TryAdmit(w); err != nil {
		t.Fatal(err)
	}
}

// What the gates say one after the other, and what comes of it.
func TestSays(t *testing.T) {
	const (
		slots = "  slots: {limit: {limit: 1}}\n"
		api   = "  api: {quota: {rate: 1/h}}\n"
	)
	tests := []struct {
		name, gates, order string
		taken              string
		says               string
		status             int
	}{
		{"room", api + slots, "api, slots", "", "passes passes", 0},
		{"a quota used up", api + slots, "api, slots", "api", "refuses not reached", 429},
		{"used up, and nobody minds", "  api: {mode: observe, quota: {rate: 1/h}}\n" + slots, "api, slots", "api", "observes passes", 0},
		{"used up, and not asked", "  api: {mode: \"off\", quota: {rate: 1/h}}\n" + slots, "api, slots", "", "off passes", 0},
		{"used up, into debt", "  api: {quota: {rate: 1/h, permissive: true}}\n" + slots, "api, slots", "api", "passes passes", 0},
		{"used up, and there soon", "  api: {quota: {rate: 1/s, queue: {len: 5}}}\n", "api", "api", "waits", 0},
		{"used up, and too far off", "  api: {quota: {rate: 1/h, queue: {len: 5}}}\n", "api", "api", "refuses", 429},
		{"as long as it takes", "  api: {quota: {rate: 1/h, queue: {len: 5, max_wait: -1}}}\n", "api", "api", "waits", 0},
		{"nothing waits before the last gate", "  api: {quota: {rate: 1/s, queue: {len: 5}}}\n" + slots, "api, slots", "api", "refuses not reached", 429},
		{"used up, and another quota too", api + "  day: {quota: {limits: [1 a month]}}\n" + slots, "api, day, slots", "api day", "refuses refuses not reached", 429},
		{"used up, and the queue of another quota is no use", api + "  day: {quota: {rate: 1/h, queue: {len: 5, max_wait: -1}}}\n" + slots, "api, day, slots", "api day", "refuses refuses not reached", 429},
		{"used up, and work may wait for the last quota", api + "  day: {quota: {rate: 1/h, queue: {len: 5, max_wait: -1}}}\n", "api, day", "api day", "refuses not reached", 429},
		{"used up, and another quota blocks", api + "  day: {quota: {rules: [{user: \"*\", blocked: true}]}}\n", "api, day", "api", "refuses refuses", 403},
		{"used up, and another quota observes", api + "  day: {mode: observe, quota: {rate: 1/h}}\n", "api, day", "api day", "refuses not reached", 429},
		{"all slots taken", slots, "slots", "slots", "waits", 0},
		{"all slots taken, but not of the last gate", slots + api, "slots, api", "slots", "refuses not reached", 503},
		{"all slots taken of a gate that observes", "  slots: {mode: observe, limit: {limit: 1}}\n", "slots", "slots", "observes", 0},
		{"a pool for each", "  slots: {limit: {limit: 1}, each: {by: user}}\n", "slots", "slots", "waits", 0},
	}
	for _, tt := range tests {
		cfg, p := compiled(t, tt.gates, tt.order)
		for _, gate := range strings.Fields(tt.taken) {
			take(t, p, gate, 1)
		}
		a, err := View{Config: cfg, Policy: p}.Explain(Ask{From: "192.0.2.1"}) // where httptest says it is
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var says []string
		for _, g := range a.Gates {
			says = append(says, string(g.Says))
		}
		if got := strings.Join(says, " "); got != tt.says || a.Status != tt.status {
			t.Errorf("%s: %s, status %d; want %s, status %d: %+v", tt.name, got, a.Status, tt.says, tt.status, a.Gates)
		}
		if (a.AfterMS > 0) != (a.Status == 429) {
			t.Errorf("%s: come back in %d ms with status %d", tt.name, a.AfterMS, a.Status)
		}
	}
}

// A gate with a limit says what it really does, and so does the limit of the upstream behind it.
func TestSaysOfSlots(t *testing.T) {
	const app = "app@127.0.0.1:3000"
	tests := []struct {
		name, limit string // of the gate
		route       string // its further settings
		upstream    string // what follows its first target
		taken       string // gates where a slot is taken
		out         []string
		says        string
		status      int
		why         string // of the last
	}{
		{name: "room", limit: "limit: 1", says: "passes", why: "0 of 1 slots taken"},
		{name: "a route that does not wait", limit: "limit: 1", route: "max_wait: -1", taken: "g", says: "refuses", status: 503, why: "1 of 1 slots taken, and nothing waits"},
		{name: "no queue", limit: "limit: {limit: 1, queue: off}", taken: "g", says: "refuses", status: 503, why: "1 of 1 slots taken, and nothing waits"},
		{name: "no queue, and room", limit: "limit: {limit: 1, queue: off}", says: "passes", why: "0 of 1 slots taken"},
		{name: "no queue of each", limit: "limit: {limit: 1, queue: off}, each: {by: user}", taken: "g", says: "refuses", status: 503, why: "1 of 1 slots taken, and nothing waits"},
		{name: "no queue, and nobody minds", limit: "mode: observe, limit: {limit: 1, queue: off}", taken: "g", says: "observes", why: "1 of 1 slots taken, and nothing waits"},
		{name: "too dear", limit: "limit: {limit: 5, refuse_oversize: true}", route: "cost_from: header:X-Cost", says: "refuses", status: 413, why: "costs 7, more than the limit of 5"},
		{name: "too dear for each", limit: "limit: {limit: 5, refuse_oversize: true}, each: {by: user}", route: "cost_from: header:X-Cost", says: "refuses", status: 413, why: "costs 7, more than the limit of 5"},
		{name: "runs alone", limit: "limit: {limit: 5}", route: "cost_from: header:X-Cost", says: "passes", why: "0 of 5 slots taken, and it takes all, because it costs 7"},
		{name: "waits until it is alone", limit: "limit: {limit: 5}", route: "cost_from: header:X-Cost", taken: "g", says: "waits", why: "1 of 5 slots taken, and it takes all, because it costs 7"},
		{name: "one slot for each request", limit: "limit: {limit: 5, count: requests}", route: "cost_from: header:X-Cost", taken: "g", says: "passes", why: "1 of 5 slots taken"},
		{name: "exempt", limit: "limit: 1", route: "exempt: true", taken: "g", says: "passes", why: "exempt: takes no slot"},
		{name: "nothing is exempt", limit: "limit: {limit: 1, exempt: -1}", route: "exempt: true", taken: "g", says: "waits", why: "1 of 1 slots taken"},
		{name: "reads and writes", limit: "limit: {controller: probe, limit: 8, probe: {read_write: true}}", taken: "g g g g", says: "waits", why: "4 of 4 slots taken"},
		{name: "only writes", limit: "limit: {controller: probe, limit: 8, probe: {read_write: true}}", route: "access: write", taken: "g", says: "passes", why: "1 of 4 slots taken"},
		{name: "a target with room", limit: "limit: 1", upstream: "], limit: 2", taken: app, says: "passes passes", why: "1 of 2 slots taken"},
		{name: "a full target", limit: "limit: 1", upstream: "], limit: 1", taken: app, says: "passes waits", why: "1 of 1 slots taken"},
		{name: "a full gate before a target", limit: "limit: 1", upstream: "], limit: 1", taken: "g", says: "waits passes", why: "0 of 1 slots taken"},
		{name: "a full target, and nothing waits", limit: "limit: 1", upstream: "], limit: {limit: 1, queue: off}", taken: app, says: "passes refuses", status: 503, why: "1 of 1 slots taken, and nothing waits"},
		{name: "no way to the target", limit: "limit: 1", route: "max_wait: -1", upstream: "], limit: 1", taken: "g", says: "refuses not reached", status: 503},
		{name: "one of two targets", limit: "limit: 1", upstream: ", http://127.0.0.1:3001], limit: 1", taken: app, says: "passes passes", why: "0 of 1 slots taken, the freest of 2 targets"},
		{name: "the other target is out", limit: "limit: 1", upstream: ", http://127.0.0.1:3001], limit: 1", taken: app, out: []string{"app@127.0.0.1:3001"}, says: "passes waits", why: "1 of 1 slots taken"},
		{name: "both targets are out", limit: "limit: 1", upstream: ", http://127.0.0.1:3001], limit: 1", taken: app, out: []string{app, "app@127.0.0.1:3001"}, says: "passes passes", why: "0 of 1 slots taken, the freest of 2 targets"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := config.Parse("weir.yaml", []byte("upstreams: {app: {targets: [http://127.0.0.1:3000"+cmp.Or(tt.upstream, "]")+"}}\ngates: {g: {"+tt.limit+"}}\nroutes: [{match: [/], gates: [g], upstream: app, "+tt.route+"}]\n"))
			if err != nil {
				t.Fatal(err)
			}
			spec := cfg.Policy()
			spec.Gates = proxy.WithTargetGates(spec.Gates, cfg.Upstreams)
			p, err := policy.Compile(spec, policy.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			_, w := p.Match(httptest.NewRequest("GET", "/", nil))
			w.Exempt, w.MaxWait = false, 0
			for _, gate := range strings.Fields(tt.taken) {
				if _, _, err := p.Gate(gate).Arrive(w, func(weir.Permit, error) {}); err != nil && err != weir.ErrWaiting {
					t.Fatal(err)
				}
			}
			ask := Ask{From: "192.0.2.1"}
			if tt.route == "cost_from: header:X-Cost" {
				ask.From, ask.User, ask.Header = "127.0.0.1", "192.0.2.1", []string{"X-Cost: 7"}
			}
			a, err := View{Config: cfg, Policy: p, LeftOut: func(string) []string { return tt.out }}.Explain(ask)
			if err != nil {
				t.Fatal(err)
			}
			var says []string
			for _, g := range a.Gates {
				says = append(says, string(g.Says))
			}
			if got := strings.Join(says, " "); got != tt.says || a.Status != tt.status {
				t.Errorf("%s, status %d; want %s, status %d: %+v", got, a.Status, tt.says, tt.status, a.Gates)
			}
			if why := a.Gates[len(a.Gates)-1].Why; why != tt.why {
				t.Errorf("why: %q, want %q", why, tt.why)
			}
		})
	}
}

// A request may wait at the last gate, and then for a slot of the target.
func TestSaysWhereItWaits(t *testing.T) {
	a := Answer{Gates: []Gate{{Name: "api", Says: Passes}, {Name: "all", Says: Waits}, {Name: "app@127.0.0.1:3000", Says: Waits}}}
	if got, want := a.verdict(), "Waits at all and then at app@127.0.0.1:3000, until it is served or refused."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Whoever asks a thousand times takes nothing: the burst is there afterwards to the last
// token, in every window, and what is left is told as it goes.
func TestAsksTakeNothing(t *testing.T) {
	for _, settings := range []string{"limits: [1/h burst 7, 9 a month]", "rate: 1/h, burst: 7, debt: true", "rate: 1/h, burst: 7, queue: {len: 5}"} {
		cfg, p := compiled(t, "  api: {quota: {"+settings+"}}\n", "api")
		view, ask := View{Config: cfg, Policy: p}, Ask{From: "192.0.2.1"}
		left := func(want float64) *Answer {
			t.Helper()
			a, err := view.Explain(ask)
			if err != nil || a.Gates[0].Left == nil || *a.Gates[0].Left != want {
				t.Fatalf("%s: %+v %v, want %v left", settings, a, err, want)
			}
			return a
		}
		for range 1000 {
			left(7)
		}
		for n := range 7 {
			left(float64(7 - n))
			take(t, p, "api", 1)
		}
		for range 1000 {
			left(0)
		}
		_, w := p.Match(httptest.NewRequest("GET", "/", nil))
		_, err := p.Gate("api").TryAdmit(w)
		if debt := strings.Contains(settings, "debt"); (err == nil) != debt { // at 0 a debt may begin
			t.Errorf("%s: one more: %v", settings, err)
		}
		if s := p.Gate("api").Snapshot(); s.Admitted > 8 || s.Waiting != 0 {
			t.Errorf("%s: %+v", settings, s)
		}
	}
}

// Of all rules that match it is told which counts, why, and where each comes from.
func TestSaysTheRules(t *testing.T) {
	cfg, p := compiled(t, `  api:
    quota:
      rate: 10/h
      by: [user]
      rules:
        - {user: alice, rate: 5/h}
        - {user: alice, client: "*", rate: 4/h}
        - {name: office, address: 10.0.0.0/8, rate: 3/h}
        - {address: 10.1.0.0/16, exempt: true}
        - {client: 10.1.0.1, priority: high, blocked: true}
        - {priority: "*", limits: [1/h, 2 a day]}
`, "api")
	f := func(ask Ask, want ...string) {
		t.Helper()
		a, err := View{Config: cfg, Policy: p, From: func(gate string, r *quota.Rule) string { return gate + " " + r.Name }}.Explain(ask)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, r := range a.Gates[0].Rules {
			got = append(got, r.Rule+": "+r.Gives)
			if r.From != "api "+r.Rule || r.Counts != (i == 0) || (r.Why != "") != r.Counts {
				t.Errorf("%+v", r)
			}
		}
		got = append(got, a.Gates[0].Rules[0].Why)
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%+v:\n%s\nwant\n%s", ask, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if r := a.Gates[0].Rules[0]; r.Rule != a.Gates[0].Rule {
			t.Errorf("%q counts, the gate goes by %q", r.Rule, a.Gates[0].Rule)
		}
	}
	f(Ask{User: "alice"}, "user=alice,client=*: 4/h, burst 4", "user=alice: 5/h, burst 5", "user=*: 10/h, burst 10", "priority=*: 1/h, burst 1; 2 a day, UTC",
		"it is for each client, which user=alice does not look at")
	f(Ask{User: "bob", Client: "10.1.0.1", Priority: "high"}, "user=*: 10/h, burst 10", "client=10.1.0.1,priority=high: blocked", "priority=*: 1/h, burst 1; 2 a day, UTC",
		"it is for each user, which client=10.1.0.1,priority=high does not look at")
}

// What a request costs is what the gate counts.
func TestSaysTheCost(t *testing.T) {
	for count, want := range map[string]string{"cost": "costs 7, more than can ever be there", "requests": "left, costs 1"} {
		gates := "  api: {quota: {rate: 1/h, count: " + count + "}}\n"
		cfg, p := compiled(t, gates, "api")
		take(t, p, "api", 1)
		a, err := View{Config: cfg, Policy: p}.Explain(Ask{From: "192.0.2.1", Cost: 7})
		if err != nil || a.Gates[0].Says != Refuses || !strings.HasSuffix(a.Gates[0].Why, want) {
			t.Errorf("count %q: %+v, %v; want %s", count, a, err, want)
		}
	}
}

// A cost that cannot be read is no number.
func TestSaysNoCost(t *testing.T) {
	cfg, err := config.Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
gates: {api: {quota: {rate: 1/h}}}
routes: [{match: [/], gates: [api], upstream: app, cost_from: header:X-Cost}]
`))
	if err != nil {
		t.Fatal(err)
	}
	a, err := Offline(cfg, Ask{Header: []string{"X-Cost: many"}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := a.Print(&out, func(name string) string { return name }); err != nil || a.Status != 400 || !strings.Contains(out.String(), "cost      cannot be read\n") {
		t.Errorf("%v, status %d:\n%s", err, a.Status, &out)
	}
}

// What servers may read differently is refused.
func TestSaysOfAmbiguousRequests(t *testing.T) {
	cfg, _ := compiled(t, "  api: {quota: {rate: 1/h}}\n", "api")
	cfg.Routes[0].Match = append(cfg.Routes[0].Match, "heavy.test/")
	for _, tt := range []struct {
		host, path string
		status     int
	}{
		{"heavy.test:80", "/a%2Fb", 0},
		{"heavy.test", "/a%2F..%2Fb", 400},
		{"heavy.test:80:80", "/", 400},
	} {
		if a, err := Offline(cfg, Ask{Host: tt.host, Path: tt.path}); err != nil || a.Status != tt.status {
			t.Errorf("%s %s: %+v, %v; want the status %d", tt.host, tt.path, a, err, tt.status)
		}
	}
}

// A host is looked up as the gateway matches it.
func TestSaysOfHostsInPunycode(t *testing.T) {
	cfg, err := config.Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
routes: [{match: [xn--bcher-kva.example/], upstream: app}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := Offline(cfg, Ask{Host: "bücher.example"}); err != nil || a.Status != 0 || len(a.Patterns) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

// A gate that sheds lets through from a priority on.
func TestSaysOfShedding(t *testing.T) {
	var now time.Duration
	source := &pressure{}
	p, err := policy.Compile(policy.Spec{
		Signals: map[string]policy.SignalSpec{"memory": {}},
		Gates:   map[string]policy.GateSpec{"front": {Shed: &policy.ShedSpec{Signals: []string{"memory"}}}},
		Routes:  []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{"front"}}},
	}, policy.Options{Readings: source, Now: func() time.Duration { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, tt := range []struct {
		pressure float64
		priority string
		says     Verdict
		why      string
	}{
		{0.1, "background", Passes, "lets everything through"},
		{0.92, "normal", Refuses, "lets through from high"},
		{0.92, "critical", Passes, "lets through from high"},
		{2, "critical", Refuses, "lets nothing through"},
	} {
		source.value = tt.pressure
		for range 50 {
			now += 10 * time.Millisecond
			p.Step()
		}
		a, err := View{Config: &config.Config{}, Policy: p}.Explain(Ask{Priority: tt.priority})
		if err != nil {
			t.Fatal(err)
		}
		if g := a.Gates[0]; g.Says != tt.says || !strings.HasPrefix(g.Why, tt.why) {
			t.Errorf("%s at %v: %+v, want %s, %s", tt.priority, tt.pressure, g, tt.says, tt.why)
		}
		if s := p.Gate("front").Snapshot(); len(s.Rejected) > 0 || s.Admitted > 0 {
			t.Errorf("it has been counted: %+v", s)
		}
	}
}

// What is asked comes through a query as it is.
func TestAskAsQuery(t *testing.T) {
	ask := Ask{
		Method: "POST", Host: "a.example", Path: "/x?y=1&z=%20", From: "192.0.2.1", Header: []string{"X-A: 1", "X-B: 2"},
		User: "å&=", Client: "c", Tenant: "t", Priority: "high", Cost: 7, Descriptor: "a=b", Domain: "d",
	}
	got, err := Parse(ask.Values())
	if err != nil || strings.Join(got.Header, ";") != strings.Join(ask.Header, ";") {
		t.Fatalf("%+v, %v", got, err)
	}
	if got.Header, ask.Header = nil, nil; got.Values().Encode() != ask.Values().Encode() || got.User != ask.User || got.Cost != 7 {
		t.Errorf("%+v, want %+v", got, ask)
	}
}

// Nothing that can be asked makes it panic.
func FuzzAsk(f *testing.F) {
	f.Add("method=GET&path=/&user=alice&cost=3&header=A:b&from=::1")
	f.Add("path=%00&priority=high&from=1.2.3.4%25eth0&header=:")
	cfg, err := config.ForUpstream("http://127.0.0.1:3000", "", 5)
	if err != nil {
		f.Fatal(err)
	}
	p, err := policy.Compile(cfg.Policy(), policy.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(p.Close)
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("GET", "/explain", nil)
		r.URL.RawQuery = query
		ask, err := Parse(r.URL.Query())
		if err != nil {
			return
		}
		a, err := View{Config: cfg, Policy: p}.Explain(ask)
		if err != nil {
			return
		}
		if a.Cost < 1 || len(a.Gates) > 1 || a.Status == 0 && a.Route == "" {
			t.Errorf("%q: %+v", query, a)
		}
	})
}

// What a file says is judged with the rules that were set at run time, where those are in
// a file; otherwise the answer says that it does not know them, and where to ask.
func TestOfflineWithRules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kept := write("q.json", `{"weir_quotas": 1, "rules": [
{"gate": "api", "user": "bob", "rate": "3/h", "set_at": "2026-01-02T03:04:05Z", "set_by": "me"},
{"gate": "api", "user": "*", "rate": "4/h"},
{"gate": "gone", "user": "bob", "rate": "9/h"}]}`)
	broken := write("broken.json", `{"weir_quotas": 1, "rules": [{"gate": "api", "user": "bob", "rte": "3/h"}]}`)
	const head = `upstreams: {app: {targets: ["http://127.0.0.1:3000"]}}
gates:
  api:
    quota: {rate: 10/s, burst: 20, by: [user]}
routes: [{match: [/], gates: [api], upstream: app}]
stores: {shared: {redis: "redis://127.0.0.1:1/0"}}
`
	f := func(extra, user, limits, from string, notes ...string) {
		t.Helper()
		cfg, err := config.Parse("weir.yaml", []byte(head+extra+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		a, err := Offline(cfg, Ask{User: user})
		if err != nil {
			t.Fatal(err)
		}
		g := a.Gates[0]
		if strings.Join(g.Limits, "; ") != limits || g.Rules[0].From != from {
			t.Errorf("%s: %+v, want %s from %s", extra, g, limits, from)
		}
		for _, note := range notes {
			if !strings.Contains(strings.Join(a.Notes, "\n"), note) {
				t.Errorf("%s: %q, want %q", extra, a.Notes, note)
			}
		}
	}
	const ofFile = "weir.yaml:4"
	f("", "bob", "10/s, burst 20", ofFile, "by the configuration file alone, as if", "--admin 127.0.0.1:8090 in place of --config")
	f("runtime_quotas: {file: "+kept+"}", "bob", "3/h, burst 3", "set 2026-01-02T03:04:05Z by me", "set at run time in "+kept+" (3), 1 of which do not fit")
	f("runtime_quotas: {file: "+kept+"}", "carol", "4/h, burst 4", "set - by -, in the place of "+ofFile)
	f("runtime_quotas: {file: "+kept+"x}\nadmin: {socket: /run/s}", "bob", "10/s, burst 20", ofFile, "(0)", "--admin unix:/run/s in")
	f("runtime_quotas: {store: shared}\nadmin: {address: off}", "bob", "10/s, burst 20", ofFile, "without rules that were set at run time: they are in the store shared, which is not asked", "no admin listener")
	f("runtime_quotas: {file: "+broken+", start_broken: true}", "bob", "10/s, burst 20", ofFile, "without rules that were set at run time: "+broken+":1:")
	cfg, err := config.Parse("weir.yaml", []byte(head+"runtime_quotas: {file: "+broken+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Offline(cfg, Ask{}); err == nil || !strings.Contains(err.Error(), "no gateway would start with them: "+broken+":1:") {
		t.Errorf("%v", err)
	}
}
