package server

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// slowly is a quota of n that does not come back while a test lasts.
func slowly(n int) *policy.QuotaSpec {
	return &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: float64(n)}}
}

// quotaConfig is a gateway with quotas before its limit, in the order of their names.
func quotaConfig(t *testing.T, upstream string, gates map[string]policy.GateSpec, order ...string) *config.Config {
	t.Helper()
	cfg := baseConfig(t, upstream)
	cfg.Identity = policy.IdentitySpec{User: "header:X-User"}
	for name, g := range gates {
		cfg.Gates[name] = g
	}
	cfg.Routes[0].Gates = append(order, cfg.Routes[0].Gates...)
	return cfg
}

// as asks with the name of a user.
func as(t *testing.T, g *running, user string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, g.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User", user)
	req.Close = true
	return do(t, req)
}

// Answers say what is left, whoever gives them; the one that refuses speaks, else the
// one that is enough for the fewest more such requests.
func TestQuotaFields(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"inner";r=1`)
		w.WriteHeader(http.StatusTeapot)
	})
	each := slowly(2)
	each.By, each.Unit = []string{"user"}, "content-bytes"
	each.Rules = []policy.QuotaRuleSpec{{Rule: quota.Rule{User: "root", Exempt: true}}, {Rule: quota.Rule{Name: "banned", User: "mallory", Blocked: true}}}
	g := start(t, quotaConfig(t, up.URL, map[string]policy.GateSpec{"each": {Quota: each}, "all": {Quota: slowly(4)}}, "each", "all"), Options{})

	const policies = `"each/user=*";q=2;qu="content-bytes";w=7200, "all/all";q=4;w=14400`
	tests := []struct {
		user     string
		status   int
		policies string
		left     string // without the time
		rule     string
	}{
		{"alice", 418, policies, `"each/user=*";r=1`, ""},
		{"alice", 418, policies, `"each/user=*";r=0`, ""},
		{"alice", 429, policies, `"each/user=*";r=0`, "user=*"},
		{"bob", 418, policies, `"each/user=*";r=1`, ""}, // one of all, too: the first speaks
		{"root", 418, `"all/all";q=4;w=14400`, `"all/all";r=0`, ""},
		{"carol", 429, policies, `"all/all";r=0`, "all"}, // and her own quota is untouched
		{"mallory", 403, `"all/all";q=4;w=14400`, `"all/all";r=0`, "banned"},
	}
	for i, tt := range tests {
		res, body := as(t, g, tt.user)
		name := fmt.Sprintf("%d (%s)", i, tt.user)
		if res.StatusCode != tt.status {
			t.Fatalf("%s: %d %s, want %d", name, res.StatusCode, body, tt.status)
		}
		if got := res.Header.Get("RateLimit-Policy"); got != tt.policies {
			t.Errorf("%s: RateLimit-Policy %s, want %s", name, got, tt.policies)
		}
		fields := res.Header.Values("RateLimit")
		if left, reset, ok := strings.Cut(fields[0], ";t="); !ok || left != tt.left || !within(reset, 1, 14400) {
			t.Errorf("%s: RateLimit %s, want %s", name, fields, tt.left)
		}
		if through := tt.status == 418; through != (len(fields) == 2) || through && fields[1] != `"inner";r=1` {
			t.Errorf("%s: RateLimit %q: the upstream's own is to be the second", name, fields)
		}
		checkRefusal(t, name, res, body, tt.rule)
	}
}

// Of two quotas that are used up the answer is about the one to wait longest for, whatever
// their order; the one that was asked first counts it.
func TestQuotaTellsTheLongestWait(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	rate := func(text string) policy.GateSpec {
		return policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: text}}}
	}
	for _, order := range [][]string{{"short", "long"}, {"long", "short"}} {
		g := start(t, quotaConfig(t, up.URL, map[string]policy.GateSpec{"short": rate("1/min"), "long": rate("1/h")}, order...), Options{})
		as(t, g, "alice")
		res, body := as(t, g, "alice")
		if !strings.Contains(body, `"gate":"long"`) || !strings.HasPrefix(res.Header.Get("RateLimit"), `"long/all";r=0;t=`) {
			t.Errorf("%s: RateLimit %s: %s", order, res.Header.Get("RateLimit"), body)
		}
		if after := res.Header.Get("Retry-After"); !within(after, 3500, 3600) {
			t.Errorf("%s: Retry-After %s", order, after)
		}
		checkRefusal(t, order[0]+" first", res, body, "all")
		for name, want := range map[string]uint64{order[0]: 1, order[1]: 0} {
			if got := g.state.Load().policy.Gate(name).Snapshot().Rejected[weir.ReasonQuota]; got != want {
				t.Errorf("%s: %s has counted %d refusals, want %d", order, name, got, want)
			}
		}
	}
}

// Of a quota of requests and one of tokens speaks the one that is enough for fewer
// requests: 9 requests are more than 900 tokens at 100 each, less than 2000.
func TestQuotaFieldsOfDifferentUnits(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	for burst, want := range map[int]string{2100: `"calls/all";r=9;`, 900: `"tokens/all";r=800;`} {
		calls := slowly(10)
		calls.Count = "requests"
		cfg := quotaConfig(t, up.URL, map[string]policy.GateSpec{"calls": {Quota: calls}, "tokens": {Quota: slowly(burst)}}, "calls", "tokens")
		cfg.Routes[0].Gates, cfg.Routes[0].Cost = []string{"calls", "tokens"}, 100
		g := start(t, cfg, Options{})
		if res, body := as(t, g, "alice"); !strings.HasPrefix(res.Header.Get("RateLimit"), want) {
			t.Errorf("of %d tokens: RateLimit %s, want %s: %s", burst, res.Header.Get("RateLimit"), want, body)
		}
	}
}

// What the gate of a target refuses takes nothing of the quotas; nor has it cost anything
// what could not be sent to any target, but it was a request.
func TestQuotaGivenBack(t *testing.T) {
	entered, hold := make(chan bool), make(chan bool)
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		entered <- true
		<-hold
	})
	left := func(g *running) string {
		var text []string
		for _, name := range []string{"calls", "tokens"} {
			d, err := g.Policy().Gate(name).Quota().Peek(t.Context(), weir.Work{})
			if err != nil {
				t.Error(err)
			}
			text = append(text, strconv.FormatFloat(math.Round(d.Remaining), 'f', -1, 64))
		}
		return strings.Join(text, " ")
	}
	begin := func(target string) *running {
		calls := slowly(10)
		calls.Count = "requests"
		cfg := quotaConfig(t, target, map[string]policy.GateSpec{"calls": {Quota: calls}, "tokens": {Quota: slowly(500)}}, "calls", "tokens")
		cfg.Routes[0].Gates, cfg.Routes[0].Cost = []string{"calls", "tokens"}, 100
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) {
			u.Limit = &policy.LimitSpec{Limit: 100, Queue: policy.QueueSpec{Len: -1}}
		})
		return start(t, cfg, Options{})
	}

	g := begin(up.URL)
	served := make(chan bool)
	go func() {
		as(t, g, "alice")
		served <- true
	}()
	<-entered
	res, body := as(t, g, "bob")
	if got := left(g); res.StatusCode != http.StatusServiceUnavailable || got != "9 400" {
		t.Errorf("refused by the target's gate: %d, %s left, want 9 400: %s", res.StatusCode, got, body)
	}
	if field := res.Header.Get("RateLimit"); !strings.HasPrefix(field, `"tokens/all";r=400;`) {
		t.Errorf("refused by the target's gate: RateLimit %s", field)
	}
	hold <- true
	<-served

	g = begin("http://127.0.0.1:1")
	res, body = as(t, g, "alice")
	if got := left(g); res.StatusCode != http.StatusBadGateway || got != "9 500" {
		t.Errorf("no connection: %d, %s left, want 9 500: %s", res.StatusCode, got, body)
	}
}

// The log says whose bucket it was: of the first refusal, and of the last one that a line
// sums up.
func TestQuotaRefusedInTheLog(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	spec := slowly(1)
	spec.By = []string{"user"}
	g := start(t, quotaConfig(t, up.URL, map[string]policy.GateSpec{"q": {Quota: spec}}, "q"), Options{})
	for _, user := range []string{"alice", "bob", "carol"} {
		as(t, g, user)
		as(t, g, user)
	}
	g.events.Flush()
	got := g.log.lines("refusing", "refused since")
	if len(got) != 2 || !strings.Contains(got[0], "q/user=alice") || !strings.Contains(got[1], "q/user=carol") {
		t.Errorf("%q", got)
	}
}

func within(number string, low, high int) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n >= low && n <= high
}

// checkRefusal checks that Retry-After is the document's time in whole seconds.
func checkRefusal(t *testing.T, name string, res *http.Response, body, rule string) {
	t.Helper()
	after, given := res.Header["Retry-After"]
	if res.StatusCode != http.StatusTooManyRequests {
		if given {
			t.Errorf("%s: Retry-After %s with status %d", name, after, res.StatusCode)
		}
		if rule == "" {
			return
		}
	}
	var p struct {
		Gate, Rule, Reason string
		After              int64 `json:"retry_after_ms"`
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil || p.Rule != rule || p.Gate == "" {
		t.Errorf("%s: %s (%v), want rule %s", name, body, err, rule)
	}
	if want := strconv.FormatInt((p.After+999)/1000, 10); given != (p.After > 0) || given && after[0] != want {
		t.Errorf("%s: Retry-After %s, the document says %d ms", name, after, p.After)
	}
	if field := res.Header.Get("RateLimit"); given && !strings.HasSuffix(field, ";t="+after[0]) {
		t.Errorf("%s: Retry-After %s, and yet RateLimit %s", name, after, field)
	}
}

// The headers of an answer are a matter of taste.
func TestQuotaHeaders(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "77")
		w.Header().Set("X-RateLimit-Reset", "1700000000")
	})
	f := func(words string, mode policy.Mode, current bool, legacy string) {
		t.Helper()
		spec := slowly(5)
		spec.Headers = words
		g := start(t, quotaConfig(t, up.URL, map[string]policy.GateSpec{"q": {Mode: mode, Quota: spec}}, "q"), Options{})
		res, _ := as(t, g, "alice")
		if got := res.Header.Get("RateLimit") != "" && res.Header.Get("RateLimit-Policy") != ""; got != current {
			t.Errorf("%q, %q: RateLimit %v, want %v: %v", words, mode, got, current, res.Header)
		}
		got := strings.Join(res.Header.Values("X-RateLimit-Limit"), ",") + " " + strings.Join(res.Header.Values("X-RateLimit-Remaining"), ",") +
			" " + strings.Join(res.Header.Values("X-RateLimit-Reset"), ",")
		if !regexp.MustCompile("^" + legacy + "$").MatchString(got) {
			t.Errorf("%q, %q: X-RateLimit %s, want %s", words, mode, got, legacy)
		}
	}
	const theirs, ours = "77  1700000000", `5 4 3[56]\d\d`
	f("", "", true, theirs)
	f("ratelimit", policy.Enforce, true, theirs)
	f("legacy", "", false, ours)
	f("both", "", true, ours)
	f("none", "", false, theirs)
	f("", policy.Observe, false, theirs) // nothing is enforced: there is nothing to tell
	f("", policy.Off, false, theirs)
}

// Trusted peers are told whose bucket it is; to others it may be somebody else's name.
func TestQuotaKeyInTheDocument(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	f := func(trusted []string, want string) {
		t.Helper()
		spec := slowly(1)
		spec.By = []string{"user"}
		cfg := quotaConfig(t, up.URL, map[string]policy.GateSpec{"q": {Quota: spec}}, "q")
		cfg.Identity.Trusted = trusted
		g := start(t, cfg, Options{})
		as(t, g, "alice")
		_, body := as(t, g, "alice")
		var p struct{ Gate, Rule, Key string }
		if err := json.Unmarshal([]byte(body), &p); err != nil || p.Gate != "q" || p.Rule != "user=*" || p.Key != want {
			t.Errorf("trusted %q: %s (%v), want key %q", trusted, body, err, want)
		}
	}
	f(nil, "q/user=alice") // this machine
	f([]string{}, "")
}

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

// A stream of events says at its end what it has cost, and its quota is settled by that. So does an answer in
// JSON. The slot of a stream is free by then. What breaks off costs what was charged, or more if it has said so.
func TestCostInTheEvents(t *testing.T) {
	t.Parallel()
	const usage = "data: {\"choices\":[],\"usage\":{\"total_tokens\":%d}}\n\n"
	for _, tt := range []struct {
		name, kind, stream string
		breaks             bool // the upstream ends it early
		left               float64
		ignored            uint64
	}{
		{"the last event before [DONE]", "text/event-stream; charset=utf-8", "data: {\"usage\":null}\n\n" + fmt.Sprintf(usage, 5) + fmt.Sprintf(usage, 30) + "data: [DONE]\n\n", false, 970, 0},
		{"the last that says so", "text/event-stream", fmt.Sprintf(usage, 250) + "event: stop\r\ndata: {}\r\n\r\n", false, 750, 0},
		{"several lines, and no empty one at the end", "text/event-stream", ": hello\rdata: {\"usage\":\rdata:{\"total_tokens\": 40}}\r", false, 960, 0},
		{"it says nothing", "text/event-stream", "data: {\"usage\":{\"total_tokens\":\"30\"}}\n\ndata: {\"total_tokens\":1}\n\ndata: [DONE]\n\n", false, 900, 1},
		{"events that are too long", "text/event-stream", "data: " + strings.Repeat(" ", 70_000) + "{\"usage\":{\"total_tokens\":1}}\n\ndata: {\"usage\":\ndata: " + strings.Repeat(" ", 65_000) + "\ndata: {\"total_tokens\":2}}\n\n" + fmt.Sprintf(usage, 60), false, 940, 0},
		{"it breaks off", "text/event-stream", fmt.Sprintf(usage, 5), true, 900, 0},
		{"it breaks off and was dear", "text/event-stream", fmt.Sprintf(usage, 500), true, 500, 0},
		{"it breaks off behind [DONE]", "text/event-stream", fmt.Sprintf(usage, 5) + "data: [DONE]\n\n", true, 995, 0},
		{"no stream of events", "text/plain", fmt.Sprintf(usage, 5), false, 900, 1},
		{"JSON", "application/json", `{"choices": [], "usage": {"total_tokens": 30}}`, false, 970, 0},
		{"JSON that says nothing", "application/json", `{"choices": [], "usage": null}`, false, 900, 1},
		{"JSON that is too long", "application/json", `{"text": "` + strings.Repeat("x", 70_000) + `", "usage": {"total_tokens": 30}}`, false, 900, 1},
		{"JSON that breaks off", "application/json", `{"usage": {"total_tokens": 500}`, true, 900, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := make(chan struct{})
			up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				for i := range tt.stream { // byte by byte, wherever that parts a line; the long ones in pieces
					if len(tt.stream) > 2000 {
						_, _ = io.WriteString(w, tt.stream)
						break
					}
					_, _ = io.WriteString(w, tt.stream[i:i+1])
					_ = http.NewResponseController(w).Flush()
				}
				_ = http.NewResponseController(w).Flush()
				<-next
				if tt.breaks {
					panic(http.ErrAbortHandler)
				}
			})
			cfg := quotaConfig(t, up.URL, map[string]policy.GateSpec{"tokens": {Quota: slowly(1000)}, "calls": {Quota: slowly(10)}}, "tokens", "calls")
			calls := cfg.Gates["calls"]
			calls.Quota.Count = "requests"
			cfg.Gates[gateName] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1, Count: "requests"}}
			cfg.Routes[0].Cost, cfg.Routes[0].SettleEvent = 100, "usage.total_tokens"
			g := start(t, cfg, Options{})
			left := func(gate string) float64 {
				d, err := g.Policy().Gate(gate).Quota().Peek(t.Context(), weir.Work{})
				if err != nil {
					t.Error(err)
				}
				return math.Round(d.Remaining)
			}
			res, err := http.Get(g.url)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(tt.kind, "text/event-stream") {
				eventually(t, "the slot of the stream is free", func() bool { return g.gate().InFlight == 0 })
			}
			if l := left("tokens"); l != 900 {
				t.Errorf("while it streams: %v left, want 900", l)
			}
			next <- struct{}{}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if string(body) != tt.stream || (err != nil) != tt.breaks {
				t.Errorf("the client got %.80q of %d bytes, %v", body, len(body), err)
			}
			g.idle()
			if tokens, calls := left("tokens"), left("calls"); tokens != tt.left || calls != 9 {
				t.Errorf("%v tokens and %v calls left, want %v and 9", tokens, calls, tt.left)
			}
			if n := g.Policy().Ignored().Settled; n != tt.ignored {
				t.Errorf("%d answers counted that did not say their cost, want %d", n, tt.ignored)
			}
		})
	}
}

// The upstream is asked for an answer that can be read, whatever the client asks for. One that is
// compressed all the same is counted, and an error is not. None counts twice, in whatever places it fails to say its cost.
func TestCostInACompressedAnswer(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Asked", fmt.Sprint(r.Header["Accept-Encoding"]))
		w.Header().Set("Content-Type", "application/json")
		switch w.Header().Set("Content-Encoding", "gzip"); r.URL.Path {
		case "/error":
			w.Header().Del("Content-Encoding")
			w.WriteHeader(http.StatusBadRequest)
		case "/nowhere":
			w.Header().Set("X-Actual-Cost", "much")
			w.Header().Set(http.TrailerPrefix+"X-Actual-Cost", "more")
		}
		_, _ = io.WriteString(w, `{"usage":{"total_tokens":30}}`)
	})
	cfg := quotaConfig(t, up.URL, map[string]policy.GateSpec{"tokens": {Quota: slowly(1000)}}, "tokens")
	cfg.Gates[gateName] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1, Count: "requests"}}
	cfg.Routes[0].Cost, cfg.Routes[0].SettleEvent, cfg.Routes[0].Settle = 100, "usage.total_tokens", "header:X-Actual-Cost"
	g := start(t, cfg, Options{})
	for path, ignored := range map[string]uint64{"/error": 0, "/": 1, "/nowhere": 1} {
		before := g.Policy().Ignored().Settled
		req, _ := http.NewRequest(http.MethodGet, g.url+path, nil)
		req.Header.Set("Accept-Encoding", "gzip, br")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(res.Body); err != nil {
			t.Error(err)
		}
		res.Body.Close()
		g.idle()
		if n := g.Policy().Ignored().Settled - before; n != ignored || res.Header.Get("Asked") != "[identity]" {
			t.Errorf("%s: %d counted, want %d; the upstream is asked for %s", path, n, ignored, res.Header.Get("Asked"))
		}
	}
}

// The trailer of a stream settles it as well.
func TestCostInTheTrailerOfAStream(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: x\n\n")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+"X-Actual-Cost", "40")
	})
	cfg := quotaConfig(t, up.URL, map[string]policy.GateSpec{"tokens": {Quota: slowly(1000)}}, "tokens")
	cfg.Gates[gateName] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1, Count: "requests"}}
	cfg.Routes[0].Cost, cfg.Routes[0].Settle = 100, "header:X-Actual-Cost"
	g := start(t, cfg, Options{})
	res, err := http.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Error(err)
	}
	res.Body.Close()
	g.idle()
	d, err := g.Policy().Gate("tokens").Quota().Peek(t.Context(), weir.Work{})
	if err != nil || math.Round(d.Remaining) != 960 {
		t.Errorf("%v left, %v; want 960", d.Remaining, err)
	}
}
