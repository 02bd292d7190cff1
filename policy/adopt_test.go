package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/shed"
)

func must(t *testing.T, spec Spec, opts Options) *Policy {
	t.Helper()
	p, err := Compile(spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func apiSpec(l LimitSpec) Spec {
	return Spec{Gates: map[string]GateSpec{"api": {Limit: &l}}, Routes: []RouteSpec{{Name: "r", Match: []string{"/"}, Gates: []string{"api"}}}}
}

func TestAdoptionKeepsWhatIsInFlightAndWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := must(t, apiSpec(LimitSpec{Limit: 2}), Options{})
		g := old.Route("r").Gate()
		a, b := admit(t, g), admit(t, g)
		waited := make(chan error, 1)
		go func() {
			p, err := g.Admit(t.Context(), weir.Work{})
			p.Done(weir.OK)
			waited <- err
		}()
		synctest.Wait()

		next := must(t, apiSpec(LimitSpec{Limit: 1}), Options{Previous: old})
		old.Replace(next)
		old.Replace(nil) // the first word counts
		s := next.Gate("api").Snapshot()
		if s.Limit != 1 || s.InFlight != 2 || s.Waiting != 1 {
			t.Fatalf("after lowering: limit %d, in flight %d, waiting %d; want 1, 2, 1", s.Limit, s.InFlight, s.Waiting)
		}
		a.Done(weir.OK)
		synctest.Wait()
		if s := next.Gate("api").Snapshot(); s.InFlight != 1 || s.Waiting != 1 {
			t.Fatalf("shrinking granted a slot: in flight %d, waiting %d", s.InFlight, s.Waiting)
		}
		last := must(t, apiSpec(LimitSpec{Limit: 3}), Options{Previous: next})
		next.Replace(last)
		if err := <-waited; err != nil {
			t.Errorf("the waiter was not woken by a higher limit: %v", err)
		}
		b.Done(weir.OK)
		if s := last.Gate("api").Snapshot(); s.InFlight != 0 || s.Admitted != 3 {
			t.Errorf("at the end %d in flight, %d admitted; want 0, 3", s.InFlight, s.Admitted)
		}
		time.Sleep(time.Hour) // whatever Replace has planned
		if _, err := last.Route("r").Gate().Admit(t.Context(), weir.Work{}); err != nil {
			t.Errorf("an adopted gate was closed with the policy it came from: %v", err)
		}
		last.Close()
	})
}

func TestAdoptionKeepsWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aimd := LimitSpec{Controller: "aimd", Limit: 40, Max: 100, MinSamples: 1}
		old := must(t, apiSpec(aimd), Options{})
		old.Gate("api").Limiter().Restore(control.State{Limit: 73})
		aimd.Threshold = Duration(time.Second)
		next := must(t, apiSpec(aimd), Options{Previous: old})
		old.Replace(next)
		if s := next.Gate("api").Snapshot(); s.Limit != 73 {
			t.Errorf("limit is %d after a change of the threshold, want the learned 73", s.Limit)
		}
		aimd.Limit, aimd.Max = 0, 50
		last := must(t, apiSpec(aimd), Options{Previous: next})
		next.Replace(last)
		if s := last.Gate("api").Snapshot(); s.Limit != 50 {
			t.Errorf("limit is %d with a max of 50", s.Limit)
		}
		last.Close()
	})
}

func TestAdoptionChangesTheMode(t *testing.T) {
	spec := apiSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Len: -1}})
	old := compile(t, spec, Options{})
	held := admit(t, old.Route("r").Gate())
	gate := spec.Gates["api"]
	gate.Mode = Observe
	spec.Gates["api"] = gate
	var observed int
	next := compile(t, spec, Options{Previous: old, Observed: func(weir.Work, *weir.Rejection) { observed++ }})
	old.Replace(next)
	if next.Gate("api") != old.Gate("api") || next.Gate("api").Mode() != Observe {
		t.Fatalf("mode is %s", next.Gate("api").Mode())
	}
	if _, err := next.Route("r").Gate().Admit(t.Context(), weir.Work{}); err != nil || observed != 1 {
		t.Errorf("observing: %v, the new hook heard of %d", err, observed)
	}

	gate.Mode = Enforce
	spec.Gates["api"] = gate
	last := compile(t, spec, Options{Previous: next})
	next.Replace(last)
	if _, err := last.Route("r").Gate().Admit(t.Context(), weir.Work{}); weir.AsRejection(err) == nil {
		t.Errorf("enforcing again: %v", err)
	}
	held.Done(weir.OK)
}

