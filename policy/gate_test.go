package policy

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

func TestEnforceRefusesAndCounts(t *testing.T) {
	var told []string
	p := compile(t, Spec{Gates: map[string]GateSpec{"api": fixed(1)}}, Options{Hooks: weir.Hooks{
		Rejected: func(w weir.Work, r *weir.Rejection) { told = append(told, w.Op+" "+r.Gate+" "+r.Reason.String()) },
	}})
	g := p.Gate("api")
	first := admit(t, g)
	for name, try := range map[string]func() error{
		"Admit":    func() error { _, err := g.Admit(t.Context(), weir.Work{Op: "op"}); return err },
		"TryAdmit": func() error { _, err := g.TryAdmit(weir.Work{Op: "op"}); return err },
		"Arrive": func() error {
			_, _, err := g.Arrive(weir.Work{Op: "op"}, func(weir.Permit, error) { t.Error("woken") })
			return err
		},
	} {
		told = nil
		if r := weir.AsRejection(try()); r == nil || r.Gate != "api" {
			t.Errorf("%s over the limit: %v", name, r)
		}
		if len(told) != 1 || told[0][:7] != "op api " {
			t.Errorf("%s: the hook heard %q, want one refusal", name, told)
		}
	}
	s := g.Snapshot()
	var refused uint64
	for _, n := range s.Rejected {
		refused += n
	}
	if refused != 3 || s.InFlight != 1 || s.Mode != "enforce" || s.Kind != "limit" || s.Name != "api" {
		t.Errorf("snapshot is %+v", s)
	}
	first.Done(weir.OK)
	if s := g.Snapshot(); s.InFlight != 0 {
		t.Errorf("%d in flight after Done", s.InFlight)
	}
}

func TestObserveLetsThroughAndCounts(t *testing.T) {
	var rejected, observed int
	p := compile(t, Spec{Gates: map[string]GateSpec{"api": {Mode: Observe, Limit: &LimitSpec{Limit: 1}}}}, Options{
		Hooks:    weir.Hooks{Rejected: func(weir.Work, *weir.Rejection) { rejected++ }},
		Observed: func(w weir.Work, r *weir.Rejection) { observed++ },
	})
	g := p.Gate("api")
	first, err := g.Admit(t.Context(), weir.Work{})
	if err != nil || !first.Live() {
		t.Fatalf("first: %v, live %t", err, first.Live())
	}
	for range 2 {
		if q, err := g.Admit(t.Context(), weir.Work{}); err != nil || q.Live() {
			t.Errorf("over the limit: %v, live %t; want the zero permit at once", err, q.Live())
		}
	}
	if q, err := g.TryAdmit(weir.Work{}); err != nil || q.Live() {
		t.Errorf("TryAdmit: %v, live %t", err, q.Live())
	}
	if q, waiter, err := g.Arrive(weir.Work{}, nil); err != nil || waiter != nil || q.Live() {
		t.Errorf("Arrive: %v, waiter %v, live %t", err, waiter, q.Live())
	}
	if n := g.Observed()[weir.ReasonLimit]; n != 4 || observed != 4 || rejected != 0 {
		t.Errorf("counted %d, told of %d observed and %d rejected, want 4, 4, 0", n, observed, rejected)
	}
	if s := g.Snapshot(); s.Mode != "observe" || len(s.Rejected) != 0 || s.InFlight != 1 {
		t.Errorf("snapshot is %+v", s)
	}
	first.Done(weir.OK)
}

func TestOffAsksNothing(t *testing.T) {
	p := compile(t, Spec{Gates: map[string]GateSpec{"api": {Mode: Off, Limit: &LimitSpec{Limit: 1}}}}, Options{})
	g := p.Gate("api")
	for range 3 {
		a, err1 := g.Admit(t.Context(), weir.Work{})
		b, err2 := g.TryAdmit(weir.Work{})
		c, waiter, err3 := g.Arrive(weir.Work{}, nil)
		if err := errors.Join(err1, err2, err3); err != nil || a.Live() || b.Live() || c.Live() || waiter != nil {
			t.Fatalf("err %v, live %t %t %t, waiter %v", err, a.Live(), b.Live(), c.Live(), waiter)
		}
	}
	if s := g.Snapshot(); s.Mode != "off" || s.InFlight != 0 || s.Admitted != 0 {
		t.Errorf("snapshot is %+v", s)
	}
}

func TestNestedCallTakesNoSecondSlot(t *testing.T) {
	for _, mode := range []Mode{Enforce, Observe} {
		p := compile(t, Spec{Gates: map[string]GateSpec{"api": {Mode: mode, Limit: &LimitSpec{Limit: 1}}},
			Routes: []RouteSpec{{Name: "r", Gates: []string{"api"}}}}, Options{})
		g := p.Route("r").Gate()
		err := weir.Do(t.Context(), g, weir.Work{}, func(ctx context.Context) error {
			return weir.Do(ctx, g, weir.Work{MaxWait: weir.NoWait}, func(context.Context) error { return nil })
		})
		if err != nil || len(p.Gate("api").Observed()) != 0 {
			t.Errorf("%s: %v, observed %v", mode, err, p.Gate("api").Observed())
		}
	}
}

