package keyed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// byHand returns a gate whose clock the test moves.
func byHand(t *testing.T, cfg Config) (*Pools, *time.Duration) {
	t.Helper()
	now := new(time.Duration)
	cfg.Name, cfg.Now = "t", func() time.Duration { return *now }
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g, now
}

func take(t *testing.T, g *Pools, w weir.Work) weir.Permit {
	t.Helper()
	p, err := g.TryAdmit(w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func refused(t *testing.T, g *Pools, w weir.Work, want weir.Reason) *weir.Rejection {
	t.Helper()
	_, err := g.TryAdmit(w)
	r := weir.AsRejection(err)
	if r == nil || r.Reason != want {
		t.Fatalf("%v, want a refusal for %v", err, want)
	}
	return r
}

func tenant(key string) weir.Work { return weir.Work{Tenant: key} }

const ms = time.Millisecond

// One busy key does not touch the others.
func TestKeysAreApart(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 2})
	a, b := take(t, g, tenant("a")), take(t, g, tenant("a"))
	r := refused(t, g, tenant("a"), weir.ReasonLimit)
	if r.Gate != "t" || r.Value != 2 || r.Limit != 2 || !r.Retryable || r.RetryAfter != time.Second {
		t.Errorf("%+v", r)
	}
	c := take(t, g, tenant("b"))
	a.Done(weir.OK)
	a.Done(weir.OK) // twice does nothing
	d := take(t, g, tenant("a"))
	a.Cancel() // late
	refused(t, g, tenant("a"), weir.ReasonLimit)
	u := g.Usage(5)
	if u.InFlight != 3 || u.Keys != 2 || u.Busy != 2 || u.Admitted != 4 || u.Limit != 2 || u.Kind != "keyed" || !u.PerKey ||
		u.Rejected[weir.ReasonLimit] != 2 || u.Outcomes[weir.OK] != 1 {
		t.Errorf("%+v", u)
	}
	want := []KeyUse{{Key: "a", Limit: 2, InFlight: 2, Admitted: 3, Refused: 2}, {Key: "b", Limit: 2, InFlight: 1, Admitted: 1}}
	if len(u.Top) != 2 || u.Top[0] != want[0] || u.Top[1] != want[1] {
		t.Errorf("%+v", u.Top)
	}
	for _, p := range []weir.Permit{b, c, d} {
		p.Done(weir.OK)
	}
	if u := g.Usage(1); u.InFlight != 0 || u.Busy != 0 || u.Keys != 2 {
		t.Errorf("%+v", u)
	}
}

func TestEmptyAndLongKeys(t *testing.T) {
	long := make([]byte, 10<<10)
	g, _ := byHand(t, Config{Limit: 1})
	take(t, g, weir.Work{})
	refused(t, g, weir.Work{}, weir.ReasonLimit)
	take(t, g, tenant(string(long)))
	refused(t, g, tenant(string(long)), weir.ReasonLimit)
	long[len(long)-1] = 'x'
	take(t, g, tenant(string(long)))
	if u, ok := g.Key(string(long)); !ok || u.InFlight != 1 || len(u.Key) > 40 {
		t.Errorf("%+v %v", u, ok)
	}
}

func TestKeyFunction(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 1, Key: func(w weir.Work) string { return w.Op }})
	take(t, g, weir.Work{Op: "read", Tenant: "a"})
	take(t, g, weir.Work{Op: "write", Tenant: "a"})
	refused(t, g, weir.Work{Op: "read", Tenant: "b"}, weir.ReasonLimit)
	if key := g.KeyOf(weir.Work{Op: "read", Tenant: "b"}); key != "read" {
		t.Errorf("the key is %q", key)
	}
}

