package server

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// What a request takes is what it says, until the answer says what it has really
// cost; that is between the upstream and the gateway.
func TestCostOfTheRequestAndOfItsAnswer(t *testing.T) {
	next := make(chan string)
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Asked-Cost", r.Header.Get("X-Cost"))
		w.Header().Set("X-Actual-Cost", <-next)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-next
	})
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 100}, Each: &policy.EachSpec{}}
	rt := &cfg.Routes[0]
	rt.Cost, rt.CostFrom, rt.Settle = 3, "header:X-Cost", "header:X-Actual-Cost"
	src := new(source)
	g := start(t, cfg, Options{Load: src.load})

	told := func(header http.Header) string { return strings.Join(header["X-Cost"], "") } // the upstream
	ask := func(actual, seen string, takes, held int64, header http.Header) {
		t.Helper()
		answers := make(chan *http.Response, 1)
		go func() {
			req, err := http.NewRequest(http.MethodGet, g.url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header = header
			res, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Error(err)
			}
			answers <- res
		}()
		eventually(t, "it is admitted", func() bool { return g.gate().InFlight == takes })
		next <- actual
		res := <-answers
		if res == nil {
			return
		}
		defer res.Body.Close()
		if n := g.gate().InFlight; n != held {
			t.Errorf("%v, answered %q: it holds %d slots, want %d", header, actual, n, held)
		}
		if got := res.Header.Get("X-Actual-Cost"); got != seen {
			t.Errorf("the client sees %q, want %q", got, seen)
		}
		if got := res.Header.Get("X-Asked-Cost"); got != told(header) {
			t.Errorf("the upstream is told a cost of %q, want %q", got, told(header))
		}
		next <- ""
		g.idle()
	}
	ask("12", "", 7, 12, http.Header{"X-Cost": {"7"}})
	ask("0", "", 3, 1, http.Header{}) // a permit holds something
	ask("many", "", 50, 50, http.Header{"X-Cost": {"50"}})
	ask("9", "", 3, 9, http.Header{"X-Cost": {"-7"}})
	if i := g.Policy().Ignored(); i.Costs != 1 || i.Settled != 1 {
		t.Errorf("%+v", i)
	}

	rt.SettleKeep = true
	src.set(func() (*config.Config, error) { return cfg, nil })
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	ask("12", "12", 7, 12, http.Header{"X-Cost": {"7"}})

	cfg.Identity.Trusted = []string{} // nobody
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	told = func(http.Header) string { return "" }
	ask("12", "12", 3, 12, http.Header{"X-Cost": {"7"}})
}

// A request whose cost cannot be read is not served for a guess where it would be charged
// to a quota, and what a client adds to a proxy's word makes it dearer.
func TestCostOfAQuota(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"1e12 a month"}}}}
	cfg.Routes[0].CostFrom = "header:X-Cost"
	g := start(t, cfg, Options{})
	for _, tt := range []struct {
		costs     []string
		status    int
		remaining string
	}{
		{[]string{"400000000000"}, 200, "r=600000000000"},
		{[]string{"1, 100000000000"}, 200, "r=500000000000"}, {[]string{"x", "1"}, 400, ""}, {[]string{"100000000000"}, 200, "r=400000000000"},
		{[]string{"NaN"}, 400, ""}, {[]string{"-5"}, 400, ""}, {[]string{"1e300"}, 400, ""}, {[]string{"0x10", "0"}, 400, ""},
		{[]string{""}, 200, "r=399999999999"}, {nil, 200, "r=399999999998"},
		{[]string{"99999999999999999999"}, 413, ""}, {[]string{"400000000010"}, 429, ""},
		{[]string{"399999999998"}, 200, "r=0"},
	} {
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.costs != nil {
			req.Header["X-Cost"] = tt.costs
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tt.status || tt.status == 200 && !strings.Contains(res.Header.Get("RateLimit"), tt.remaining+";") {
			t.Errorf("%q: %s, %q; want %d, %q\n%s", tt.costs, res.Status, res.Header.Get("RateLimit"), tt.status, tt.remaining, body)
		}
		if tt.status == 400 && !strings.Contains(string(body), "The cost of the request cannot be read") {
			t.Errorf("%q: %s", tt.costs, body)
		}
	}
	if i := g.Policy().Ignored(); i.Costs != 5 {
		t.Errorf("%+v, want 5 costs that could not be read", i)
	}
}

