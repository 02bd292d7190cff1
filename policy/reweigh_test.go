package policy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// line is a crowd that waits at a gate of one slot, and who has been served.
type line struct {
	t      *testing.T
	served []string
	slot   weir.Permit
}

func (l *line) wait(g *Gate, n int, who string, w weir.Work) {
	l.t.Helper()
	for range n {
		_, _, err := g.Arrive(w, func(p weir.Permit, err error) {
			if err != nil {
				l.t.Errorf("%s: %v", who, err)
				return
			}
			l.served, l.slot = append(l.served, who), p
		})
		if err != weir.ErrWaiting {
			l.t.Fatalf("%s does not wait: %v", who, err)
		}
	}
}

// serve serves the next n.
func (l *line) serve(n int) string {
	from := len(l.served)
	for range n {
		l.slot.Done(weir.OK)
	}
	return strings.Join(l.served[from:], "")
}

func crowdSpec(q QueueSpec, each *EachSpec) Spec {
	q.MaxWait, q.Order = Duration(time.Hour), "fifo"
	return Spec{Gates: map[string]GateSpec{"api": {Limit: &LimitSpec{Limit: 1, Queue: q}, Each: each}}}
}

// A reload changes who gets how much of those that wait already: weights of tenants
// and users, and what a class is promised; with one limit, with one for each key, and
// with a limiter for each.
func TestReloadWhileRequestsWait(t *testing.T) {
	for name, each := range map[string]*EachSpec{"one limit": nil, "each": {By: "route"}, "each its own": {By: "route", Own: true}} {
		t.Run(name, func(t *testing.T) { reloadWhileRequestsWait(t, each) })
	}
}

func reloadWhileRequestsWait(t *testing.T, each *EachSpec) {
	tenant := func(name string) weir.Work { return weir.Work{User: "u", Tenant: name} }
	for _, tt := range []struct {
		name   string
		a, b   weir.Work
		before QueueSpec
		after  QueueSpec
		// Of the first twelve that are served, how many are a's; and of as many after the reload.
		first, then int
	}{
		{"tenants", tenant("a"), tenant("b"), QueueSpec{}, QueueSpec{Weights: WeightsSpec{Tenants: map[string]float64{"a": 3}}}, 6, 9},
		{"users", weir.Work{User: "a"}, weir.Work{User: "b"}, QueueSpec{Weights: WeightsSpec{Users: map[string]float64{"b": 3}}}, QueueSpec{}, 3, 6},
		{"shares", weir.Work{Priority: weir.Background}, weir.Work{Priority: weir.High}, QueueSpec{}, QueueSpec{Shares: map[string]float64{"background": 0.25}}, 0, 3},
		{"no shares", weir.Work{Priority: weir.Background}, weir.Work{Priority: weir.High}, QueueSpec{Shares: map[string]float64{"background": 0.5}}, QueueSpec{}, 6, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old := must(t, crowdSpec(tt.before, each), Options{})
				g := old.Gate("api")
				l := &line{t: t, slot: admit(t, g)}
				l.wait(g, 40, "a", tt.a)
				l.wait(g, 40, "b", tt.b)
				if got := l.serve(12); near(strings.Count(got, "a"), tt.first) > 1 {
					t.Errorf("before the reload %s, want %d of a", got, tt.first)
				}
				next := must(t, crowdSpec(tt.after, each), Options{Previous: old})
				old.Retire(next)
				if next.Gate("api") != g || g.Snapshot().Waiting != 68 {
					t.Fatalf("after the reload %d wait", g.Snapshot().Waiting)
				}
				if got := l.serve(12); near(strings.Count(got, "a"), tt.then) > 1 {
					t.Errorf("after the reload %s, want %d of a", got, tt.then)
				}
				l.serve(56)
				if len(l.served) != 80 {
					t.Errorf("%d of 80 were served", len(l.served))
				}
				l.slot.Done(weir.OK)
				next.Close()
			})
		})
	}
}

func near(a, b int) int { return max(a-b, b-a) }