// A newcomer takes the place of an idle key, and is refused while none is idle.
func TestBoundOfKeys(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 2, MaxKeys: 2})
	a := take(t, g, tenant("a"))
	take(t, g, tenant("b"))
	r := refused(t, g, tenant("c"), weir.ReasonLimit)
	if r.Rule != "keys" || r.Value != 2 || r.Limit != 2 || r.RetryAfter == 0 {
		t.Errorf("%v", r)
	}
	a.Done(weir.OK)
	take(t, g, tenant("c"))
	if u, ok := g.Key("a"); ok || u != (KeyUse{Key: "a", Limit: 2}) {
		t.Errorf("a is still known: %+v", u)
	}
	if u := g.Usage(0); u.Keys != 2 || u.MaxKeys != 2 {
		t.Errorf("%d keys of %d", u.Keys, u.MaxKeys)
	}
	refused(t, g, tenant("a"), weir.ReasonLimit)
	if b, _ := g.Key("b"); b.InFlight != 1 {
		t.Errorf("%+v", b)
	}
}

// A flood of distinct keys leaves what is in flight alone, and memory as it is.
func TestFloodOfKeys(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 1, MaxKeys: 1000})
	held := take(t, g, tenant("victim"))
	key := []byte("flood-00000000")
	for i := range 20_000 {
		for j, n := len(key)-1, i; n > 0; j, n = j-1, n/10 {
			key[j] = byte('0' + n%10)
		}
		take(t, g, tenant(string(key))).Done(weir.OK)
	}
	refused(t, g, tenant("victim"), weir.ReasonLimit)
	held.Done(weir.OK)
	u := g.Usage(0)
	if u.Keys != 1000 || u.Evicted != u.Newcomers-1000 || u.Bytes > 1000*64+20_000 {
		t.Errorf("%+v", u)
	}
}

func TestOverridesLive(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 2, Overrides: map[string]Override{"big": {Limit: 3}, "double": {Scale: 2.4}, "small": {Scale: 0.01}}})
	limitOf := func(key string, want int64) {
		t.Helper()
		take(t, g, tenant(key)).Cancel()
		if u, _ := g.Key(key); u.Limit != want {
			t.Errorf("%q has a limit of %d, want %d", key, u.Limit, want)
		}
	}
	limitOf("big", 3)
	limitOf("double", 4)
	limitOf("small", 1)
	limitOf("other", 2)
	woken := false
	take(t, g, tenant("small"))
	if _, _, err := g.Arrive(tenant("small"), func(weir.Permit, error) { woken = true }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	if err := g.Reconfigure(Config{Limit: 10, Overrides: map[string]Override{"other": {Limit: 7}}}); err != nil || !woken {
		t.Fatal(err, woken)
	}
	limitOf("big", 10)
	limitOf("small", 10)
	limitOf("other", 7)
	limitOf("new", 10)
}

// A permit can come to hold more or less than it was admitted with.
func TestSetCost(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 10})
	p := take(t, g, weir.Work{Cost: 4})
	holds := func(want int64) {
		t.Helper()
		if u, _ := g.Key(""); u.InFlight != want {
			t.Errorf("holds %d, want %d", u.InFlight, want)
		}
	}
	holds(4)
	p.SetCost("another", 9)
	holds(4)
	p.SetCost("t", 9)
	holds(9)
	q := take(t, g, weir.Work{})
	q.SetCost("", 1<<40) // no more than the limit
	holds(19)
	woken := 0
	for range 3 {
		g.Arrive(weir.Work{}, func(weir.Permit, error) { woken++ })
	}
	q.SetCost("", 1)
	if woken != 0 {
		t.Errorf("%d woken at 10 of 10", woken)
	}
	p.SetCost("", -7) // at least 1
	holds(5)
	if woken != 3 {
		t.Errorf("%d woken", woken)
	}
	p.Done(weir.OK)
	p.SetCost("", 5) // too late
	q.Cancel()
	holds(3)
}

// A cost above the limit is admitted alone; one below 0 never.
func TestCosts(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 3})
	p := take(t, g, weir.Work{Cost: 1 << 62})
	refused(t, g, weir.Work{}, weir.ReasonLimit)
	p.Done(weir.OK)
	take(t, g, weir.Work{})
	refused(t, g, weir.Work{Cost: 100}, weir.ReasonLimit)
	refused(t, g, weir.Work{Cost: -1}, weir.ReasonTooLarge)
}