// A limit of requests, of a gate or of an upstream, holds one slot of a request that a
// quota beside it is charged a thousand tokens for, and settled.
func TestTokensBesideSlots(t *testing.T) {
	next := make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		<-next
		w.Header().Set("X-Actual-Cost", "700")
		_ = http.NewResponseController(w).Flush()
		<-next
	})
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 10, Count: "requests"}, Each: &policy.EachSpec{}}
	cfg.Gates["tokens"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"5000 a month"}}}}
	u := cfg.Upstreams[cfg.Routes[0].Upstream]
	u.Limit = &policy.LimitSpec{Limit: 10, Count: "requests"}
	cfg.Upstreams[cfg.Routes[0].Upstream] = u
	rt := &cfg.Routes[0]
	rt.Gates, rt.CostFrom, rt.Settle = []string{"tokens", gateName}, "header:X-Cost", "header:X-Actual-Cost"
	g := start(t, cfg, Options{})
	left := func() float64 {
		d, err := g.Policy().Gate("tokens").Quota().Peek(t.Context(), weir.Work{})
		if err != nil {
			t.Error(err)
		}
		return d.Remaining
	}
	slots := func() (n int64) {
		for _, gate := range g.Policy().Gates() {
			if gate.Quota() == nil {
				n += gate.Snapshot().InFlight
			}
		}
		return n
	}
	answers := make(chan *http.Response, 1)
	go func() {
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("X-Cost", "1000")
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Error(err)
		}
		answers <- res
	}()
	eventually(t, "it holds a slot of each", func() bool { return slots() == 2 })
	if l := left(); l != 4000 {
		t.Errorf("while it runs: %v tokens left, want 4000", l)
	}
	next <- struct{}{}
	res := <-answers
	if l, n := left(), slots(); l != 4300 || n != 2 {
		t.Errorf("settled: %v tokens, %d slots; want 4300 left and 2 held", l, n)
	}
	next <- struct{}{}
	if res != nil {
		res.Body.Close()
	}
	g.idle()
}

// A tenant whose answer has cost more than it was admitted with waits the longer
// for its next turn.
func TestSettledCostCountsAgainstTheTenant(t *testing.T) {
	for _, name := range []string{"X-Actual-Cost", http.TrailerPrefix + "X-Actual-Cost"} {
		t.Run(name, func(t *testing.T) { settledCostCounts(t, name) })
	}
}

func settledCostCounts(t *testing.T, name string) {
	came, next := make(chan string, 20), make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("X-Tenant")
		if came <- who; who == "heavy" {
			w.Header().Set(name, "5")
		}
		<-next
		_, _ = io.WriteString(w, "done")
		_ = http.NewResponseController(w).Flush()
	})
	cfg := serialConfig(t, up.URL, policy.IdentitySpec{Tenant: "header:X-Tenant"})
	cfg.Routes[0].Settle = "header:X-Actual-Cost"
	g := start(t, cfg, Options{})
	ts := &turnstile{t: t, url: up.URL, came: came, next: next}
	ts.ask(g, 0, "127.0.0.1", "/", nil)
	eventually(t, "the slot is taken", func() bool { return g.gate().InFlight == 1 })
	for i := range 6 {
		ts.ask(g, int64(2*i+1), "127.0.0.1", "/", http.Header{"X-Tenant": {"heavy"}})
		ts.ask(g, int64(2*i+2), "127.0.0.1", "/", http.Header{"X-Tenant": {"light"}})
	}
	order := ts.order(13)[1:]
	heavy := 0
	for _, who := range order[:7] {
		if who == "heavy" {
			heavy++
		}
	}
	if heavy > 2 {
		t.Errorf("%d of the first 7 were of the tenant that costs five times as much: %q", heavy, order)
	}
}

// A cost that is known only at the end of the answer comes in its trailer, announced
// or not, and the client does not see it there either.
func TestCostInTheTrailer(t *testing.T) {
	rest := make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		name := http.TrailerPrefix + "X-Actual-Cost"
		if r.URL.Path == "/announced" {
			name = "X-Actual-Cost"
			w.Header().Set("Trailer", "X-Actual-Cost, X-Sum")
		}
		_, _ = io.WriteString(w, "begin ")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-rest
		_, _ = io.WriteString(w, "end")
		w.Header().Set(name, "5")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "7")
	})
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 100}, Each: &policy.EachSpec{}}
	cfg.Routes[0].Settle = "header:X-Actual-Cost"
	g := start(t, cfg, Options{})
	for _, path := range []string{"/announced", "/"} {
		res, err := http.Get(g.url + path)
		if err != nil {
			t.Fatal(err)
		}
		rest <- struct{}{}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != "begin end" {
			t.Errorf("%s: %q, %v", path, body, err)
		}
		if res.Trailer.Get("X-Actual-Cost") != "" || res.Trailer.Get("X-Sum") != "7" {
			t.Errorf("%s: the client sees %v", path, res.Trailer)
		}
		g.idle()
	}
}
