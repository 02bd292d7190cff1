//go:build integration

package integration

import (
	"encoding/json"
	"strconv"
	"strings"
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