// A cost above the limit of its key is refused at once if it is to be, by the
// settings of the moment; whoever waits already is not.
func TestRefuseOversize(t *testing.T) {
	cfg := Config{Limit: 3, MaxKeys: 2, RefuseOversize: true, Overrides: map[string]Override{"big": {Limit: 8}}}
	g, _ := byHand(t, cfg)
	tests := []struct {
		key  string
		cost int64
		fits bool
	}{
		{"a", 3, true}, {"a", 4, false}, {"big", 8, true}, {"big", 9, false}, {"new", 4, false}, {"new", 1 << 62, false},
	}
	for _, tt := range tests {
		w := weir.Work{Tenant: tt.key, Cost: tt.cost}
		if tt.fits {
			take(t, g, w).Done(weir.OK)
			if p, err := g.Admit(t.Context(), w); err != nil {
				t.Errorf("%s, cost %d: %v", tt.key, tt.cost, err)
			} else {
				p.Done(weir.OK)
			}
			continue
		}
		most := map[string]float64{"big": 8}[tt.key]
		if r := refused(t, g, w, weir.ReasonTooLarge); r.Value != float64(tt.cost) || r.Limit != max(3, most) || r.Retryable {
			t.Errorf("%s: %+v", tt.key, r)
		}
		if _, err := g.Admit(t.Context(), w); weir.AsRejection(err) == nil {
			t.Errorf("%s, cost %d: %v", tt.key, tt.cost, err)
		}
	}
	if u := g.Usage(0); u.Keys != 2 || u.Evicted != 0 || u.Rejected[weir.ReasonTooLarge] != 8 {
		t.Errorf("%+v: a key that was refused for its size has taken a place", u)
	}
	if u, _ := g.Key("a"); u.Refused != 2 {
		t.Errorf("%+v", u)
	}

	held := take(t, g, weir.Work{Tenant: "a"})
	var waited weir.Permit
	if _, _, err := g.Arrive(weir.Work{Tenant: "a", Cost: 3}, func(p weir.Permit, _ error) { waited = p }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	cfg.Limit = 2
	if err := g.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	refused(t, g, weir.Work{Tenant: "a", Cost: 3}, weir.ReasonTooLarge)
	if held.Done(weir.OK); !waited.Live() {
		t.Error("who waited while the limit shrank is stuck")
	}
	waited.Done(weir.OK)
	cfg.RefuseOversize = false
	if err := g.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	take(t, g, weir.Work{Tenant: "a", Cost: 100})
	refused(t, g, weir.Work{Tenant: "a"}, weir.ReasonLimit)
}

// A limit that a controller moves may grow to what asks too much now. Nobody is told to wait for that.
func TestOversizeOfWhatMoves(t *testing.T) {
	g, _ := byHand(t, Config{Controller: &spy{limit: 4}, RefuseOversize: true,
		Overrides: map[string]Override{"own": {Limit: 5}, "half": {Scale: 0.5}}})
	for key, limit := range map[string]float64{"own": 5, "half": 2, "": 4} {
		if r := refused(t, g, weir.Work{Tenant: key, Cost: 6}, weir.ReasonTooLarge); r.Limit != limit || r.Retryable {
			t.Errorf("%q: %+v", key, r)
		}
	}
}

func TestExempt(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 1, Exempt: 2})
	check := weir.Work{Exempt: true}
	p := take(t, g, check)
	take(t, g, check)
	if r := refused(t, g, check, weir.ReasonLimit); r.Rule != "exempt" || r.Value != 2 || r.Limit != 2 {
		t.Errorf("%v", r)
	}
	take(t, g, weir.Work{}) // takes nothing from a key
	p.SetCost("", 5)
	p.Done(weir.OK)
	p = take(t, g, check)
	if u := g.Snapshot(); u.Exempt != 2 || u.ExemptAdmitted != 3 || u.InFlight != 1 || len(u.Outcomes) != 0 {
		t.Errorf("%+v", u)
	}
	if err := g.Reconfigure(Config{Limit: 1, Exempt: -1}); err != nil {
		t.Fatal(err)
	}
	refused(t, g, check, weir.ReasonLimit)
	if _, waiter, err := g.Arrive(check, nil); err != weir.ErrWaiting || !waiter.Cancel() { // it waits like any other
		t.Error(err)
	}
	p.Done(weir.OK)
	if u := g.Snapshot(); u.Exempt != 1 {
		t.Errorf("%+v", u)
	}
}

