//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/weir-go/weir/gateway/internal/await"
)

// Three times the load that the pool can carry: what is admitted is in time,
// what is refused is told so and when to come back, and nothing stays behind.
func TestOverload(t *testing.T) {
	const workers, mean, lasts = 8, 40, 4 * time.Second
	up := startGunicorn(t, workers)
	g := startGateway(t, hurried(gatewayConfig(up.addr, workers)))
	rate := 3 * up.capacity(mean)

	machine := measure(t)
	all := attack(g.url+"/work?law=exp&ms="+strconv.Itoa(mean), rate, lasts).wait()
	slow := machine.slow()

	ok, refused := split(all)
	p99 := quantile(ok, 0.99)
	most := float64(up.capacity(mean)) * lasts.Seconds()
	t.Logf("offered %d/s for %v to a pool of %d/s: %d served (%.2f of capacity), p50 %v p99 %v; %d refused, p99 %v",
		rate, lasts, up.capacity(mean), len(ok), float64(len(ok))/most, quantile(ok, 0.5), p99, len(refused), quantile(refused, 0.99))
	if slow != "" {
		t.Logf("the figures are not judged: %s", slow)
	} else {
		if p99 > deadline {
			t.Errorf("p99 of what was admitted is %v, the deadline %v", p99, deadline)
		}
		if float64(len(ok)) < 0.6*most {
			t.Errorf("%d served, of %.0f that the pool could do", len(ok), most)
		}
		if len(refused) < len(all)/3 {
			t.Errorf("%d of %d refused; at three times the capacity it should be about two thirds", len(refused), len(all))
		}
	}
	if len(ok) == 0 {
		t.Error("nothing was served")
	}
	for _, r := range refused {
		if slow != "" && r.Code == http.StatusGatewayTimeout {
			continue // it was admitted, and the machine made it late
		}
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
		return "Retry-After " + strconv.Quote(r.Headers.Get("Retry-After")) + " is not a number of seconds"
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
	machine := measure(t)
	all := attack(g.url+"/work?ms="+strconv.Itoa(mean), 3*up.capacity(mean), 3*time.Second).wait()
	slow := machine.slow()
	ok, refused := split(all)
	t.Logf("%d served, p99 %v; %d refused; %s", len(ok), quantile(ok, 0.99), len(refused), slow)
	if len(ok) == 0 || slow == "" && len(refused) == 0 {
		t.Errorf("want some served and some refused:\n%s", tally(all))
	}
	for _, r := range refused {
		if r.Code != 503 || r.Headers.Get("Retry-After") == "" {
			t.Fatalf("a refusal without 503 and Retry-After: %s", tally([]*vegeta.Result{r}))
		}
	}
	g.idle(t)
}

// Clients that ask for less at a time than the pool can do notice no gate, however fast
// they ask.
func TestNoOverload(t *testing.T) {
	const workers, mean = 8, 25
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	l := keepAsking(g.url+"/work?ms="+strconv.Itoa(mean), workers/2)
	eventually(t, "300 have been admitted", func() bool { return g.gate(t, "app").Admitted >= 300 })
	l.stop()
	allOK(t, l.wait())
	g.idle(t)
}

// A fast upstream, and clients as fast as this machine can: everything is served.
func TestSpeed(t *testing.T) {
	const clients, requests = 64, 3000
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, clients))
	for name, url := range map[string]string{"direct": "http://" + up.addr, "through weir": g.url} {
		begun := time.Now()
		all := ask(url+"/hello", clients, requests)
		t.Logf("%s: %.0f a second, p50 %v p99 %v", name, float64(len(all))/time.Since(begun).Seconds(), quantile(all, 0.5), quantile(all, 0.99))
		if len(all) != requests {
			t.Errorf("%s: %d were sent, want %d", name, len(all), requests)
		}
		allOK(t, all)
	}
	g.idle(t)
	if n := g.gate(t, "app").Admitted; n != requests {
		t.Errorf("%d admitted, want %d", n, requests)
	}
}

// machine is what else is going on: a pool of one worker, asked all the time for work of
// known length. What it takes beyond that is the machine's own.
type machine struct {
	stop chan struct{}
	over chan time.Duration // the mean, when it is over
}

// known is how long that work takes. A machine that adds a quarter to it cannot be told
// from a gateway that does.
const known = 40 * time.Millisecond

// measure begins to watch the machine.
func measure(t *testing.T) *machine {
	t.Helper()
	url := fmt.Sprintf("http://%s/work?ms=%d", startGunicorn(t, 1).addr, known.Milliseconds())
	m := &machine{stop: make(chan struct{}), over: make(chan time.Duration, 1)}
	go func() {
		begun, n := time.Now(), time.Duration(0)
		for {
			select {
			case <-m.stop:
				m.over <- time.Since(begun)/max(n, 1) - known
				return
			default:
			}
			if _, err := fetch(url); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	return m
}

// slow ends the measurement. It says why figures of these seconds prove nothing, or
// nothing if they do.
func (m *machine) slow() string {
	close(m.stop)
	if over := <-m.over; over > known/4 {
		return fmt.Sprintf("work of %v took %v longer beside it, without a gateway: the machine is busy", known, over)
	}
	return ""
}

// load is requests under way.
type load struct {
	stop func() bool
	all  []*vegeta.Result
	wg   sync.WaitGroup
}

// attack begins to send requests to url at a steady rate, whatever becomes of
// them.
func attack(url string, rate int, d time.Duration) *load {
	return send(url, vegeta.Rate{Freq: rate, Per: time.Second}, d, vegeta.Workers(64))
}

// steadily is attack by so many clients at most, for a minute. A machine that stands still has them ask late, and not all
// at once.
func steadily(url string, rate int, clients uint64) *load {
	return send(url, vegeta.Rate{Freq: rate, Per: time.Second}, time.Minute, vegeta.Workers(clients), vegeta.MaxWorkers(clients))
}

// keepAsking has so many clients ask for url, each anew when it has its answer, until it
// is told to stop: as fast as the machine can, and never more at a time.
func keepAsking(url string, clients uint64) *load {
	return send(url, vegeta.Rate{}, 0, vegeta.Workers(clients), vegeta.MaxWorkers(clients))
}

// ask is keepAsking until so many requests were sent. It returns their answers.
func ask(url string, clients, requests uint64) []*vegeta.Result {
	return send(url, hits(requests), 0, vegeta.Workers(clients), vegeta.MaxWorkers(clients)).wait()
}

// hits is a pace as fast as can be that ends after so many.
type hits uint64

func (n hits) Pace(_ time.Duration, sent uint64) (time.Duration, bool) { return 0, sent >= uint64(n) }

func (n hits) Rate(time.Duration) float64 { return math.Inf(1) }

func send(url string, pace vegeta.Pacer, d time.Duration, opts ...func(*vegeta.Attacker)) *load {
	opts = append([]func(*vegeta.Attacker){vegeta.Timeout(await.Patience), vegeta.KeepAlive(true), vegeta.MaxBody(1 << 10)}, opts...)
	a := vegeta.NewAttacker(opts...)
	results := a.Attack(vegeta.NewStaticTargeter(vegeta.Target{Method: "GET", URL: url}), pace, d, "load")
	l := &load{stop: a.Stop}
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