func TestAFaultChangesNothing(t *testing.T) {
	old := compile(t, apiSpec(LimitSpec{Limit: 5}), Options{})
	spec := apiSpec(LimitSpec{Limit: 9})
	spec.Gates["other"] = GateSpec{Limit: &LimitSpec{Controller: "fixed"}}
	if _, err := Compile(spec, Options{Previous: old}); err == nil {
		t.Fatal("no error")
	}
	if s := old.Gate("api").Snapshot(); s.Limit != 5 {
		t.Errorf("limit is %d, want 5 as before", s.Limit)
	}
	if _, err := old.Route("r").Gate().Admit(t.Context(), weir.Work{}); err != nil {
		t.Errorf("the old policy refuses: %v", err)
	}
}

func TestReplaceServesWhatIsUnderWayThenCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := must(t, apiSpec(LimitSpec{Limit: 1}), Options{})
		chain := old.Route("r").Gate()
		held := admit(t, chain)
		waited := make(chan error, 1)
		go func() {
			p, err := chain.Admit(t.Context(), weir.Work{})
			p.Done(weir.OK)
			waited <- err
		}()
		synctest.Wait()

		next := must(t, Spec{}, Options{Previous: old})
		old.Replace(next)
		time.Sleep(900 * time.Millisecond)
		held.Done(weir.OK)
		if err := <-waited; err != nil {
			t.Errorf("work that waited over the reload was refused: %v", err)
		}
		if _, err := chain.Admit(t.Context(), weir.Work{}); err != nil {
			t.Errorf("work on its way over the reload was refused: %v", err)
		}
		time.Sleep(2 * time.Second)
		_, err := chain.Admit(t.Context(), weir.Work{})
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDraining {
			t.Errorf("the gate that is gone was not closed: %v", err)
		}
	})
}

func TestReplaceWaitsAsLongAsTheRoomAllows(t *testing.T) {
	for _, tt := range []struct {
		maxWait Duration
		open    time.Duration
	}{
		{0, 3 * time.Second},
		{Duration(5 * time.Second), 6 * time.Second},
		{Duration(time.Hour), 30 * time.Second},
		{NoDuration, 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := must(t, apiSpec(LimitSpec{Limit: 1, Queue: QueueSpec{MaxWait: tt.maxWait}}), Options{})
			p.Replace(nil)
			time.Sleep(tt.open - time.Millisecond)
			if _, err := p.Gate("api").TryAdmit(weir.Work{}); err != nil {
				t.Errorf("max_wait %v: closed before %v: %v", tt.maxWait, tt.open, err)
			}
			time.Sleep(2 * time.Millisecond)
			if _, err := p.Gate("api").TryAdmit(weir.Work{}); weir.AsRejection(err).Reason != weir.ReasonDraining {
				t.Errorf("max_wait %v: still open after %v: %v", tt.maxWait, tt.open, err)
			}
		})
	}
}

func TestReplaceOnVirtualTimeClosesAtOnce(t *testing.T) {
	p := must(t, apiSpec(LimitSpec{Limit: 1}), Options{Now: func() time.Duration { return 0 }})
	next := must(t, apiSpec(LimitSpec{Limit: 1}), Options{Previous: p})
	defer next.Close()
	if next.Gate("api") == p.Gate("api") {
		t.Error("a gate was adopted from one clock to another")
	}
	p.Replace(next)
	if _, err := p.Gate("api").TryAdmit(weir.Work{}); weir.AsRejection(err) == nil {
		t.Error("still open")
	}
}

func TestHooksAreTheNewPolicys(t *testing.T) {
	var before, after []string
	hooks := func(heard *[]string) weir.Hooks {
		return weir.Hooks{
			Admitted:     func(gate string, _ weir.Work, _ time.Duration) { *heard = append(*heard, "admitted "+gate) },
			Rejected:     func(_ weir.Work, r *weir.Rejection) { *heard = append(*heard, "rejected "+r.Gate) },
			Done:         func(gate string, o weir.Outcome, _ time.Duration) { *heard = append(*heard, "done "+o.String()) },
			LimitChanged: func(gate string, from, to int64, _ string) { *heard = append(*heard, fmt.Sprint(from, " to ", to)) },
		}
	}
	old := compile(t, apiSpec(LimitSpec{Limit: 1}), Options{Hooks: hooks(&before)})
	held := admit(t, old.Gate("api"))
	next := compile(t, apiSpec(LimitSpec{Limit: 2}), Options{Hooks: hooks(&after), Previous: old})
	old.Replace(next)
	admit(t, next.Gate("api")).Done(weir.Failed)
	held.Done(weir.OK)
	if got := strings.Join(before, ", "); got != "admitted api" {
		t.Errorf("the old hooks heard: %s", got)
	}
	if got := strings.Join(after, ", "); got != "1 to 2, admitted api, done failed, done ok" {
		t.Errorf("the new hooks heard: %s", got)
	}
}