func TestHooks(t *testing.T) {
	var told []string
	say := func(s string) { told = append(told, s) }
	var g *Pools
	g, now := byHand(t, Config{Limit: 1, Hooks: weir.Hooks{
		Admitted:     func(_ string, w weir.Work, waited time.Duration) { say(w.Tenant + " in after " + waited.String()) },
		Rejected:     func(w weir.Work, r *weir.Rejection) { say(w.Tenant + " out: " + r.Reason.String()) },
		Done:         func(_ string, o weir.Outcome, d time.Duration) { say(o.String() + " took " + d.String()) },
		LimitChanged: func(_ string, from, to int64, why string) { say(why); g.Snapshot() },
	}})
	p := take(t, g, tenant("a"))
	refused(t, g, tenant("a"), weir.ReasonLimit)
	g.Arrive(tenant("a"), func(weir.Permit, error) {})
	*now = 7 * ms
	p.Sample(weir.OK)
	*now = 9 * ms
	p.Done(weir.Failed)
	cfg := Config{Limit: 2}
	cfg.Hooks = *g.front.Hooks()
	if err := g.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	want := []string{"a in after 0s", "a out: limit", "ok took 7ms", "a in after 9ms", "configured"}
	if len(told) != len(want) {
		t.Fatalf("told %q", told)
	}
	for i := range want {
		if told[i] != want[i] {
			t.Errorf("told %q, want %q", told[i], want[i])
		}
	}
}

func TestFaultyConfigurations(t *testing.T) {
	belief := weir.Must(control.NewBelief(control.BeliefConfig{}))
	capped := weir.Must(control.NewCapped(weir.Must(control.NewKnee(control.KneeConfig{})), control.CapConfig{}))
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, `keyed: gate "": Limit: 0 will not do; must be from 1 to 1073741824, or set a Controller`},
		{Config{Controller: belief}, `keyed: gate "": Controller: "belief" learns from the service times of one pool; use NewAdaptive, which gives each key its own`},
		{Config{Controller: capped}, `keyed: gate "": Controller: "knee" learns from the service times of one pool; use NewAdaptive, which gives each key its own`},
		{Config{Limit: 1, MaxKeys: -1, Exempt: 1 << 40}, "keyed: gate \"\": 2 faults\n\tMaxKeys: -1 will not do; must be from 1 to 16777215, or 0 for 65536\n\tExempt: 1099511627776 will not do; must be at most 1073741824 (negative: nothing is exempt)"},
		{Config{Limit: 1, Overrides: map[string]Override{"a": {Limit: 1, Scale: -1}}}, "keyed: gate \"\": 2 faults\n\tOverrides.a.Scale: -1 will not do; must be above 0 and at most 1e+06, or 0\n\tOverrides.a: has a Limit and a Scale; leave one 0"},
	} {
		if _, err := New(c.cfg); err == nil || err.Error() != c.want {
			t.Errorf("\n got %v\nwant %v", err, c.want)
		}
	}
	g, _ := byHand(t, Config{Limit: 2})
	if err := g.Reconfigure(Config{}); err == nil || g.Snapshot().Limit != 2 {
		t.Errorf("%v", err)
	}
}

