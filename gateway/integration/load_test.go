//go:build integration

package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

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
