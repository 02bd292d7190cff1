package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
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
	each.Rules = []policy.QuotaRuleSpec{{User: "root", Exempt: true}, {Name: "banned", User: "mallory", Blocked: true}}
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

	g = begin("http://" + closedPort(t))
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
	g.notes.sumUp()
	got := g.log.lines("refusing")
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