// A machine that was suspended comes back hours later: who waited is told, the
// controller is asked once, and the gate goes on.
func TestSuspended(t *testing.T) {
	c := &spy{limit: 1}
	g, now := byHand(t, Config{Controller: c})
	p := take(t, g, tenant("a"))
	var got error
	if _, _, err := g.Arrive(tenant("a"), func(_ weir.Permit, err error) { got = err }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	*now = 10 * time.Hour
	g.Step()
	if r := weir.AsRejection(got); r == nil || r.Reason != weir.ReasonQueueTimeout || r.Value != 36_000 {
		t.Errorf("%v", got)
	}
	*now += 999_999 * time.Microsecond
	g.Step() // early: it changes nothing
	if at, ok := g.Next(); !ok || at != 10*time.Hour+time.Second || c.seen.Elapsed != 10*time.Hour {
		t.Errorf("next at %v, a window of %v", at, c.seen.Elapsed)
	}
	p.Done(weir.OK)
	take(t, g, tenant("a")).Done(weir.OK)
}

// A clock that steps back is no time elapsed.
func TestClockStepsBack(t *testing.T) {
	c := &spy{limit: 1}
	g, now := byHand(t, Config{Controller: c})
	*now = 900 * ms
	p := take(t, g, tenant("a"))
	*now = 100 * ms
	p.Done(weir.OK)
	p = take(t, g, tenant("a"))
	woken := false
	g.Arrive(tenant("a"), func(_ weir.Permit, err error) { woken = err == nil })
	*now = 50 * ms
	g.Step()
	p.Done(weir.OK)
	if !woken {
		t.Error("not woken")
	}
	*now = time.Second
	g.Step()
	if w := c.seen; w.LatencySum < 0 || w.Elapsed != time.Second || w.OK != 2 {
		t.Errorf("%+v", w)
	}
}

// What nobody uses stays small, and a gate that is idle asks for nothing.
func TestIdle(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 1})
	for i := range 100 {
		take(t, g, tenant(string(rune('a'+i)))).Done(weir.OK)
	}
	if at, ok := g.Next(); ok {
		t.Errorf("something is due at %v", at)
	}
	u := g.Usage(3)
	if u.Keys != 100 || u.Busy != 0 || u.InFlight != 0 || len(u.Top) != 3 {
		t.Errorf("%+v", u)
	}
}

// A new controller starts from what the old one has learned, and a restart too.
func TestLearnedIsKept(t *testing.T) {
	lag := func() *control.LagMap { return weir.Must(control.NewLagMap(control.LagMapConfig{})) }
	g, _ := byHand(t, Config{Controller: lag()})
	g.Restore(control.State{Limit: 77})
	if s := g.Snapshot(); s.Limit != 77 {
		t.Errorf("%+v", s)
	}
	if err := g.Reconfigure(Config{Controller: lag()}); err != nil {
		t.Fatal(err)
	}
	if state, ok := g.Save(); !ok || state.Limit != 77 || g.Snapshot().Limit != 77 {
		t.Errorf("%+v, %+v", state, g.Snapshot())
	}
	if err := g.Reconfigure(Config{Limit: 5}); err != nil {
		t.Fatal(err)
	}
	if _, ok := g.Save(); ok {
		t.Error("a number learns nothing")
	}
	g.Restore(control.State{Limit: 9})
	if n := g.Snapshot().Limit; n != 5 {
		t.Errorf("limit %d", n)
	}
	if err := g.Reconfigure(Config{Controller: lag()}); err != nil || g.Snapshot().Limit != 10 {
		t.Errorf("%v: %+v", err, g.Snapshot()) // 5, within the bounds of the new one
	}
}

// An idle key anywhere makes room for a newcomer anywhere, and the bound holds over
// all shards together.
func TestBoundOverShards(t *testing.T) {
	const n = 500
	g := weir.Must(New(Config{Limit: 1, MaxKeys: n}))
	defer g.Close()
	if len(g.shards) < 2 {
		t.Fatalf("%d shard", len(g.shards))
	}
	held := make([]weir.Permit, n)
	name := func(i int) weir.Work { return tenant(string(rune(i))) }
	for i := range n {
		held[i] = take(t, g, name(i))
	}
	for i := range n {
		if r := refused(t, g, name(n+i), weir.ReasonLimit); r.Rule != "keys" || r.Value != n {
			t.Fatal(r)
		}
		held[i].Done(weir.OK)
		held[i] = take(t, g, name(n+i)) // whatever shard it is in
	}
	for _, p := range held[n/2:] {
		p.Done(weir.OK)
	}
	if err := g.Reconfigure(Config{Limit: 1, MaxKeys: 10}); err != nil {
		t.Fatal(err)
	}
	u := g.Usage(0)
	if u.Keys != n/2 || u.Busy != n/2 || u.Keys != g.keys.Load() {
		t.Errorf("%+v", u) // the idle have gone, those in use not
	}
	refused(t, g, name(0), weir.ReasonLimit)
	for _, p := range held[:n/2] {
		p.Done(weir.OK)
	}
	take(t, g, name(0))
	take(t, g, name(1))
}