func TestCloseAfterReplace(t *testing.T) {
	spec := apiSpec(LimitSpec{Limit: 1, Queue: QueueSpec{MaxWait: NoDuration}})
	spec.Gates["gone"] = waiting(1)
	old := compile(t, spec, Options{})
	delete(spec.Gates, "gone")
	next := compile(t, spec, Options{Previous: old})
	old.Replace(next)
	old.Close()
	if _, err := old.Gate("gone").TryAdmit(weir.Work{}); weir.AsRejection(err) == nil {
		t.Error("Close left a gate open that is gone")
	}
	if _, err := next.Gate("api").TryAdmit(weir.Work{}); err != nil {
		t.Errorf("Close closed a gate that lives on: %v", err)
	}
	if err := old.Drain(t.Context()); err != nil {
		t.Errorf("Drain waits for a gate that lives on: %v", err)
	}
}

func TestClosedGatesAreNotAdopted(t *testing.T) {
	old := compile(t, apiSpec(LimitSpec{Limit: 1}), Options{})
	old.Close()
	next := compile(t, apiSpec(LimitSpec{Limit: 1}), Options{Previous: old})
	if _, err := next.Gate("api").TryAdmit(weir.Work{}); err != nil || next.Gate("api") == old.Gate("api") {
		t.Errorf("a closed gate was adopted: %v", err)
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := must(t, apiSpec(LimitSpec{Limit: 1}), Options{})
		permit := admit(t, p.Route("r").Gate())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Drain(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `gate "api"`) || !strings.Contains(err.Error(), "1 ") {
			t.Errorf("error does not say what is still out: %v", err)
		}
		time.AfterFunc(time.Second, func() { permit.Done(weir.OK) })
		if err := p.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestReloadsUnderLoadRefuseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		current := must(t, apiSpec(LimitSpec{Limit: 4}), Options{})
		var load sync.WaitGroup
		for range 20 {
			load.Go(func() {
				for range 50 {
					mu.Lock()
					p := current
					mu.Unlock()
					rt, w := p.Match(get("/"))
					time.Sleep(time.Millisecond) // between the match and the gate
					permit, err := rt.Gate().Admit(t.Context(), w)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
					permit.Done(weir.OK)
				}
			})
		}
		for i := range 40 {
			time.Sleep(5 * time.Millisecond)
			spec := apiSpec(LimitSpec{Limit: int64(2 + i%5)})
			if i%4 == 3 { // the gate goes, and comes back as another one
				spec = Spec{Routes: []RouteSpec{{Match: []string{"/"}}}}
			}
			next := must(t, spec, Options{Previous: current})
			mu.Lock()
			old := current
			current = next
			mu.Unlock()
			old.Replace(next)
		}
		load.Wait()
		current.Close()
	})
}

func TestSaveAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := apiSpec(LimitSpec{Controller: "aimd", Max: 100})
		spec.Gates["fixed"] = fixed(7)
		p := must(t, spec, Options{})
		p.Gate("api").Limiter().Restore(control.State{Limit: 61.5})
		text, err := json.Marshal(p.Save())
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		var saved Saved
		if err := json.Unmarshal(text, &saved); err != nil {
			t.Fatal(err)
		}
		if len(saved.Gates) != 1 || saved.Gates["api"].Controller != "aimd" {
			t.Fatalf("saved %s, want the gate that learns", text)
		}
		time.Sleep(time.Minute)

		limitAfter := func(spec Spec, s Saved, maxAge time.Duration) (int64, []string, error) {
			p := must(t, spec, Options{})
			defer p.Close()
			names, err := p.Restore(s, maxAge)
			return p.Gate("api").Snapshot().Limit, names, err
		}
		if n, names, err := limitAfter(spec, saved, time.Hour); n != 61 || len(names) != 1 || err != nil {
			t.Errorf("limit %d, restored %v: %v; want 61", n, names, err)
		}
		if n, _, err := limitAfter(spec, saved, 0); n != 61 || err != nil {
			t.Errorf("of any age: limit %d: %v", n, err)
		}
		if n, names, err := limitAfter(spec, saved, 30*time.Second); n != 20 || names != nil || err == nil || !strings.Contains(err.Error(), "1m0s old") {
			t.Errorf("too old: limit %d, restored %v: %v", n, names, err)
		}
		future := saved
		future.At = time.Now().Add(time.Hour)
		if n, _, err := limitAfter(spec, future, 0); n != 20 || err == nil {
			t.Errorf("from the future: limit %d: %v", n, err)
		}
		if n, names, err := limitAfter(apiSpec(LimitSpec{Limit: 5}), saved, 0); n != 5 || names != nil || err != nil {
			t.Errorf("another controller: limit %d, restored %v: %v", n, names, err)
		}
		if n, names, err := limitAfter(spec, Saved{At: time.Now()}, 0); n != 20 || names != nil || err != nil {
			t.Errorf("nothing saved: limit %d, restored %v: %v", n, names, err)
		}
	})
}

