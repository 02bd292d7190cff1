//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// Three times the load that the pool can carry: what is admitted is in time,
// what is refused is told so and when to come back, and nothing stays behind.
func TestOverload(t *testing.T) {
	const workers, mean, lasts = 8, 40, 4 * time.Second
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	rate := 3 * up.capacity(mean)

	all := attack(g.url+"/work?law=exp&ms="+strconv.Itoa(mean), rate, lasts, vegeta.Timeout(3*time.Second)).wait()

	ok, refused := split(all)
	p99 := quantile(ok, 0.99)
	most := float64(up.capacity(mean)) * lasts.Seconds()
	t.Logf("offered %d/s for %v to a pool of %d/s: %d served (%.2f of capacity), p50 %v p99 %v; %d refused, p99 %v",
		rate, lasts, up.capacity(mean), len(ok), float64(len(ok))/most, quantile(ok, 0.5), p99, len(refused), quantile(refused, 0.99))
	if p99 > deadline {
		t.Errorf("p99 of what was admitted is %v, the deadline %v", p99, deadline)
	}
	if float64(len(ok)) < 0.6*most {
		t.Errorf("%d served, of %.0f that the pool could do", len(ok), most)
	}
	if len(refused) < len(all)/3 {
		t.Errorf("%d of %d refused; at three times the capacity it should be about two thirds", len(refused), len(all))
	}
	for _, r := range refused {
		if why := badRefusal(r); why != "" {
			t.Fatalf("%s: %s\n%s", why, tally([]*vegeta.Result{r}), r.Body)
		}
	}
	g.idle(t)
}

// badRefusal says what is wrong with an answer that should be a refusal.
func badRefusal(r *vegeta.Result) string {
	if r.Code != 503 {
		return "not a 503"
	}
	if s, err := strconv.Atoi(r.Headers.Get("Retry-After")); err != nil || s < 1 {
		return "Retry-After " + strconv.Quote(r.Headers.Get("Retry-After")) + " is no number of seconds"
	}
	if ct := r.Headers.Get("Content-Type"); !strings.HasPrefix(ct, "application/problem+json") {
		return "Content-Type is " + ct
	}
	var problem struct {
		Status int
		Gate   string
	}
	if err := json.Unmarshal(r.Body, &problem); err != nil {
		return "the body is no JSON: " + err.Error()
	}
	if problem.Status != 503 || problem.Gate != "app" {
		return "the body does not name status and gate"
	}
	return ""
}

// The same with nothing but flags.
func TestOverloadDefaults(t *testing.T) {
	const workers, mean = 8, 25
	up := startGunicorn(t, workers)
	g := startDefault(t, up.addr, "--limit", strconv.Itoa(workers))
	all := attack(g.url+"/work?ms="+strconv.Itoa(mean), 3*up.capacity(mean), 3*time.Second).wait()
	ok, refused := split(all)
	t.Logf("%d served, p99 %v; %d refused", len(ok), quantile(ok, 0.99), len(refused))
	if len(ok) == 0 || len(refused) == 0 {
		t.Errorf("want some served and some refused:\n%s", tally(all))
	}
	for _, r := range refused {
		if r.Code != 503 || r.Headers.Get("Retry-After") == "" {
			t.Fatalf("a refusal without 503 and Retry-After: %s", tally([]*vegeta.Result{r}))
		}
	}
	g.idle(t)
}

// Below its capacity the pool hardly notices that there is a gate.
func TestNoOverload(t *testing.T) {
	const workers, mean = 8, 25
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	all := attack(g.url+"/work?ms="+strconv.Itoa(mean), up.capacity(mean)/2, 3*time.Second).wait()
	allOK(t, all)
	g.idle(t)
}

// A fast upstream at a rate that two cores can do: everything is served.
func TestSpeed(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, 64))
	direct := attack("http://"+up.addr+"/hello", 1500, 2*time.Second, vegeta.Connections(100)).wait()
	guarded := attack(g.url+"/hello", 1500, 2*time.Second, vegeta.Connections(100)).wait()
	t.Logf("direct p50 %v p99 %v; through weir p50 %v p99 %v",
		quantile(direct, 0.5), quantile(direct, 0.99), quantile(guarded, 0.5), quantile(guarded, 0.99))
	allOK(t, direct)
	allOK(t, guarded)
	g.idle(t)
}

// load is an open-loop attack under way.
type load struct {
	stop func() bool
	all  []*vegeta.Result
	wg   sync.WaitGroup
}

// attack begins to send requests to url at a steady rate, whatever becomes of
// them.
func attack(url string, rate int, d time.Duration, opts ...func(*vegeta.Attacker)) *load {
	opts = append([]func(*vegeta.Attacker){
		vegeta.Timeout(10 * time.Second), vegeta.KeepAlive(true), vegeta.MaxBody(1 << 10), vegeta.Workers(64),
	}, opts...)
	a := vegeta.NewAttacker(opts...)
	target := vegeta.NewStaticTargeter(vegeta.Target{Method: "GET", URL: url})
	l := &load{stop: a.Stop}
	results := a.Attack(target, vegeta.Rate{Freq: rate, Per: time.Second}, d, "load")
	l.wg.Go(func() {
		for r := range results {
			l.all = append(l.all, r)
		}
	})
	return l
}

// wait waits for the last answer.
func (l *load) wait() []*vegeta.Result {
	l.wg.Wait()
	return l.all
}

// split sorts results into answers with status 200 and the rest.
func split(all []*vegeta.Result) (ok, rest []*vegeta.Result) {
	for _, r := range all {
		if r.Code == 200 && r.Error == "" {
			ok = append(ok, r)
		} else {
			rest = append(rest, r)
		}
	}
	return ok, rest
}

// quantile is the p-quantile of the results' latencies.
func quantile(rs []*vegeta.Result, p float64) time.Duration {
	if len(rs) == 0 {
		return 0
	}
	lat := make([]time.Duration, len(rs))
	for i, r := range rs {
		lat[i] = r.Latency
	}
	slices.Sort(lat)
	return lat[min(int(p*float64(len(lat))), len(lat)-1)]
}

// tally prints results by what they were.
func tally(rs []*vegeta.Result) string {
	counts := map[string]int{}
	for _, r := range rs {
		counts[strings.TrimSpace(fmt.Sprintf("%d %s", r.Code, r.Error))]++
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%6d  %s\n", counts[k], k)
	}
	return b.String()
}

// allOK fails the test unless every result is a 200.
func allOK(t *testing.T, rs []*vegeta.Result) {
	t.Helper()
	if len(rs) == 0 {
		t.Fatal("nothing was sent")
	}
	if _, rest := split(rs); len(rest) > 0 {
		t.Errorf("%d of %d requests failed:\n%s", len(rest), len(rs), tally(rest))
	}
}
