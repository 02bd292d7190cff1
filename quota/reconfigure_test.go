package quota

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// A rate that changes keeps tokens and debts; a rule that is added changes the key.
func TestReconfigure(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: []Rule{{User: Named("userA"), Limits: samples(10)}}})
	w := weir.Work{User: "userA", Client: "client6"}
	r.admit(of(w, 10))
	set := func(rules ...Rule) {
		t.Helper()
		if err := r.Reconfigure(Config{Name: "other", Debt: true, Rules: rules}); err != nil {
			t.Fatal(err)
		}
	}
	set(Rule{User: Named("userA"), Limits: samples(2)}) // K29
	if got := r.left(w); got != 22 {
		t.Errorf("%v left, want 22", got)
	}
	r.admit(of(w, 122))
	r.refused(w)
	set(Rule{User: Named("userA"), Limits: samples(2)}, Rule{User: Named("userA"), Client: Named("client6"), Limits: samples(11)}) // P10
	r.admit(w)
	r.refused(weir.Work{User: "userA", Client: "client7"})
	set(Rule{User: Every, Limits: samples(50)}) // the same bucket, by another rule
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
	r := newRig(t, Config{Debt: true, Rules: everyUser(Limit{Rate: 1, Burst: .5}), Queue: Queue{Len: 3}})
	r.admit(of(alice, 10))
	rules := append(everyUser(Limit{Rate: 2, Burst: .5}), Rule{Name: "root", User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true})
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
		if rule, key := r.Key(w); rule+" "+key != want {
			t.Errorf("%v: %q, %q, want %q", w.User, rule, key, want)
		}
	}
	if err := r.SetRules(nil); err != nil {
		t.Fatal(err)
	}
	if rule, key := r.Key(alice); rule != "" || key != "" {
		t.Errorf("%q, %q without rules", rule, key)
	}
	r.admit(alice)
	if r.Close(); !errors.Is(r.SetRules(rules), ErrClosed) {
		t.Error("a closed gate takes rules")
	}
}

// A limit that becomes slower forgives nothing, not even to those who are idle.
func TestReconfigureForgivesNothing(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 10, Burst: 100})})
	r.admit(of(alice, 100))
	if err := r.Reconfigure(Config{Rules: everyUser(Limit{Rate: 1, Burst: 100})}); err != nil {
		t.Fatal(err)
	}
	r.clock.advance(11 * time.Second)
	r.memory.Purge()
	if got := r.left(alice); math.Abs(got-11) > 1e-6 {
		t.Errorf("%v left, want 11", got)
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Mode: Reserve}, "Mode reserve: must be Strict or Permissive"},
		{Config{Queue: Queue{Len: -1}}, "Queue.Len -1"},
		{Config{Mode: Permissive, Queue: Queue{Len: 1}}, "nothing waits in a Permissive gate"},
		{Config{OnStoreError: 7}, "OnStoreError 7"},
		{Config{Name: "api", Rules: []Rule{{}}}, `quota: gate "api": Rules[0] (all): Limits`},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	_, err := New(Config{Mode: Reserve, Queue: Queue{Len: -1}, Rules: []Rule{{}, {Exempt: true, Blocked: true}}})
	if n := strings.Count(err.Error(), "\n"); n < 4 {
		t.Errorf("%v: want every fault", err)
	}
}
