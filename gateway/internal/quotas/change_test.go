package quotas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// As many rules as are allowed can be set at once, and one more is refused with how many
// there may be. What is kept can be deleted whatever their number.
func TestMostRules(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	rules := make([]policy.QuotaRuleSpec, MaxRules+1)
	for i := range rules {
		rules[i] = *user(fmt.Sprint("user-", i), "3/h")
	}
	f := func(part string, ops ...Op) {
		t.Helper()
		_, err := d.Change(t.Context(), Change{Ops: ops})
		if (err == nil) != (part == "") || err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%.300v, want %q", err, part)
		}
	}
	f("10001 rules, at most 10000 can be kept", Op{Gate: "api", Replace: rules})
	f("", Op{Gate: "api", Replace: rules[:MaxRules]})
	f("10001 rules would be kept, at most 10000 can be", Op{Gate: "other", Set: user("x", "1/s")})
	f("", Op{Gate: "api", Delete: &quota.Rule{User: "user-0"}}, Op{Gate: "other", Set: user("x", "1/s")}, Op{Gate: "api", Set: user("user-9999", "5/h")})
	remove := func(name string) Change {
		return Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: quota.Match(name)}}}}
	}
	answers := d.Each(t.Context(), []Change{remove("user-2"), set("other", "a", "1/h"), set("other", "b", "1/h"), remove("user-3"), set("other", "c", "1/h")})
	for i, want := range []string{"", "", "10001 rules would be kept", "", ""} {
		if err := answers[i].Err; (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("change %d of several: %.300v, want %q", i, err, want)
		}
	}
	if got := d.passes("api", "user-9999", 9); got != 5 {
		t.Errorf("the last of them: %d, want 5", got)
	}
	if got := d.passes("api", "user-1", 9); got != 3 {
		t.Errorf("the first of them: %d, want 3", got)
	}
}

// Who makes the same mistake ten thousand times is told of it once or twice, in the answer
// and in the log.
func TestManyFaults(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	ops := make([]Op, MaxOps)
	for i := range ops {
		ops[i] = Op{Gate: "api", Set: user(fmt.Sprint("user-", i), "0/h")}
	}
	_, err := d.Change(t.Context(), Change{Ops: ops})
	if text := fmt.Sprint(err); !strings.Contains(text, "and 980 more") || strings.Count(text, "\n") != mostFaults {
		t.Errorf("%d lines: %.300s", strings.Count(text, "\n"), text)
	}
}

// The faults of an operation have its number if there are others, which may be well.
func TestFaultsAreNumbered(t *testing.T) {
	d := newDesk(t, new(shelf), base())
	well, wrong := Op{Gate: "api", Set: user("dave", "1/h")}, Op{Gate: "api", Set: user("carol", "0/h")}
	nowhere, again := Op{Set: user("carol", "1/h")}, Op{Gate: "api", Delete: &quota.Rule{User: "eve"}}
	for want, ops := range map[string][]Op{
		"rate: ": {wrong}, "ops[1]: rate: ": {well, wrong}, "gate: is missing": {nowhere}, "ops[1]: gate: is missing": {well, nowhere},
		"gate api has no rule": {again}, "ops[1]: gate api has no rule": {well, again},
	} {
		if _, err := d.Change(t.Context(), Change{Ops: ops}); !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A document that is changed does what a list of rules would, in the same order.
func FuzzDocument(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x40, 0x41, 0x81, 1, 1, 0xc0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		d := newDocument(1, []Rule{{Gate: "a", QuotaRuleSpec: *user("u1", "1/s")}})
		list := []Rule{{Gate: "a", QuotaRuleSpec: *user("u1", "1/s")}}
		at := func(gate, name string) int {
			for i, r := range list {
				if r.Gate == gate && r.User == quota.Match(name) {
					return i
				}
			}
			return -1
		}
		for n, b := range steps {
			gate, name := string(rune('a'+b&1)), fmt.Sprint("u", b>>1&7)
			i := at(gate, name)
			switch b >> 6 {
			case 0, 1:
				r := Rule{Gate: gate, QuotaRuleSpec: *user(name, fmt.Sprint(n+1, "/s"))}
				if was := d.put(r); was != (i >= 0) {
					t.Fatalf("put %s: was %v, place %d", name, was, i)
				}
				if i >= 0 {
					list[i] = r
				} else {
					list = append(list, r)
				}
			case 2:
				if was := d.remove(identity{gate, user(name, "").Pattern()}); was != (i >= 0) {
					t.Fatalf("drop %s: was %v, place %d", name, was, i)
				}
				if i >= 0 {
					list = append(list[:i:i], list[i+1:]...)
				}
			case 3:
				var rest []Rule
				for _, r := range list {
					if r.Gate != gate {
						rest = append(rest, r)
					}
				}
				if was := d.clear(gate); len(was) != len(list)-len(rest) {
					t.Fatalf("clear: %d of %d", len(was), len(list)-len(rest))
				}
				list = rest
			}
		}
		if got := newDocument(1, d.Rules).Rules; fmt.Sprint(got) != fmt.Sprint(list) {
			t.Fatalf("%v\nwant\n%v", got, list)
		}
	})
}

