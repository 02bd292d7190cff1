package quota

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// hostile are names that somebody may come with.
var hostile = map[string]string{
	"10 KB": strings.Repeat("x", 10<<10), "empty": "", "NUL": "a\x00b", "newline": "a\nb", "braces": "{}", "a hash tag": "{a}b",
	"a separator": "a/client=b", "the mark of a hash": "~", "no UTF-8": "\xff\xfe", "a star": "*",
}

// Whatever somebody is called, there is a limit, and nobody else shares it.
func TestHostileNames(t *testing.T) {
	for what, identity := range map[string]func(string) weir.Work{
		"user":   func(name string) weir.Work { return weir.Work{User: name} },
		"client": func(name string) weir.Work { return weir.Work{Client: name} },
		"tenant": func(name string) weir.Work { return weir.Work{Tenant: name} },
		"route":  func(name string) weir.Work { return weir.Work{Op: name} },
	} {
		rules := map[string]Rule{"user": {User: Every}, "client": {Client: Every}, "tenant": {Tenant: Every}, "route": {Route: Every}}
		rule := rules[what]
		rule.Windows = []Window{Per(2, time.Hour)}
		r := newRig(t, Config{Rules: []Rule{rule}})
		for range 2 {
			for _, name := range hostile {
				r.admit(identity(name))
			}
		}
		for kind, name := range hostile {
			if _, err := r.TryAdmit(identity(name)); err == nil || weir.AsRejection(err).Reason != weir.ReasonQuota {
				t.Errorf("a %s of %s: %v, want a refusal", what, kind, err)
			}
			if _, key := keyOf(r.Quota, identity(name)); len(key) > longestKey || strings.ContainsAny(key, "{}\n\x00 ") {
				t.Errorf("a %s of %s has the key %q", what, kind, key)
			}
		}
	}
	var named []Rule
	for kind, name := range hostile {
		named = append(named, Rule{Name: kind, User: Named(name), Windows: []Window{Per(1, time.Hour)}})
	}
	r := newRig(t, Config{Rules: named})
	for kind, name := range hostile {
		r.admit(weir.Work{User: name})
		if got := r.refused(weir.Work{User: name}); got.Rule != kind {
			t.Errorf("%s: refused by the rule %q", kind, got.Rule)
		}
	}
	r.admit(weir.Work{User: "a"})
}

