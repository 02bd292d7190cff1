package config_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// recipe returns the file in a guide that has that line.
func recipe(t *testing.T, guide, line string) *config.Config {
	t.Helper()
	text, err := os.ReadFile("../../../docs/" + guide)
	if err != nil {
		t.Fatal(err)
	}
	for rest, found := string(text), true; found; {
		var block string
		_, rest, found = strings.Cut(rest, "```yaml\n")
		block, rest, _ = strings.Cut(rest, "```")
		if strings.Contains(block, line+"\n") {
			cfg, err := config.Parse(guide, []byte(block))
			if err != nil {
				t.Fatal(err)
			}
			return cfg
		}
	}
	t.Fatalf("%s has no file with the line %q", guide, line)
	return nil
}

// kitchen is a recipe at work, on a clock of the test's own.
type kitchen struct {
	*policy.Policy
	now      time.Duration
	readings []control.Reading
}

// Readings implements control.Source.
func (k *kitchen) Readings(into []control.Reading) []control.Reading {
	return append(into, k.readings...)
}

func cook(t *testing.T, cfg *config.Config) *kitchen {
	t.Helper()
	k := new(kitchen)
	p, err := policy.Compile(cfg.Policy(), policy.Options{Now: func() time.Duration { return k.now }, Readings: k})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	k.Policy = p
	return k
}

// pass lets time pass, and the gates do what is due.
func (k *kitchen) pass(d time.Duration) {
	for end := k.now + d; ; k.Step() {
		next, ok := k.Next()
		if !ok || next > end {
			k.now = end
			return
		}
		k.now = max(k.now, next)
	}
}

// The pools of all databases follow the lag of one queue, as the guide says.
func TestLagRecipe(t *testing.T) {
	k := cook(t, recipe(t, "howto/pools-by-key.md", "  consumer_lag: {read: http, url: http://127.0.0.1:8000/lag, field: total, interval: 5s}"))
	g := k.Gate("databases")
	for _, database := range []string{"orders", "users", "reports"} {
		if _, err := g.TryAdmit(weir.Work{Tenant: database}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		lag             float64
		known           bool
		each, ofReports int64
	}{
		{0, true, 1000, 250}, {10_000, true, 1000, 250}, {55_000, true, 505, 126}, {77_500, true, 257, 64},
		{100_000, true, 10, 2}, {1e9, true, 10, 2}, {32_500, true, 752, 188},
		{0, false, 752, 188}, {0, false, 752, 188}, {0, false, 752, 188}, {0, false, 10, 2}, {5, true, 1000, 250},
	} {
		k.readings = []control.Reading{{Name: "consumer_lag", Value: tt.lag, Known: tt.known}}
		k.pass(5 * time.Second)
		for database, want := range map[string]int64{"orders": tt.each, "users": tt.each, "reports": tt.ofReports} {
			if use, _ := g.Pools().Key(database); use.Limit != want {
				t.Errorf("with a lag of %v (known: %v) %s has %d slots, want %d", tt.lag, tt.known, database, use.Limit, want)
			}
		}
	}
}

// Each shard has a limiter of its own, as the guide says, and to check the file is
// to learn what they may take.
func TestOwnRecipe(t *testing.T) {
	cfg := recipe(t, "reference/pools.md", "    each: {by: tenant, own: true, max_keys: 200, overrides: {archive: {limit: 4}}}")
	k := cook(t, cfg)
	for _, shard := range []string{"one", "archive"} {
		if _, err := k.Gate("shards").TryAdmit(weir.Work{Tenant: shard}); err != nil {
			t.Fatal(err)
		}
	}
	l := k.Gate("shards").Limiters()
	if one, _ := l.Limiter("one", ""); one.Controller != "belief" {
		t.Errorf("%+v", one)
	}
	if archive, _ := l.Limiter("archive", ""); archive.Limit != 4 {
		t.Errorf("%+v", archive)
	}
	want := "the gate shards makes a limiter for each tenant: 200 at most (max_keys), in up to 12 MiB of memory"
	if notes := config.Texts(cfg.Notes()); len(notes) != 1 || notes[0] != want {
		t.Errorf("%q, want %q", notes, want)
	}
}

// Costs come from a trusted peer and are settled by the answer, as the guide says.
func TestCostRecipe(t *testing.T) {
	k := cook(t, recipe(t, "reference/requests.md", "    settle: header:X-Actual-Rows"))
	ask := func(from, rows string) (*policy.Route, weir.Work) {
		r := httptest.NewRequest(http.MethodGet, "/query", nil)
		r.RemoteAddr = from
		r.Header.Set("X-Rows", rows)
		return k.Match(r)
	}
	for _, tt := range []struct {
		from, rows string
		cost       int64
		admitted   bool
	}{{"127.0.0.1:1", "700", 700, true}, {"127.0.0.1:1", "few", 100, true}, {"192.0.2.1:1", "700", 100, true}, {"127.0.0.1:1", "5001", 5001, false}} {
		rt, w := ask(tt.from, tt.rows)
		p, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w)
		if r := weir.AsRejection(err); w.Cost != tt.cost || (err == nil) != tt.admitted || r != nil && weirhttp.Status(r) != 413 {
			t.Errorf("%s from %s: cost %d, %v", tt.rows, tt.from, w.Cost, err)
		}
		p.Done(weir.OK)
	}
	answer := http.Header{"X-Actual-Rows": {"612"}}
	if units, ok, _ := k.Route("/query").Settle(answer); !ok || units != 612 || len(answer) > 0 {
		t.Errorf("%d, %v, %v", units, ok, answer)
	}
}