// What is checked rule by rule as they come is what is found in all of them at once.
func TestPlanWith(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(Change{Ops: []Op{{Gate: "other", Set: tiny("x")}, {Gate: "api", Set: user("carol", "3/h")}}})
	spec := base()
	spec.Gates["other"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}}}
	d.reload(spec) // a burst below 1 does not fit any more
	for _, c := range []Change{set("api", "dave", "2/h"), set("other", "y", "2/h"), {Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "carol"}}}}, set("other", "x", "2/h")} {
		d.must(c)
		if got, want := d.plan.faults, newPlan(spec, nowhere, d.saved.doc).faults; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: %v, want %v", c.asked(), got, want)
		}
	}
	if d.plan.Faulty() != 0 {
		t.Errorf("%v", d.plan.faults)
	}
}

// counting counts how often its store is written.
type counting struct {
	Store
	writes int
}

func (s *counting) Write(ctx context.Context, was string, next []byte) error {
	s.writes++
	return s.Store.Write(ctx, was, next)
}

// Of several changes each stands for itself, all see those before them, and one write keeps them.
func TestEach(t *testing.T) {
	store := &counting{Store: newFile(t, inTemp(t))}
	d := newDesk(t, store, base())
	remove := func(name string) Op { return Op{Gate: "api", Delete: &quota.Rule{User: quota.Match(name)}} }
	f := func(writes int, all []Change, want ...string) {
		t.Helper()
		before, known := store.writes, d.List("").ETag
		answers := d.Each(t.Context(), all)
		for i, a := range answers {
			if (a.Err == nil) != (want[i] == "") || a.Err != nil && !strings.Contains(a.Err.Error(), want[i]) {
				t.Errorf("change %d: %v, want %q", i, a.Err, want[i])
			}
			if now := d.List("").ETag; a.Err == nil && a.ETag != now {
				t.Errorf("change %d: ETag %s, and it is %s", i, a.ETag, now)
			}
		}
		if n := store.writes - before; n != writes || (known == d.List("").ETag) != (n == 0) {
			t.Errorf("written %d times, want %d", n, writes)
		}
	}
	dry := Change{Ops: []Op{{Gate: "api", Set: user("erin", "6/h")}}, ValidateOnly: true}
	f(1, []Change{
		set("api", "carol", "3/h"),
		{Ops: []Op{{Gate: "api", Set: user("dave", "5/h")}, {Gate: "api", Set: user("eve", "0/h")}}},
		{Ops: []Op{remove("carol"), {Gate: "other", Set: user("carol", "4/h")}}},
		set("apo", "carol", "3/h"),
		{IfMatch: "another", Ops: []Op{remove("carol")}},
		dry,
		{Ops: []Op{{Gate: "api", Clear: true, Set: user("x", "1/h")}}},
	}, "", "not above 0", "", "there is no gate", "read them again", "", "asks for 2 things")
	if got := []int{d.passes("api", "carol", 20), d.passes("api", "dave", 20), d.passes("other", "carol", 20), d.passes("api", "erin", 20)}; !slices.Equal(got, []int{10, 10, 5, 10}) {
		t.Errorf("let through %v: carol by the file, dave too, carol elsewhere (4, and one into debt), erin by the file", got)
	}
	f(0, []Change{dry, set("apo", "x", "1/h")}, "", "there is no gate")
	f(0, []Change{{MayMiss: true, Ops: []Op{remove("nobody")}}, {Ops: []Op{remove("nobody")}}}, "", "has no rule for user=nobody")
	f(0, []Change{{MayMiss: true, Ops: []Op{remove("alice")}}}, "the rule for user=alice of gate api is that of weir.yaml:api.rules[0]")
	f(1, []Change{set("api", "alice", "7/h"), {MayMiss: true, Ops: []Op{remove("alice"), remove("nobody")}}}, "", "")
	f(0, nil)
	if got := d.Each(t.Context(), make([]Change, 2)); got[0].Err == nil || got[1].Err == nil {
		t.Errorf("changes without operations: %+v", got)
	}
}