// Newcomers race for the last places. While there are more places than work, none is refused,
// however often another one takes the place that was made for it.
func TestNewcomersRaceForThePlaces(t *testing.T) {
	const workers = 16
	g := weir.Must(New(Config{Limit: 1, MaxKeys: workers}))
	defer g.Close()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range workers {
		wg.Go(func() {
			for range 5_000 {
				p, err := g.TryAdmit(tenant(strconv.FormatInt(next.Add(1), 10)))
				if err != nil {
					t.Error(err)
					return
				}
				runtime.Gosched()
				p.Done(weir.OK)
			}
		})
	}
	wg.Wait()
	if u := g.Usage(0); u.Keys != workers || u.Busy != 0 || u.Keys != g.keys.Load() {
		t.Errorf("%+v", u)
	}
}

// Callbacks may do anything with the gate.
func TestCallbacksMayCallTheGate(t *testing.T) {
	g, now := byHand(t, Config{Limit: 1})
	p := take(t, g, tenant("a"))
	called := 0
	again := func(_ weir.Permit, err error) {
		called++
		g.Snapshot()
		g.Step()
		g.TryAdmit(tenant("a"))
		if err := g.Reconfigure(Config{Limit: 1 + int64(called)}); err != nil && !g.closed() {
			t.Error(err)
		}
	}
	wait := func() {
		if _, _, err := g.Arrive(tenant("a"), again); err != weir.ErrWaiting {
			t.Fatal(err)
		}
	}
	wait()
	p.Done(weir.OK)
	for g.Snapshot().InFlight < g.Snapshot().Limit {
		take(t, g, tenant("a"))
	}
	wait()
	*now += limit.DefaultMaxWait
	g.Step()
	for g.Snapshot().InFlight < g.Snapshot().Limit {
		take(t, g, tenant("a"))
	}
	wait()
	g.Close()
	if called != 3 {
		t.Errorf("%d callbacks", called)
	}
}