// An export is demoted from its fourth request on, and nothing else is, as the guide
// says.
func TestDemotionRecipe(t *testing.T) {
	k := cook(t, recipe(t, "howto/demote.md", "  - {match: [/export/], gates: [app], demote_after: 3, upstream: app}"))
	for path, want := range map[string]string{"/export/orders": "high high high background", "/orders": "high high high high"} {
		var got []string
		for n := range 4 {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr = "127.0.0.1:1"
			r.Header.Set("X-Priority", "high")
			r.Header.Set("X-Admissions", strconv.Itoa(n))
			_, w := k.Match(r)
			got = append(got, w.Priority.String())
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// Reads and writes have a pool each, as the guide says.
func TestReadWriteRecipe(t *testing.T) {
	k := cook(t, recipe(t, "howto/pools-by-key.md", "      probe: {read_write: true, read_ratio: 0.6}"))
	for _, tt := range []struct{ method, path, part string }{
		{http.MethodGet, "/orders", "read"}, {http.MethodPost, "/orders", "write"}, {http.MethodPost, "/search", "read"},
	} {
		before := k.Gate("tickets").Parts()[tt.part].InFlight
		rt, w := k.Match(httptest.NewRequest(tt.method, tt.path, nil))
		if _, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w); err != nil {
			t.Fatal(err)
		}
		if n := k.Gate("tickets").Parts()[tt.part].InFlight; n != before+1 {
			t.Errorf("%s %s is no %s", tt.method, tt.path, tt.part)
		}
	}
}

// What limiters for each key may take is said of pairs too, and that all of them do
// the same.
func TestOwnNotes(t *testing.T) {
	file := `
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
routes: [{match: [/], gates: [pairs, lags], upstream: app}]
signals: {behind: {read: http, url: http://127.0.0.1:8000/lag}}
gates:
  pairs: {each: {own: true}, limit: {controller: probe, probe: {read_write: true}}}
  lags: {each: {own: true, by: user, max_keys: 1}, limit: {controller: lag, lag: {signal: behind}, queue: {len: -1}}}
`
	cfg, err := config.Parse("weir.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(config.Texts(cfg.Notes()), "\n")
	for _, want := range []string{
		"the gate pairs makes two limiters for each tenant: 1024 at most (max_keys), in up to 128 MiB of memory",
		"the gate lags makes a limiter for each user: 1 at most (max_keys), in up to 1 MiB of memory",
		"the gate lags has a controller lag for each user, and all of them read the same signals",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %s in\n%s", want, notes)
		}
	}
}

// ask sends a request through the gates of its route, and settles it as the answer says.
func ask(t *testing.T, p *policy.Policy, method, path string, headers ...string) *weir.Rejection {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "127.0.0.1:1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rt, w := p.Match(r)
	permit, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w)
	if err != nil {
		return weir.AsRejection(err)
	}
	permit.Done(weir.OK)
	return nil
}

// The file with quotas in the guide does what the guide says.
func TestQuotaRecipe(t *testing.T) {
	k := cook(t, recipe(t, "howto/rate-limits.md", "  client: address                   # rules may look at addresses then"))
	k.now = 30 * time.Hour // in the morning
	count := func(n int, headers ...string) (in int, last *weir.Rejection) {
		for range n {
			if r := ask(t, k.Policy, "GET", "/", headers...); r != nil {
				last = r
			} else {
				in++
			}
		}
		return in, last
	}
	for _, test := range []struct {
		headers []string
		want    int
		rule    string
		reason  weir.Reason
	}{
		{[]string{"X-User", "alice"}, 20, "user=*", weir.ReasonQuota},
		{[]string{"X-User", "bob"}, 20, "user=*", weir.ReasonQuota},
		{[]string{"X-User", "acme"}, 100, "partner", weir.ReasonQuota},
		{[]string{"X-User", "mallory"}, 0, "user=mallory", weir.ReasonBlocked},
	} {
		in, last := count(150, test.headers...)
		if in != test.want || last == nil || last.Rule != test.rule || last.Reason != test.reason || last.Gate != "contract" {
			t.Errorf("%v: %d got in, then %v; want %d, then %v by %s", test.headers, in, last, test.want, test.reason, test.rule)
		}
	}
	if in, _ := count(150, "X-User", "carol", "X-Forwarded-For", "10.9.1.2"); in != 150 {
		t.Errorf("%d of the exempt network got in, want all 150", in)
	}
	k.pass(time.Second)
	if in, _ := count(150, "X-User", "alice"); in != 10 {
		t.Errorf("%d got in after a second, want 10", in)
	}
}

// Imports cost what a trusted peer says, may go into debt, and come back when it is paid.
func TestQuotaDebtRecipe(t *testing.T) {
	k := cook(t, recipe(t, "howto/rate-limits.md", "  client: address                   # rules may look at addresses then"))
	post := func(user, cost string) *weir.Rejection {
		return ask(t, k.Policy, "POST", "/v1/imports", "X-User", user, "X-Cost", cost)
	}
	if r := post("acme", "560"); r != nil {
		t.Fatal(r)
	}
	if r := post("acme", "1"); r == nil || r.RetryAfter != 12*time.Second || r.Rule != "user=*" {
		t.Errorf("%v, want a wait of 12s", r)
	}
	if r := post("other", "1"); r != nil {
		t.Errorf("another user: %v", r)
	}
	k.pass(12*time.Second - time.Millisecond)
	if r := post("acme", "1"); r == nil || r.RetryAfter != time.Millisecond {
		t.Errorf("%v, want a wait of 1ms", r)
	}
	k.pass(time.Millisecond)
	if r := post("acme", "1"); r != nil {
		t.Error(r)
	}
}