func TestChainIsAllOrNothing(t *testing.T) {
	p := compile(t, Spec{
		Gates: map[string]GateSpec{"wide": fixed(3), "narrow": fixed(1), "seen": {Mode: Observe, Limit: &LimitSpec{Limit: 1}},
			"out": {Mode: Off, Limit: &LimitSpec{Limit: 1}}},
		Routes: []RouteSpec{
			{Name: "r", Gates: []string{"wide", "seen", "out", "narrow"}},
			{Name: "same", Gates: []string{"wide", "seen", "out", "narrow"}},
			{Name: "free"},
		},
	}, Options{})
	chain := p.Route("r").Gate()
	if p.Route("same").Gate() != chain {
		t.Error("routes with the same gates have different chains")
	}
	permit, err := chain.Admit(t.Context(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = chain.Admit(t.Context(), weir.Work{})
	if r := weir.AsRejection(err); r == nil || r.Gate != "narrow" {
		t.Fatalf("second is not refused by narrow: %v", err)
	}
	if n := p.Gate("wide").Snapshot().InFlight; n != 1 {
		t.Errorf("%d in flight in wide, want 1: the refused work gave its slot back", n)
	}
	permit.Done(weir.OK)
	for name, g := range p.Gates() {
		if n := g.Snapshot().InFlight; n != 0 {
			t.Errorf("%d in flight in %s after Done", n, name)
		}
	}
	if n := p.Gate("seen").Observed()[weir.ReasonLimit]; n != 1 {
		t.Errorf("seen observed %d, want 1", n)
	}
	if _, err := p.Route("free").Gate().Admit(t.Context(), weir.Work{}); err != nil {
		t.Errorf("a route without gates refuses: %v", err)
	}
}

func TestLastGateOfAChainWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := Compile(Spec{
			Gates:  map[string]GateSpec{"first": waiting(2), "last": waiting(1)},
			Routes: []RouteSpec{{Name: "r", Gates: []string{"first", "last"}}},
		}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		chain := p.Route("r").Gate()
		held, err := chain.Admit(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(300*time.Millisecond, func() { held.Done(weir.OK) })
		begun := time.Now()
		permit, err := chain.Admit(t.Context(), weir.Work{})
		if waited := time.Since(begun); err != nil || waited != 300*time.Millisecond {
			t.Fatalf("admitted after %v: %v; want to wait for the slot in last", waited, err)
		}
		permit.Done(weir.OK)
	})
}

func TestVirtualTime(t *testing.T) {
	now := time.Duration(0)
	var rejected []weir.Reason
	p := compile(t, Spec{
		Gates:  map[string]GateSpec{"a": waiting(1), "b": {Limit: &LimitSpec{Limit: 1, Queue: QueueSpec{MaxWait: Duration(200 * time.Millisecond)}}}},
		Routes: []RouteSpec{{Name: "r", Gates: []string{"a"}}, {Name: "s", Gates: []string{"b"}}},
	}, Options{Now: func() time.Duration { return now },
		Hooks: weir.Hooks{Rejected: func(_ weir.Work, r *weir.Rejection) { rejected = append(rejected, r.Reason) }}})
	if at, ok := p.Next(); ok {
		t.Errorf("something is due at %v before anything happened", at)
	}
	var woken []error
	for _, route := range []string{"r", "s"} {
		gate := p.Route(route).Gate()
		admit(t, gate)
		_, _, err := gate.(weir.Arriver).Arrive(weir.Work{}, func(_ weir.Permit, err error) { woken = append(woken, err) })
		if err != weir.ErrWaiting {
			t.Fatalf("%s: %v, want ErrWaiting", route, err)
		}
	}
	for _, due := range []time.Duration{200 * time.Millisecond, limit.DefaultMaxWait} {
		at, ok := p.Next()
		if !ok || at != due {
			t.Fatalf("next is due at %v (%t), want %v", at, ok, due)
		}
		now = at
		p.Step()
	}
	if len(woken) != 2 || weir.AsRejection(woken[0]).Gate != "b" || weir.AsRejection(woken[1]).Gate != "a" {
		t.Errorf("woken with %v, want the room of b to time out, then that of a", woken)
	}
	if len(rejected) != 2 || rejected[0] != weir.ReasonQueueTimeout || p.Gate("a").Snapshot().Rejected[weir.ReasonQueueTimeout] != 1 {
		t.Errorf("hook heard %v, snapshot has %v", rejected, p.Gate("a").Snapshot().Rejected)
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	hooks := weir.Hooks{Rejected: func(weir.Work, *weir.Rejection) {}}
	p := compile(t, Spec{Gates: map[string]GateSpec{"api": fixed(1)}}, Options{Hooks: hooks})
	g := p.Gate("api")
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		permit, err := g.Admit(ctx, weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		permit.Done(weir.OK)
	}); n != 0 {
		t.Errorf("admit and done allocate %v times", n)
	}
}

// The load of a gate is what its snapshot says. Where the gate has one limit, it is cheap enough for every request.
func TestLoad(t *testing.T) {
	f := func(name string, spec GateSpec, allocates bool) {
		t.Helper()
		g := compile(t, Spec{Gates: map[string]GateSpec{"api": spec}}, Options{}).Gate("api")
		for i, want := range [][3]int64{{0, 0, 2}, {1, 0, 2}, {2, 0, 2}, {2, 1, 2}} {
			inFlight, waiting, limit := g.Load()
			s := g.Snapshot()
			if got := [3]int64{inFlight, waiting, limit}; got != want || got != [3]int64{s.InFlight, s.Waiting, s.Limit} {
				t.Errorf("%s: after %d requests %v, and by the snapshot %d, %d, %d; want %v", name, i, got, s.InFlight, s.Waiting, s.Limit, want)
			}
			if n := testing.AllocsPerRun(100, func() { g.Load() }); n != 0 && !allocates {
				t.Errorf("%s: after %d requests, a load allocates %v times", name, i, n)
			}
			_, _, _ = g.Arrive(weir.Work{}, func(weir.Permit, error) {}) // the third waits
		}
	}
	f("one limit", waiting(2), false)
	f("a limit for each tenant", GateSpec{Limit: &LimitSpec{Limit: 2}, Each: &EachSpec{}}, true)
}

// A leak is reported where the work asked, not inside the policy.
func TestLeaksAreFoundBehindAPolicy(t *testing.T) {
	found := make(chan string, 1)
	p := compile(t, Spec{Gates: map[string]GateSpec{"api": fixed(1)},
		Routes: []RouteSpec{{Name: "r", Gates: []string{"api"}}}},
		Options{FindLeaks: true, Hooks: weir.Hooks{Leaked: func(_, site string) { found <- site }}})
	forget(t, p.Route("r").Gate())
	for {
		runtime.GC()
		select {
		case site := <-found:
			if !strings.Contains(site, "helpers_test.go") {
				t.Errorf("leaked at %s", site)
			}
			return
		default:
		}
	}
}

//go:noinline
func forget(t *testing.T, g weir.Gate) { admit(t, g) }

// What an offer finds is between the asker and the gate.
func TestOffer(t *testing.T) {
	var told int
	count := func(weir.Work, *weir.Rejection) { told++ }
	f := func(mode Mode, live, full bool) {
		t.Helper()
		p := compile(t, Spec{Gates: map[string]GateSpec{"api": {Mode: mode, Limit: &LimitSpec{Limit: 1}}}},
			Options{Hooks: weir.Hooks{Rejected: count}, Observed: count})
		g := p.Gate("api")
		first, ok := g.Offer(weir.Work{})
		if !ok || first.Live() != live {
			t.Errorf("%s: %t, live %t; want room, live %t", mode, ok, first.Live(), live)
		}
		if _, ok := g.Offer(weir.Work{}); ok == full {
			t.Errorf("%s: room %t with the slot taken", mode, ok)
		}
		if s := g.Snapshot(); len(s.Rejected)+len(g.Observed())+told != 0 {
			t.Errorf("%s: counted %v and %v, told of %d", mode, s.Rejected, g.Observed(), told)
		}
		first.Done(weir.OK)
	}
	f(Enforce, true, true)
	f(Observe, true, true)
	f(Off, false, false)
}

// An offer is priced as everything else is: in requests where the gate counts these.
func TestOfferCountsInTheUnitOfTheGate(t *testing.T) {
	for _, tt := range []struct {
		spec LimitSpec
		room int // for so many offers
	}{
		{LimitSpec{Limit: 1, Count: "requests"}, 1},
		{LimitSpec{Limit: 5, Count: "requests"}, 5},
		{LimitSpec{Limit: 5}, 1},
	} {
		g := compile(t, Spec{Gates: map[string]GateSpec{"api": {Limit: &tt.spec}}}, Options{}).Gate("api")
		for i := range tt.room + 1 {
			if _, ok := g.Offer(weir.Work{Cost: 5}); ok != (i < tt.room) {
				t.Errorf("limit %d, count %q: offer %d: %t", tt.spec.Limit, tt.spec.Count, i, ok)
			}
		}
	}
	g := compile(t, Spec{Gates: map[string]GateSpec{"api": {Limit: &LimitSpec{Limit: 5}}}}, Options{}).Gate("api")
	if _, ok := g.Offer(weir.Work{Cost: math.MaxInt64}); !ok {
		t.Error("a cost above all limits has no room in an empty gate")
	}
}