func newGate(t *testing.T, cfg Config) *Pools {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Name: "g", Limit: 1})
		p, q := take(t, g, tenant("a")), take(t, g, weir.Work{Tenant: "b", Exempt: true})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := g.Admit(t.Context(), tenant("a")); weir.AsRejection(err).Reason != weir.ReasonDraining {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Drain(ctx); err == nil || err.Error() != `keyed: gate "g": 2 still in flight: context deadline exceeded` {
			t.Error(err)
		}
		refused(t, g, tenant("c"), weir.ReasonDraining)
		time.AfterFunc(time.Second, func() { p.Done(weir.OK); q.Done(weir.OK) })
		if err := g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// Work whose context is done is refused, also if slots are free.
func TestDoneContext(t *testing.T) {
	g := newGate(t, Config{Limit: 1})
	defer g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Admit(ctx, tenant("a")); !errors.Is(err, context.Canceled) || g.Snapshot().Admitted != 0 {
		t.Error(err)
	}
}

// Work that never started was not admitted, and counts as no outcome.
func TestCancelled(t *testing.T) {
	g := newGate(t, Config{Limit: 2})
	defer g.Close()
	take(t, g, tenant("a")).Cancel()
	take(t, g, tenant("a")).Done(weir.Failed)
	u, _ := g.Key("a")
	if s := g.Snapshot(); s.Admitted != 1 || u.Admitted != 1 || s.InFlight != 0 || len(s.Outcomes) != 1 || s.Outcomes[weir.Failed] != 1 {
		t.Errorf("%+v, of the key %d", s, u.Admitted)
	}
}

// Work inside a permit of the same gate takes no second slot.
func TestNested(t *testing.T) {
	g := newGate(t, Config{Limit: 1})
	defer g.Close()
	err := weir.Do(t.Context(), g, tenant("a"), func(ctx context.Context) error {
		return weir.Do(ctx, g, tenant("a"), func(context.Context) error { return nil })
	})
	if err != nil || g.Snapshot().InFlight != 0 {
		t.Error(err)
	}
}

// Many goroutines on few keys, with idle keys evicted all the time and the limit
// on the move: no key ever has more at work than the largest limit, everything
// comes back, and nobody waits for ever.
func TestStress(t *testing.T) {
	const goroutines, most, spread = 16, 3, 40
	cfg := Config{Limit: most, MaxKeys: 24, Queue: limit.Queue{Len: 12, MaxWait: -1}, Overrides: map[string]Override{"k1": {Limit: 1}}}
	g := newGate(t, cfg)
	defer g.Close()
	var working [spread]atomic.Int64
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for n := range goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for range 400 {
				key := rng.IntN(spread)
				p, err := stressAdmit(g, rng, fmt.Sprint("k", key))
				if err != nil {
					continue
				}
				admitted.Add(1)
				if n := working[key].Add(1); n > most {
					t.Errorf("%d at work for key %d", n, key)
				}
				if rng.IntN(4) == 0 {
					p.Sample(weir.OK)
				}
				working[key].Add(-1)
				if rng.IntN(8) == 0 {
					p.Cancel()
				}
				p.Done(weir.OK)
				p.Done(weir.OK)
			}
		})
	}
	wg.Go(func() {
		for i := range 60 {
			next := cfg
			next.Limit = 1 + int64(i)%most
			if err := g.Reconfigure(next); err != nil {
				t.Error(err)
			}
			g.Usage(3)
		}
	})
	wg.Wait()
	u := g.Usage(0)
	if u.InFlight != 0 || u.Waiting != 0 || u.Busy != 0 || u.Keys > 24 || u.Evicted == 0 || admitted.Load() == 0 {
		t.Errorf("%+v, %d admitted", u, admitted.Load())
	}
}

func stressAdmit(g *Pools, rng *rand.Rand, key string) (weir.Permit, error) {
	w := weir.Work{Tenant: key, Cost: int64(rng.IntN(3))}
	switch rng.IntN(4) {
	case 0:
		return g.TryAdmit(w)
	case 1:
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(200))*time.Microsecond)
		defer cancel()
		return g.Admit(ctx, w)
	case 2:
		answer := make(chan weir.Permit, 1)
		p, waiter, err := g.Arrive(w, func(p weir.Permit, _ error) { answer <- p })
		if err != weir.ErrWaiting {
			return p, err
		}
		if rng.IntN(2) == 0 && waiter.Cancel() {
			return p, err
		}
		if p = <-answer; !p.Live() {
			return p, errors.New("refused later")
		}
		return p, nil
	}
	w.MaxWait = time.Duration(1+rng.IntN(300)) * time.Microsecond
	return g.Admit(context.Background(), w)
}

// A change of other settings leaves the reason of the limit as it is.
func TestReasonAfterReconfigure(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 8})
	first := g.Snapshot().LimitReason
	if first == "configured" {
		t.Fatal("the test cannot tell a change from none")
	}
	for i, tt := range []struct {
		limit int64
		want  string
	}{{8, first}, {5, "configured"}, {5, "configured"}} {
		if err := g.Reconfigure(Config{Limit: tt.limit, MaxKeys: 10 + i}); err != nil {
			t.Fatal(err)
		}
		if got := g.Snapshot().LimitReason; got != tt.want {
			t.Errorf("with a limit of %d: %q, want %q", tt.limit, got, tt.want)
		}
	}
}

// A drain waits for exempt work, too.
func TestDrainWaitsForExemptWork(t *testing.T) {
	g := weir.Must(New(Config{Limit: 1}))
	p := take(t, g, weir.Work{Tenant: "a", Exempt: true})
	g.Close()
	select {
	case <-g.drained:
		t.Error("drained with exempt work in flight")
	default:
	}
	p.Done(weir.OK)
	select {
	case <-g.drained:
	default:
		t.Error("not drained when it has ended")
	}
}