// A cost that is none is refused, and one that is too large; none of them makes a key
// that is not limited, or leaves a bucket with more than its burst.
func TestHostileCosts(t *testing.T) {
	const burst = 10
	for name, c := range map[string]struct {
		debt       bool
		mode       Mode
		cost       int64
		left       float64 // before, burst
		refused    weir.Reason
		afterwards bool // work of cost 1 gets in
	}{
		"0":                       {cost: 0, left: burst - 1, afterwards: true},
		"0, debt":                 {debt: true, cost: 0, left: burst - 1, afterwards: true},
		"negative":                {cost: -1, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"negative, debt":          {debt: true, cost: -5, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"the least, debt":         {debt: true, cost: math.MinInt64, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"the least, permissive":   {mode: Permissive, cost: math.MinInt64, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"above the burst":         {cost: burst + 1, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"above the burst, debt":   {debt: true, cost: burst + 1, left: -1},
		"beyond MaxTokens":        {cost: 2e15, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"the greatest":            {cost: math.MaxInt64, left: burst, refused: weir.ReasonTooLarge, afterwards: true},
		"the greatest, debt":      {debt: true, cost: math.MaxInt64, left: burst - MaxTokens},
		"the greatest,permissive": {mode: Permissive, cost: math.MaxInt64, left: burst - MaxTokens, afterwards: true},
	} {
		r := newRig(t, Config{Debt: c.debt, Mode: c.mode, Rules: everyUser(Per(burst, time.Hour))})
		if got := r.reasonOf(of(alice, c.cost)); got != c.refused {
			t.Errorf("%s: %v, want %v", name, got, c.refused)
		}
		if got := r.left(alice); got != c.left {
			t.Errorf("%s: %v left, want %v", name, got, c.left)
		}
		if got := r.reasonOf(alice); (got == weir.ReasonNone) != c.afterwards {
			t.Errorf("%s: the next is %v, want let in: %v", name, got, c.afterwards)
		}
	}
}

// reasonOf is why w is refused, ReasonNone if it is not.
func (r *rig) reasonOf(w weir.Work) weir.Reason {
	r.Helper()
	if _, err := r.TryAdmit(w); err != nil {
		return r.rejection(err).Reason
	}
	return weir.ReasonNone
}

// What is settled afterwards may be nonsense too: a bucket never holds more than its
// burst, and never owes more than MaxTokens.
func TestHostileSettlements(t *testing.T) {
	for _, costs := range [][]int64{
		{math.MaxInt64, math.MinInt64}, {math.MinInt64, -1, 0}, {math.MaxInt64, math.MaxInt64, 0}, {2e15, 1, math.MaxInt64, 0},
	} {
		r := newRig(t, Config{Rules: everyUser(Per(10, time.Hour))})
		p := r.admit(of(alice, 5))
		for _, n := range costs {
			p.SetCost("", n)
			if left := r.left(alice); !(left >= -MaxTokens && left <= 10) {
				t.Errorf("%v: %v left after %d", costs, left, n)
			}
		}
		if p.Cancel(); r.left(alice) != 10 {
			t.Errorf("%v: %v left after the end, want 10", costs, r.left(alice))
		}
	}
}

// A rate that changes keeps tokens and debts; a rule that is added changes the key.
func TestReconfigure(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: []Rule{{User: Named("userA"), Windows: samples(10)}}})
	w := weir.Work{User: "userA", Client: "client6"}
	r.admit(of(w, 10))
	set := func(rules ...Rule) {
		t.Helper()
		if err := r.Reconfigure(Config{Name: "other", Debt: true, Rules: rules}); err != nil {
			t.Fatal(err)
		}
	}
	set(Rule{User: Named("userA"), Windows: samples(2)}) // K29
	if got := r.left(w); got != 22 {
		t.Errorf("%v left, want 22", got)
	}
	r.admit(of(w, 122))
	r.refused(w)
	set(Rule{User: Named("userA"), Windows: samples(2)}, Rule{User: Named("userA"), Client: Named("client6"), Windows: samples(11)}) // P10
	r.admit(w)
	r.refused(weir.Work{User: "userA", Client: "client7"})
	set(Rule{User: Every, Windows: samples(50)}) // the same bucket, by another rule
	if got := r.refused(w); got.RetryAfter != 2*time.Second || got.Rule != "user=*" {
		t.Errorf("%+v, want the debt of 100 at 50/s", *got)
	}
	before := r.Rules()
	if err := r.Reconfigure(Config{Rules: []Rule{{}}, Mode: DryRun}); err == nil || len(r.Rules()) != len(before) {
		t.Errorf("%v, %v", err, r.Rules())
	}
}

// Rules alone can be changed; the rest stays, and all of it if a rule is faulty.
func TestSetRules(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: everyUser(Window{Rate: 1, Burst: 0.5}), Queue: Queue{Len: 3}})
	r.admit(of(alice, 10))
	rules := append(everyUser(Window{Rate: 2, Burst: 0.5}), Rule{Name: "root", User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true})
	if err := r.SetRules(rules); err != nil {
		t.Fatal(err)
	}
	if got := r.refused(alice); got.RetryAfter != 4750*ms {
		t.Errorf("%+v, want the debt of 9.5 at 2/s", *got)
	}
	if s := r.Quota.settings.Load(); s.places != 3 || !s.debt || len(r.Rules()) != 3 {
		t.Errorf("%+v", s)
	}
	if err := r.SetRules(append(rules, rules[0])); err == nil || !strings.Contains(err.Error(), `gate "q": Rules[3]`) || len(r.Rules()) != 3 {
		t.Errorf("%v, %v", err, r.Rules())
	}
	for w, want := range map[weir.Work]string{alice: "user=* q/user=alice", {User: "root"}: "root ", {User: "eve"}: "user=eve "} {
		if rule, key := keyOf(r.Quota, w); rule+" "+key != want {
			t.Errorf("%v: %q, %q, want %q", w.User, rule, key, want)
		}
	}
	if err := r.SetRules(nil); err != nil {
		t.Fatal(err)
	}
	if rule, key := keyOf(r.Quota, alice); rule != "" || key != "" {
		t.Errorf("%q, %q without rules", rule, key)
	}
	r.admit(alice)
	if r.Close(); !errors.Is(r.SetRules(rules), weir.ErrClosed) {
		t.Error("a closed gate takes rules")
	}
}

// A limit that becomes slower forgives nothing, not even to those who are idle.
func TestReconfigureForgivesNothing(t *testing.T) {
	slow := Window{Rate: 1, Burst: 100}
	for _, store := range []Store{nil, &flaky{err: errors.New("down")}} {
		r := newRig(t, Config{Rules: everyUser(Window{Rate: 10, Burst: 100}), Store: store})
		r.admit(of(alice, 100))
		if err := r.Reconfigure(Config{Rules: everyUser(slow)}); err != nil {
			t.Fatal(err)
		}
		r.clock.advance(11 * time.Second)
		m := r.memory
		if store != nil {
			m = r.local(false)
		}
		m.Purge()
		if d := take(t, m, Request{Key: "q/user=alice", Windows: []Window{slow}, Mode: DryRun}); math.Abs(d.Remaining-11) > 1e-6 {
			t.Errorf("in the fallback %v: %v left, want 11", store != nil, d.Remaining)
		}
	}
}

// Nor does it forgive what is charged or corrected while the rule changes.
func TestChargeDuringAChange(t *testing.T) {
	slow := everyUser(Window{Rate: 0.001, Burst: 100})
	for _, c := range []struct{ fallback, corrected bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		var clock still
		var meanwhile func()
		now := func() time.Duration { // is asked between the choice of the windows and the charge
			if change := meanwhile; change != nil {
				meanwhile = nil
				change()
			}
			return clock.now()
		}
		cfg := Config{Name: "q", Rules: everyUser(Window{Rate: 10, Burst: 100}), Now: now}
		if c.fallback {
			cfg.Store = &flaky{err: errors.New("down")}
		}
		r := &rig{newQuota(t, cfg), t, &clock}
		m := r.memory
		if c.fallback {
			m = r.local(true)
		}
		change := func() {
			for _, rules := range [][]Rule{everyUser(Window{Rate: 20, Burst: 100}), slow} {
				if err := r.SetRules(rules); err != nil {
					t.Error(err)
				}
			}
		}
		if c.corrected {
			p := r.admit(of(alice, 1))
			meanwhile = change
			p.SetCost("", 100)
		} else {
			meanwhile = change
			r.admit(of(alice, 100))
		}
		clock.advance(15 * time.Second)
		m.Purge()
		if d := take(t, m, Request{Key: "q/user=alice", Windows: slow[0].Windows, Mode: DryRun}); math.Abs(d.Remaining-0.015) > 1e-6 || meanwhile != nil {
			t.Errorf("%+v: %v left, want what has come back since the change", c, d.Remaining)
		}
	}
}

// A rule that is changed concerns the buckets that are there, and nobody who comes later with the window that it had.
func TestChangedRuleLeavesStrangersAlone(t *testing.T) {
	quick, slow := []Window{Per(50, time.Second)}, []Window{Per(1e6, 24*time.Hour)}
	every, partner := Rule{User: Every, Windows: quick}, Rule{User: Named("partner"), Windows: quick}
	for name, changes := range map[string][][]Rule{
		"none":                                 nil,
		"there and back":                       {{{User: Every, Windows: slow}}, {every}},
		"of another rule with the same window": {{every, {User: Named("partner"), Windows: slow}}},
	} {
		t.Run(name, func(t *testing.T) {
			var clock still
			q := newQuota(t, Config{Name: "q", Rules: []Rule{every, partner}, Store: newMemory(t, MemoryConfig{MaxKeys: 200, Now: clock.now}), Now: clock.now})
			strangers := func(prefix string, n int) {
				for i := range n { // twenty a second, whose buckets are full again after 100 ms
					clock.advance(50 * time.Millisecond)
					for range 5 {
						if w := (weir.Work{User: fmt.Sprint(prefix, i)}); !q.Allow(w) {
							t.Fatalf("%+v is refused: %+v", w, q.memory.Stats())
						}
					}
				}
			}
			strangers("before ", 1000)
			for _, rules := range changes {
				if err := q.SetRules(rules); err != nil {
					t.Fatal(err)
				}
			}
			if strangers("after ", 2000); q.memory.Stats().Overflowed > 0 {
				t.Errorf("%+v", q.memory.Stats())
			}
		})
	}
}

// Changes of rules free the numbers of windows by themselves, also if no key is new.
func TestChangesForKnownKeys(t *testing.T) {
	const others, users = 30_000, 100
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 0.001, Burst: 10})})
	for i := range others {
		r.admit(weir.Work{User: fmt.Sprint("other ", i)})
	}
	rules := make([]Rule, users)
	for change := range 40 {
		r.clock.advance(sweepEvery)
		for i := range rules {
			rules[i] = Rule{User: Named(fmt.Sprint(i)), Windows: []Window{{Rate: 1, Burst: float64(1000 + users*change + i)}}}
		}
		if err := r.SetRules(append(rules, everyUser(Window{Rate: 0.001, Burst: 10})...)); err != nil {
			t.Fatal(err)
		}
		for i := range rules {
			r.admit(weir.Work{User: fmt.Sprint(i)})
		}
	}
	if n := r.memory.classes.given; n > 4*manyRetired {
		t.Errorf("%d numbers were given for %d windows in use", n, users+1)
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Mode: Reserve}, "Mode: reserve will not do; must be Strict or Permissive"},
		{Config{Queue: Queue{Len: 1 << 25}}, "Queue.Len: 33554432"},
		{Config{Mode: Permissive, Queue: Queue{Len: 1}}, "nothing waits in a Permissive gate"},
		{Config{OnStoreError: 7}, "OnStoreError: 7"},
		{Config{Name: "api", Rules: []Rule{{}}}, `quota: gate "api": Rules[0].Windows`},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	_, err := New(Config{Mode: Reserve, Queue: Queue{Len: 1 << 25}, Rules: []Rule{{}, {Exempt: true, Blocked: true}}})
	if n := strings.Count(err.Error(), "\n"); n < 4 {
		t.Errorf("%v: want every fault", err)
	}
}

// Programs keep rules as JSON. No window gets lost there.
func TestRuleInJSON(t *testing.T) {
	want := Rule{User: "*", Windows: []Window{Per(5, time.Second), {Burst: 100, Calendar: Calendar{}}}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Rule
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v: %+v became %+v", text, err, want, got)
	}
}