// A callback runs under no lock, so it may call the policy again.
func TestReplaceOnVirtualTimeHoldsNoLock(t *testing.T) {
	p := must(t, Spec{Gates: map[string]GateSpec{"api": waiting(1)},
		Routes: []RouteSpec{{Name: "r", Gates: []string{"api"}}}}, Options{Now: func() time.Duration { return 0 }})
	g := p.Route("r").Gate()
	admit(t, g)
	var refused error
	_, _, err := g.(weir.Arriver).Arrive(weir.Work{}, func(_ weir.Permit, err error) {
		refused = err
		p.Close()
	})
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	p.Replace(nil)
	if r := weir.AsRejection(refused); r == nil || r.Reason != weir.ReasonDraining {
		t.Errorf("refused with %v", refused)
	}
}

// Reloads of limiters for each key, and of pairs of them, refuse nothing while
// requests come, those on their way to a gate that has become another kind included.
func TestOwnReloadsUnderLoadRefuseNothing(t *testing.T) {
	specs := []Spec{
		ownSpec(LimitSpec{Limit: 4}, EachSpec{MaxKeys: 50}),
		ownSpec(LimitSpec{Limit: 2}, EachSpec{MaxKeys: 4, Overrides: map[string]OverrideSpec{"t1": {Limit: 1}}}),
		ownSpec(LimitSpec{Controller: "probe", Probe: ProbeSpec{ReadWrite: true}}, EachSpec{}),
		pairSpec(LimitSpec{}, nil),
		databases(3, EachSpec{}),
	}
	for i := range specs {
		specs[i].Identity.Tenant = "header:X-Tenant"
		specs[i].Routes = []RouteSpec{{Match: []string{"/"}, Gates: []string{"db"}}}
		l := *specs[i].Gates["db"].Limit
		l.Queue = QueueSpec{}
		g := specs[i].Gates["db"]
		g.Limit = &l
		specs[i].Gates["db"] = g
	}
	synctest.Test(t, func(t *testing.T) {
		var current atomic.Pointer[Policy]
		current.Store(must(t, specs[0], Options{}))
		var load sync.WaitGroup
		for i := range 12 {
			load.Go(func() {
				for n := range 40 {
					r := from("127.0.0.1:1", fmt.Sprintf("X-Tenant: t%d", (i+n)%4))
					if n%2 == 0 {
						r.Method = "POST"
					}
					rt, w := current.Load().Match(r)
					time.Sleep(time.Millisecond) // between the match and the gate
					permit, err := rt.Gate().Admit(t.Context(), w)
					if err != nil {
						t.Errorf("%s: %v", w.Tenant, err)
						return
					}
					time.Sleep(time.Millisecond)
					permit.Done(0)
				}
			})
		}
		for i := range 30 {
			time.Sleep(5 * time.Millisecond)
			old := current.Load()
			next := must(t, specs[(i*i+i/2)%len(specs)], Options{Previous: old})
			current.Store(next)
			old.Replace(next)
		}
		load.Wait()
		current.Load().Close()
		time.Sleep(time.Minute)
	})
}

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

// finish ends the work n times, and says who came in instead.
func (l *line) finish(n int) string {
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
				if got := l.finish(12); near(strings.Count(got, "a"), tt.first) > 1 {
					t.Errorf("before the reload %s, want %d of a", got, tt.first)
				}
				next := must(t, crowdSpec(tt.after, each), Options{Previous: old})
				old.Replace(next)
				if next.Gate("api") != g || g.Snapshot().Waiting != 68 {
					t.Fatalf("after the reload %d wait", g.Snapshot().Waiting)
				}
				if got := l.finish(12); near(strings.Count(got, "a"), tt.then) > 1 {
					t.Errorf("after the reload %s, want %d of a", got, tt.then)
				}
				l.finish(56)
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

// A reload changes thresholds while the gate lives, and what its load is of.
func TestShedReload(t *testing.T) {
	spec := func(of string, high float64) Spec {
		return Spec{Gates: map[string]GateSpec{
			"front": {Shed: &ShedSpec{LoadOf: of, Interval: Duration(time.Millisecond), Thresholds: shed.Thresholds{High: high, Critical: 10}}},
			"a":     fixed(10), "b": fixed(10),
		}}
	}
	synctest.Test(t, func(t *testing.T) {
		p := compile(t, spec("a", 1), Options{})
		held(t, p.Gate("b"), weir.Work{}, 10)
		next := compile(t, spec("b", 0.95), Options{Previous: p})
		p.Replace(next)
		if next.Gate("front") != p.Gate("front") {
			t.Fatal("the gate was not adopted")
		}
		time.Sleep(time.Second)
		_, err := next.Gate("front").TryAdmit(weir.Work{Priority: weir.High})
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonShed {
			t.Errorf("%v, want a refusal by the load of b", err)
		}
	})
}