// Where a store fails, nothing of several changes is kept, and each that is not wrong by itself has that error.
func TestEachFails(t *testing.T) {
	store := &failing{Store: newFile(t, inTemp(t))}
	d := newDesk(t, store, base())
	store.write = fmt.Errorf("%w: disk full", ErrUnchanged)
	a := d.Each(t.Context(), []Change{set("api", "carol", "3/h"), set("api", "dave", "0/h"), set("api", "erin", "4/h")})
	for i, want := range []string{"disk full", "not above 0", "disk full"} {
		if !strings.Contains(fmt.Sprint(a[i].Err), want) {
			t.Errorf("change %d: %v, want %s", i, a[i].Err, want)
		}
	}
	if got := d.passes("api", "carol", 20); got != 10 {
		t.Errorf("carol: %d by a rule that is not kept", got)
	}
	none := newDesk(t, nil, base())
	if got := none.Each(t.Context(), []Change{set("api", "carol", "3/h")})[0].Err; !errors.Is(got, ErrNowhere) {
		t.Errorf("without a store: %v", got)
	}
	gone := func(name string) Change {
		return Change{MayMiss: true, Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: quota.Match(name)}}}}
	}
	a = none.Each(t.Context(), []Change{gone("carol"), gone("alice"), {Ops: gone("carol").Ops}, {MayMiss: true}})
	if a[0].Err != nil || !strings.Contains(fmt.Sprint(a[1].Err), "is that of weir.yaml:api.rules[0]") || !errors.Is(a[2].Err, ErrNowhere) || a[3].Err == nil {
		t.Errorf("deleted without a store: %v, %v, %v, %v", a[0].Err, a[1].Err, a[2].Err, a[3].Err)
	}
}

// A limit that a rule cannot have is kept as it was asked for, beside what the rule gives in its place.
func TestAskedIsKept(t *testing.T) {
	name := inTemp(t)
	file := newFile(t, name)
	d := newDesk(t, file, base())
	free := &policy.QuotaRuleSpec{Rule: quota.Rule{User: "carol", Exempt: true}}
	d.must(Change{Ops: []Op{{Gate: "api", Set: free, Asked: 1e300}}})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	d = newDesk(t, newFile(t, name), base())
	if v := d.List("api").Rules[2]; v.Asked != 1e300 || !v.Rule.Exempt || !v.InForce {
		t.Errorf("%+v", v)
	}
	d.must(Change{Ops: []Op{{Gate: "api", Set: free, Asked: 1e200}}})
	if v := d.List("api").Rules[2]; v.Asked != 1e200 {
		t.Errorf("set anew: %+v", v)
	}
	d.must(Change{Ops: []Op{{Gate: "api", Set: free}}})
	if v := d.List("api").Rules[2]; v.Asked != 0 {
		t.Errorf("set anew by a rule alone: %+v", v)
	}
}
