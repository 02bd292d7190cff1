package quotas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// A rule set at run time wins over the file, survives a restart and a reload, and what
// the file says is in force again when it is deleted.
func TestRulesWin(t *testing.T) {
	file := newFile(t, inTemp(t))
	d := newDesk(t, file, base())
	if got := d.passes("api", "bob", 20); got != 10 {
		t.Fatalf("bob by the file: %d, want 10", got)
	}
	d.must(set("api", "carol", "3/h"))
	if got := d.passes("api", "carol", 20); got != 3 {
		t.Errorf("carol: %d, want 3", got)
	}
	d.reload(base())
	if got := d.passes("api", "carol", 20); got != 0 {
		t.Errorf("carol after a reload: %d, want 0", got)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	d2 := newDesk(t, newFile(t, file.Name()), base())
	if got := d2.passes("api", "carol", 20); got != 3 {
		t.Errorf("carol after a restart: %d, want 3", got)
	}
	d2.must(Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "carol"}}}})
	if got := d2.passes("api", "carol", 20); got != 0 {
		t.Errorf("carol by the file: %d, want 0: the bucket is the same, and empty", got)
	}
	if got := d2.policy.Gate("api").Quota().Windows("user=carol"); got != nil {
		t.Errorf("carol still has %v", got)
	}
}

// Tokens and debts stay when a rate is changed: no bucket is filled by it.
func TestChangeKeepsTokens(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	if got := d.passes("api", "alice", 45); got != 45 {
		t.Fatalf("alice: %d", got)
	}
	d.must(set("api", "alice", "100/h")) // in the place of the file's 50/h
	if got := d.passes("api", "alice", 100); got != 5 {
		t.Errorf("alice has %d after the change, want the 5 that were left", got)
	}
	if _, err := d.policy.Gate("api").TryAdmit(weir.Work{User: "alice"}); !strings.Contains(fmt.Sprint(err), "big") {
		t.Errorf("%v: want the name that the file gives the rule", err)
	}
}

// Of several operations one that is wrong keeps all from being carried out, and all
// that is wrong is told.
func TestAllOrNothing(t *testing.T) {
	file := newFile(t, inTemp(t))
	d := newDesk(t, file, base())
	before := d.List("")
	f := func(missing bool, part string, ops ...Op) {
		t.Helper()
		ops = append([]Op{{Gate: "api", Set: user("carol", "3/h")}}, ops...)
		_, err := d.Change(t.Context(), Change{Ops: ops})
		var faults Faults
		if !errors.As(err, &faults) || !strings.Contains(err.Error(), part) || faults[len(faults)-1].Missing != missing {
			t.Errorf("%v, want %q", err, part)
		}
		if data, err := file.Read(t.Context()); data != nil || err != nil {
			t.Errorf("something was written: %s %v", data, err)
		}
		if l := d.List(""); l.ETag != before.ETag || len(l.Rules) != len(before.Rules) {
			t.Errorf("something has changed: %d rules, %s", len(l.Rules), l.ETag)
		}
	}
	f(true, "has no rule for user=dave", Op{Gate: "api", Delete: &quota.Rule{User: "dave"}})
	f(false, `there is no gate "apo"`, Op{Gate: "apo", Set: user("x", "1/s")})
	f(false, `gate "slots" has no quota`, Op{Gate: "slots", Set: user("x", "1/s")})
	f(false, "gate: is missing; write one of api, other", Op{Set: user("x", "1/s")})
	f(true, `there is no gate "apo"; gates with a quota are api, other`, Op{Gate: "apo", Clear: true})
	f(true, `gate "slots" has no quota`, Op{Gate: "slots", Replace: []policy.QuotaRuleSpec{}})
	f(false, "asks for 0 things", Op{Gate: "api"})
	f(false, "asks for 2 things", Op{Gate: "api", Set: user("x", "1/s"), Clear: true})
	f(false, "is not a number", Op{Gate: "api", Set: user("x", "NaN/s")})
	f(false, "not above 0", Op{Gate: "api", Set: user("x", "0/s")})
	f(false, "out of range", Op{Gate: "api", Set: user("x", "1e300/s")})
	f(false, "burst of 0.5", Op{Gate: "api", Set: tiny("x")})
	f(false, "too small", Op{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{User: "x"}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/s", Burst: -1}}})
	f(false, "about the same rule", Op{Gate: "api", Set: user("carol", "4/h")})
	f(false, "priority", Op{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{Priority: "urgent", Blocked: true}}})
	f(false, "hash", Op{Gate: "api", Set: user(strings.Repeat("k", 10_000), "1/s")})
	f(false, "hash", Op{Gate: "api", Set: user("a\x00\nb", "1/s")})
	f(false, "name", Op{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{Name: "n", User: "x", Blocked: true}}})
	f(false, "by what it matches alone", Op{Gate: "api", Delete: &quota.Rule{User: "carol", Blocked: true}})
	f(false, "bits set beyond", Op{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{Address: "10.0.0.1/8", Blocked: true}}})
	_, err := d.Change(t.Context(), Change{Ops: []Op{{Gate: "api", Set: user("x", "0/s")}, {Gate: "apo", Clear: true}, {Gate: "api", Set: tiny("y")}}})
	if text := fmt.Sprint(err); !strings.Contains(text, "ops[0]") || !strings.Contains(text, "ops[2]") {
		t.Errorf("not all that is wrong: %v", err)
	}
	for _, n := range []int{0, MaxOps + 1} {
		if _, err := d.Change(t.Context(), Change{Ops: make([]Op, n)}); !strings.Contains(fmt.Sprint(err), "from 1 to 1000") {
			t.Errorf("%d operations: %v", n, err)
		}
	}
}

func TestPrecondition(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	first := d.List("").ETag
	c := set("api", "carol", "3/h")
	c.IfMatch, c.ValidateOnly = first, true
	if res := d.must(c); res.ETag != first || len(res.Steps) != 1 || len(d.List("").Rules) != 3 {
		t.Errorf("validate only: %+v", res)
	}
	c.ValidateOnly = false
	if res := d.must(c); res.ETag == first || res.ETag != d.List("").ETag {
		t.Errorf("%+v", res)
	}
	if _, err := d.Change(t.Context(), c); !errors.Is(err, ErrPrecondition) {
		t.Errorf("with the ETag of before: %v", err)
	}
	c.IfMatch = "*"
	before := d.List("").ETag
	if res := d.must(c); res.ETag == before {
		t.Error("the same ETag after another change of nothing: two that look and set would not notice each other")
	}
}

// Two that write at once lose nothing.
func TestWritersAtOnce(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	const writers, each = 4, 5
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				if _, err := d.Change(context.Background(), set("api", fmt.Sprintf("w%d-%d", w, i), "5/h")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := len(d.List("api").Rules); n != 2+writers*each {
		t.Errorf("%d rules, want %d", n, 2+writers*each)
	}
	if got := d.passes("api", "w3-4", 9); got != 5 {
		t.Errorf("the last: %d", got)
	}
}

// What is set while a policy is compiled is not in the rules that it was compiled with,
// and is in force all the same once the policy is.
func TestSetWhileCompiling(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	plan := d.Plan(base(), func(string, string) string { return "" }, nil)
	p, err := policy.Compile(base(), policy.Options{QuotaRules: plan.Rules})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	d.must(set("api", "carol", "3/h"))
	d.SetPolicy(plan, p)
	d.policy = p
	if got := d.passes("api", "carol", 9); got != 3 {
		t.Errorf("carol: %d, want 3", got)
	}
}

// Whatever is set while the file is reloaded is in force in the end.
func TestReloadsAndWritesAtOnce(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	const n = 20
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range n {
			if _, err := d.Change(context.Background(), set("api", fmt.Sprint("u", i), "3/h")); err != nil {
				t.Error(err)
			}
		}
	})
	for range n {
		d.reload(base())
	}
	writer.Wait()
	if in := len(d.policy.Gate("api").Quota().Rules()); in != 2+n {
		t.Errorf("%d rules in force, want %d", in, 2+n)
	}
}

// A rule that does not fit the configuration any more is kept and says why it is not
// in force; it is again as soon as it fits.
func TestMisfit(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(Change{Ops: []Op{
		{Gate: "other", Set: tiny("x")}, // fits, because other allows debts
		{Gate: "api", Set: user("carol", "3/h")},
	}})
	spec := base()
	spec.Gates["other"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}}}
	delete(spec.Gates, "api")
	d.reload(spec)
	for _, v := range d.List("").Rules {
		if v.Source == FromDynamic && (v.InForce || v.Because == "") {
			t.Errorf("%+v", v)
		}
	}
	if log := d.log.String(); !strings.Contains(log, "does not fit") || !strings.Contains(log, "user=carol") {
		t.Errorf("not logged:\n%s", log)
	}
	d.must(set("other", "y", "2/h"))                                             // which has nothing to do with it
	d.must(Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "carol"}}}}) // what nobody can use can be deleted
	d.reload(base())
	for _, v := range d.List("").Rules {
		if v.Source == FromDynamic && !v.InForce {
			t.Errorf("%+v", v)
		}
	}
}

// A rule that would be called like another one of the file is not taken, and one that is kept already keeps no reload from working.
func TestMisfitOfAName(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(Change{Ops: []Op{
		{Gate: "api", Set: user("eve", "3/h")},
		{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{Address: "2001:DB8::/32", Blocked: true}}},
	}})
	of := func(name string, r quota.Rule) policy.QuotaRuleSpec {
		r.Name = name
		return policy.QuotaRuleSpec{Rule: r, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "50/h"}}
	}
	spec := base()
	spec.Gates["api"].Quota.Rules = []policy.QuotaRuleSpec{of("user=eve", quota.Rule{User: "mallory"}), of("address=2001:DB8::/32", quota.Rule{Client: "web"})}
	d.reload(spec)
	for _, v := range d.List("").Rules {
		if set := v.Source == FromDynamic; set != strings.Contains(v.Because, "which is the name of rules[") || v.InForce == set {
			t.Errorf("%+v", v)
		}
	}
	if got := d.passes("api", "eve", 20); got != 10 {
		t.Errorf("eve: %d, want the 10 that the file gives", got)
	}
	_, err := d.Change(t.Context(), set("api", "eve", "4/h"))
	if want := `would be called "user=eve", which is the name of rules[0]`; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want %q", err, want)
	}
	d.must(set("api", "carol", "3/h"))
	if got := d.passes("api", "carol", 20); got != 3 {
		t.Errorf("carol: %d, want 3", got)
	}
	spec = base()
	spec.Gates["api"].Quota.Rules = []policy.QuotaRuleSpec{of("user=eve", quota.Rule{User: "mallory"}), of("vip", quota.Rule{User: "eve"})}
	d.reload(spec) // the rule takes the name vip
	d.must(set("api", "eve", "2/h"))
	if w := d.policy.Gate("api").Quota().Windows("vip"); len(w) != 1 || w[0].Burst != 2 {
		t.Errorf("vip: %+v", w)
	}
}

// downStore keeps rules on a server that does not answer.
type downStore struct{ Store }

func (downStore) Read(context.Context) ([]byte, error) { return nil, errors.New("connection refused") }
func (downStore) Close() error                         { return nil }

// Whose store is down is not told to mend a document.
func TestStoreIsDown(t *testing.T) {
	_, err := Open(t.Context(), Options{Store: downStore{}, Logger: slog.New(slog.DiscardHandler)})
	text := fmt.Sprint(err)
	if !strings.Contains(text, "connection refused; mend or start what keeps them") || strings.Contains(text, "document") {
		t.Errorf("%v", err)
	}
}

// Where rules cannot be read the gateway does not start, unless it is told to; then it
// writes nothing over them.
func TestBroken(t *testing.T) {
	name := inTemp(t)
	broken := "{\n\"weir_quotas\": 1,\n\"rules\": [{\"gate\": \"api\", \"blcoked\": true}]}"
	if err := os.WriteFile(name, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	file := newFile(t, name)
	log := new(logged)
	o := Options{Store: file, Logger: slog.New(slog.NewTextHandler(log, nil))}
	_, err := Open(t.Context(), o)
	if text := fmt.Sprint(err); !strings.Contains(text, name+":3:") || !strings.Contains(text, "blcoked") || !strings.Contains(text, "start_broken") {
		t.Errorf("%v", err)
	}
	o.StartBroken = true
	book, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{Book: book, t: t, log: log}
	d.reload(base())
	if l := d.List(""); l.Trouble == "" || !l.NeverRead || !strings.Contains(log.String(), "blcoked") {
		t.Errorf("%+v: no trouble told:\n%s", l, log)
	}
	d.saved.opened = d.saved.opened.Add(-time.Minute)
	if _, holds := d.Trouble(); holds != "none of them is in force" || d.Stats().Age < time.Minute {
		t.Errorf("%s; not read for %v, want the time since the start", holds, d.Stats().Age)
	}
	if err := os.WriteFile(name, []byte("{"), 0o600); err != nil { // other trouble, and nothing was read so far
		t.Fatal(err)
	}
	d.Follow(t.Context())
	if n := strings.Count(log.String(), "cannot be read; none of them is in force"); n != 2 || strings.Contains(log.String(), "stay in force") {
		t.Errorf("%d lines say that no rule is in force, want 2:\n%s", n, log)
	}
	if err := os.WriteFile(name, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Change(t.Context(), set("api", "carol", "3/h")); err == nil {
		t.Error("written over what is broken")
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != broken {
		t.Errorf("%s %v", got, err)
	}
	mended := strings.Replace(broken, "blcoked", "blocked", 1)
	if err := os.WriteFile(name, []byte(mended), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Follow(t.Context())
	if l := d.List(""); l.Trouble != "" || l.NeverRead || len(d.List("api").Rules) != 3 || d.Stats().Age >= time.Minute {
		t.Errorf("mended: %+v, read %v ago", l, d.Stats().Age)
	}
}

// What is changed by hand, or by another gateway, is taken up; what cannot be read
// leaves the rules that are known.
func TestFollow(t *testing.T) {
	file := newFile(t, inTemp(t))
	d := newDesk(t, file, base())
	d.must(set("api", "carol", "3/h"))
	data, err := file.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file.Name(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(data), "3/h", "4/h", 1))
	d.Follow(t.Context())
	if got := d.passes("api", "carol", 9); got != 4 {
		t.Errorf("after a change by hand: %d, want 4", got)
	}
	if line := lastLine(d); !strings.Contains(line, "level=INFO") || !strings.Contains(line, `gone="api: user=carol 3/h"`) {
		t.Errorf("a change by hand:\n%s", line)
	}
	write("{")
	d.Follow(t.Context())
	d.Follow(t.Context())
	if n := strings.Count(d.log.String(), "level=ERROR"); n != 1 || !strings.Contains(d.log.String(), "cannot be read; the known ones stay in force") {
		t.Errorf("%d errors logged, want 1:\n%s", n, d.log)
	}
	if l := d.List("api"); len(l.Rules) != 3 || l.Trouble == "" {
		t.Errorf("%+v", l)
	}
	write(string(data))
	d.Follow(t.Context())
	if l := d.List("api"); l.Trouble != "" || l.ETag != tag(data) {
		t.Errorf("%+v", l)
	}
}

// Rules that are gone from where they are kept are written there again.
func TestGoneIsRestored(t *testing.T) {
	file := newFile(t, inTemp(t))
	d := newDesk(t, file, base())
	d.Follow(t.Context())
	if data, err := file.Read(t.Context()); data != nil || err != nil {
		t.Fatalf("something was written where nothing was set: %s %v", data, err)
	}
	d.must(Change{Ops: []Op{{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{User: "eve", Blocked: true}}}}})
	before, err := file.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	d.Follow(t.Context())
	after, err := file.Read(t.Context())
	if err != nil || string(after) != string(before) || d.passes("api", "eve", 1) != 0 {
		t.Errorf("%v: %s\nwant\n%s", err, after, before)
	}
	if !strings.Contains(d.log.String(), "wrote the known ones again") {
		t.Errorf("not logged:\n%s", d.log)
	}
}

// A shared store that has older rules has lost some: whoever knows the newest writes them again. They stay in force
// meanwhile, also while that fails. An older file is a backup, and holds.
func TestOlderInAStore(t *testing.T) {
	block := Change{Ops: []Op{{Gate: "api", Set: &policy.QuotaRuleSpec{Rule: quota.Rule{User: "mallory", Blocked: true}}}}}
	t.Run("shared", func(t *testing.T) {
		shared := new(shelf)
		failing := &failing{Store: shared}
		behind, newest := newDesk(t, shared, base()), newDesk(t, failing, base())
		behind.must(set("api", "carol", "3/h"))
		etag := newest.must(block).ETag
		shared.doc = nil // the server restarts without a disk
		behind.Follow(t.Context())
		failing.write = syscall.EIO
		newest.Follow(t.Context())
		if l := newest.List(""); l.ETag != etag || !strings.Contains(l.Trouble, "writing the known ones again failed") || newest.passes("api", "mallory", 5) != 0 {
			t.Errorf("while nothing can be written: %+v", l)
		}
		failing.write = nil
		newest.Follow(t.Context())
		behind.Follow(t.Context())
		for name, d := range map[string]*desk{"the one behind": behind, "the one with the newest": newest} {
			if l := d.List(""); l.ETag != etag || l.Trouble != "" || d.passes("api", "mallory", 5) != 0 {
				t.Errorf("%s: %+v", name, l)
			}
		}
		if log := newest.log.String(); strings.Count(log, "wrote the known ones again") != 1 || !strings.Contains(log, "revision=2 found_revision=1 dropped=none") {
			t.Errorf("not logged once, with both revisions:\n%s", log)
		}
	})
	t.Run("of the same revision", func(t *testing.T) { // or two gateways would replace each other's rules for ever
		shared := new(shelf)
		one, other := newDesk(t, shared, base()), newDesk(t, shared, base())
		other.must(set("api", "carol", "3/h"))
		shared.doc = nil
		etag := one.must(set("api", "bob", "3/h")).ETag
		other.Follow(t.Context())
		if l := other.List(""); l.ETag != etag {
			t.Errorf("%+v, want what the store has", l)
		}
		if line := lastLine(other); !strings.Contains(line, "level=WARN") || !strings.Contains(line, `gone="api: user=carol 3/h"`) {
			t.Errorf("no warning that names the rule that is gone:\n%s", line)
		}
		one.must(set("api", "bob", "4/h"))
		if other.Follow(t.Context()); !strings.Contains(lastLine(other), "level=INFO") || !strings.Contains(lastLine(other), `gone="api: user=bob 3/h"`) {
			t.Errorf("a common change by another gateway:\n%s", lastLine(other))
		}
	})
	t.Run("with a rule that is new", func(t *testing.T) { // nobody can tell it from one that was deleted since
		shared := new(shelf)
		behind, newest := newDesk(t, shared, base()), newDesk(t, shared, base())
		behind.must(set("api", "carol", "3/h"))
		newest.must(set("api", "erin", "3/h"))
		newest.must(set("api", "erin", "4/h"))
		shared.doc = nil
		behind.Follow(t.Context())
		behind.must(block)
		newest.Follow(t.Context())
		if line := lastLine(newest); !strings.Contains(line, "level=WARN") || !strings.Contains(line, `dropped="api: user=mallory blocked"`) {
			t.Errorf("no warning that names the rule that is dropped:\n%s", line)
		}
		if behind.Follow(t.Context()); !strings.Contains(lastLine(behind), `gone="api: user=mallory blocked"`) {
			t.Errorf("where the rule was set:\n%s", lastLine(behind))
		}
	})
	t.Run("file", func(t *testing.T) {
		file := newFile(t, inTemp(t))
		d := newDesk(t, file, base())
		d.must(set("api", "carol", "3/h"))
		backup, err := file.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.must(block)
		if err := os.WriteFile(file.Name(), backup, 0o600); err != nil {
			t.Fatal(err)
		}
		d.Follow(t.Context())
		if l := d.List(""); l.ETag != tag(backup) || d.passes("api", "mallory", 5) != 5 {
			t.Errorf("after a backup was put back: %+v", l)
		}
	})
}

// Each step is logged with who, before and after, and what was not done with what was
// asked for: nobody tries to change a quota without a line in the log.
func TestAudit(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	f := func(c Change, parts ...string) Result {
		t.Helper()
		before := len(d.log.String())
		c.By, c.Via = "tester", ViaSocket
		res, _ := d.Change(t.Context(), c)
		line := d.log.String()[before:]
		for _, part := range append(parts, "by=tester") {
			if !strings.Contains(line, part) {
				t.Errorf("no %s in\n%s", part, line)
			}
		}
		return res
	}
	f(set("api", "carol", "3/h"), `before="as the file says"`, "gate=api", `rule="user=carol"`)
	res := f(set("api", "carol", "4/h burst 9"), `before="3/h burst 3"`, `after="4/h burst 9"`, "file_gives=nothing")
	if !strings.Contains(d.log.String(), "etag="+res.ETag) {
		t.Errorf("no ETag in\n%s", d.log)
	}
	look := set("api", "carol", "5/h")
	look.ValidateOnly = true
	f(look, "validated", `asked="api: set user=carol 5/h"`)
	f(Change{Ops: []Op{{Gate: "apo", Clear: true}}}, "level=WARN", "result=refused", `asked="apo: delete all"`, "there is no gate")
	f(Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "dave"}}, {Gate: "api", Set: user("x", "0/s")}}}, `asked="api: delete user=dave; api: set user=x 0/s"`, "result=refused")
	f(Change{IfMatch: "old", Ops: set("api", "carol", "9/h").Ops}, "result=conflict", "if_match=old", `asked="api: set user=carol 9/h"`)
	f(Change{Ops: make([]Op, 30)}, "operations=30", "and 10 more")
	f(Change{Ops: []Op{{Gate: "other", Clear: true}}}, "changes nothing", `asked="other: delete all"`)
	f(Change{Ops: []Op{{Gate: "api", Set: user("dan", "4/h")}, {Gate: "other", Set: user("dan", "5/h")}}}, `gate="api; other"`, `rule="user=dan"`,
		`before="as the file says; as the file says"`, `after="4/h burst 4; 5/h burst 5"`, `file_gives="nothing; nothing"`)
	lots := make([]policy.QuotaRuleSpec, MaxOps+50)
	for i := range lots {
		lots[i] = *user(fmt.Sprint("lot-", i), "1/h")
	}
	before := strings.Count(d.log.String(), "quota changed")
	f(Change{Ops: []Op{{Gate: "api", Replace: lots}}}, `user=lot-0"`, fmt.Sprintf(`user=lot-%d"`, len(lots)-1))
	if n := strings.Count(d.log.String(), "quota changed") - before; n != len(lots)+2 { // carol and dan are taken back
		t.Errorf("%d lines for %d rules that changed", n, len(lots)+1)
	}
}

// failing is a store that fails as it is told.
type failing struct {
	Store
	read, write error
}

func (s *failing) Read(ctx context.Context) ([]byte, error) {
	if s.read != nil {
		return nil, s.read
	}
	return s.Store.Read(ctx)
}

func (s *failing) Write(ctx context.Context, was string, next []byte) error {
	if s.write != nil {
		return s.write
	}
	return s.Store.Write(ctx, was, next)
}

// newShared returns the store on a server that cannot be reached.
func newShared(t *testing.T) *Shared {
	t.Helper()
	server, err := weirredis.New(weirredis.Config{Addrs: []string{"127.0.0.1:1"}}) // a port that no test gets
	if err != nil {
		t.Fatal(err)
	}
	s := NewShared("store", server)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// What a store fails at changes nothing that is in force; whether it may have kept what it
// was given is told, logged and counted apart, and so is each kind of failure.
func TestStoreFails(t *testing.T) {
	file := newFile(t, inTemp(t))
	store := &failing{Store: file}
	d := newDesk(t, store, base())
	d.must(set("api", "carol", "3/h"))
	f := func(result, part string, known bool) {
		t.Helper()
		c := set("api", "carol", "9/h")
		c.Via = ViaToken
		before := d.Stats().Changes[By{ViaToken, result}]
		_, err := d.Change(t.Context(), c)
		if err == nil || errors.Is(err, ErrUnchanged) != known || !strings.Contains(d.log.String(), part) {
			t.Errorf("%v, logged\n%s", err, d.log)
		}
		if n := d.Stats().Changes[By{ViaToken, result}]; n != before+1 {
			t.Errorf("%s has been counted %d times, before %d", result, n, before)
		}
		if got := d.policy.Gate("api").Quota().Windows("user=carol"); len(got) != 1 || got[0].Burst != 3 {
			t.Errorf("carol has %v", got)
		}
	}
	store.write = syscall.EIO
	f(Unsure, "quota change failed; the change may have been kept, so read the rules", false)
	store.write = fmt.Errorf("%w: %w", ErrUnchanged, syscall.ENOSPC)
	f(Failed, "nothing is changed: no space left", true)
	store.write = newShared(t).Write(t.Context(), tag(nil), []byte("{}"))
	f(Failed, "nothing is changed: quota store down", true)
	store.write, store.read = nil, syscall.EIO
	f(Failed, "cannot be read, so nothing is changed", true)
	if n := strings.Count(d.log.String(), `level=ERROR msg="quota change failed; nothing is changed"`); n != 3 {
		t.Errorf("%d lines say that nothing is changed:\n%s", n, d.log)
	}
	d.Follow(t.Context())
	if l := d.List("api"); !strings.Contains(l.Trouble, "input/output error") || len(l.Rules) != 3 {
		t.Errorf("%+v", l)
	}
	s := d.Stats()
	if s.Failures[FailedRead] != 2 || s.Failures[FailedWrite] != 3 || s.Failures[FailedBroken] != 0 || s.Age < 0 {
		t.Errorf("%+v", s)
	}
	store.read = nil
	d.Follow(t.Context())
	if l := d.List("api"); l.Trouble != "" {
		t.Errorf("%+v", l)
	}
}

// A balancer with nothing behind it resets each connection, and each try has another port. It is the same trouble.
func TestTroubleOnce(t *testing.T) {
	store := &failing{Store: newFile(t, inTemp(t))}
	d := newDesk(t, store, base())
	for port := range 3 {
		store.read = &net.OpError{
			Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40_000 + port}, Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6379}, Err: syscall.ECONNRESET,
		}
		d.Follow(t.Context())
	}
	if l := d.List(""); strings.Count(d.log.String(), "level=ERROR") != 1 || !strings.Contains(l.Trouble, ":40002->") {
		t.Errorf("%s\nwant one error, and the last one shown: %s", d.log, l.Trouble)
	}
	store.read = syscall.EIO
	d.Follow(t.Context())
	if n := strings.Count(d.log.String(), "level=ERROR"); n != 2 {
		t.Errorf("%s\nwant another error for other trouble", d.log)
	}
}

func TestReplaceAndClear(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(Change{Ops: []Op{{Gate: "api", Set: user("a", "1/h")}, {Gate: "api", Set: user("b", "2/h")}, {Gate: "other", Set: user("a", "3/h")}}, By: "first"})
	res := d.must(Change{Ops: []Op{{Gate: "api", Replace: []policy.QuotaRuleSpec{*user("a", "1/h"), *user("c", "4/h")}}}, By: "second"})
	if len(res.Steps) != 2 {
		t.Errorf("%+v", res.Steps)
	}
	by := map[string]string{}
	for _, v := range d.List("").Rules {
		if v.Source == FromDynamic {
			by[v.Gate+" "+v.Matches] = v.SetBy
		}
	}
	if fmt.Sprint(by) != "map[api user=a:first api user=c:second other user=a:first]" {
		t.Errorf("%v", by)
	}
	if _, err := d.Change(t.Context(), Change{Ops: []Op{{Gate: "api", Replace: []policy.QuotaRuleSpec{*user("a", "1/h"), *user("a", "4/h")}}}}); err == nil {
		t.Error("two rules for the same")
	}
	if res := d.must(Change{Ops: []Op{{Gate: "api", Clear: true}}}); len(res.Steps) != 2 {
		t.Errorf("%+v", res.Steps)
	}
}

// The file's rules say where they stand and whether one set at run time has their
// place.
func TestLook(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(Change{Ops: []Op{{Gate: "api", Set: user("alice", "9/h")}, {Gate: "api", Set: user("*", "8/h")}}, By: "me"})
	var got []string
	for _, v := range d.List("api").Rules {
		got = append(got, fmt.Sprintf("%s %s %s %s %v", v.Matches, v.Gives, v.Source, v.Place, v.InForce))
	}
	want := []string{
		"user=alice 50/h file weir.yaml:api.rules[0] false",
		"user=* 10/h file weir.yaml:api.rate false",
		"user=alice 9/h dynamic  true",
		"user=* 8/h dynamic  true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := d.passes("api", "erin", 20); got != 8 {
		t.Errorf("everybody: %d, want 8", got)
	}
}

func TestNowhere(t *testing.T) {
	d := newDesk(t, nil, base())
	if _, err := d.Change(t.Context(), set("api", "a", "1/h")); !errors.Is(err, ErrNowhere) {
		t.Errorf("%v", err)
	}
	if l := d.List("api"); len(l.Rules) != 2 || l.KeptIn != "" {
		t.Errorf("%+v", l)
	}
	d.Follow(t.Context())
}

// A book that moves has the rules of the new place alone in force, also if one was set at
// the old one while the policy was compiled; there it is kept. What is set from then on
// goes to the new place, and the old one is free.
func TestMove(t *testing.T) {
	from, to := newFile(t, inTemp(t)), newFile(t, filepath.Join(t.TempDir(), "other.json"))
	d := newDesk(t, from, base())
	d.must(set("api", "carol", "3/h"))
	kept, err := Read(t.Context(), to, false)
	if err != nil {
		t.Fatal(err)
	}
	plan := kept.Plan(base(), nowhere)
	p, err := policy.Compile(base(), policy.Options{Previous: d.policy, QuotaRules: plan.Rules})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	d.must(set("api", "dave", "4/h")) // into a gate that both policies have
	d.SetPolicy(plan, p)
	d.policy = p
	for _, name := range []string{"carol", "dave"} {
		if got := d.passes("api", name, 20); got != 10 {
			t.Errorf("%s has %d, want the 10 of the file", name, got)
		}
	}
	d.must(set("api", "erin", "5/h"))
	if got := d.passes("api", "erin", 20); got != 5 {
		t.Errorf("erin has %d, want 5", got)
	}
	if l := d.List("api"); l.KeptIn != to.Name() || len(l.Rules) != 3 {
		t.Errorf("%+v", l)
	}
	if log := d.log.String(); !strings.Contains(log, "rules=2 still_in="+from.Name()) {
		t.Errorf("not told what is left behind:\n%s", log)
	}
	again, err := OpenFile(from.Name()) // closed by the move
	if err != nil {
		t.Fatal(err)
	}
	old, err := Read(t.Context(), again, false)
	if err != nil || old.Len() != 2 {
		t.Errorf("%v, %v", old, err)
	}
	if err := old.Close(); err != nil {
		t.Error(err)
	}
}

// A file that a gateway has open is read beside it; one that there is not has no rules.
func TestReadFile(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(set("api", "carol", "3/h"))
	k, err := ReadFile(t.Context(), d.List("").KeptIn)
	if err != nil || k.Len() != 1 {
		t.Errorf("%v, %v", k, err)
	}
	if k, err = ReadFile(t.Context(), inTemp(t)); err != nil || k.Len() != 0 {
		t.Errorf("%v, %v", k, err)
	}
	if _, err = ReadFile(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

// overtaken is a store in which somebody else is faster at the first writes.
type overtaken struct {
	Store
	first int
}

func (o *overtaken) Write(ctx context.Context, was string, next []byte) error {
	if o.first > 0 {
		o.first--
		return ErrChanged
	}
	return o.Store.Write(ctx, was, next)
}

// A change that somebody else has overtaken is made again, but not for ever.
func TestOvertaken(t *testing.T) {
	store := &overtaken{Store: newFile(t, inTemp(t))}
	d := newDesk(t, store, base())
	store.first = attempts - 1
	d.must(set("api", "bob", "3/h"))
	if got := d.passes("api", "bob", 9); got != 3 {
		t.Errorf("%d passed, want 3", got)
	}
	store.first = attempts
	if _, err := d.Change(t.Context(), set("api", "bob", "5/h")); !errors.Is(err, ErrChanged) {
		t.Errorf("%v, want that others were faster", err)
	}
	store.first = 0
	if got := d.List("api").Rules; got[len(got)-1].Gives != "3/h" {
		t.Errorf("%+v, want the rule as it was", got)
	}
}

// many are rules for n users at a rate, one fewer than there may be at most where n is
// that, so that one more can be set.
func many(n int, rate string) []policy.QuotaRuleSpec {
	rules := make([]policy.QuotaRuleSpec, min(n, MaxRules-1))
	for i := range rules {
		rules[i] = *user(fmt.Sprint("user-", i), rate)
	}
	return rules
}

// BenchmarkRules says how long it takes to replace all rules, to set one of many, to
// look whether the file has changed, to reload the configuration, and to start.
func BenchmarkRules(b *testing.B) {
	for _, n := range []int{100, 1000, MaxRules} {
		file := newFile(b, inTemp(b))
		d := newDesk(b, file, base())
		lots := [][]policy.QuotaRuleSpec{many(n, "3/h"), many(n, "4/h")}
		run := func(what string, f func(i int)) {
			b.Run(fmt.Sprint(what, "/", n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					f(i)
				}
			})
		}
		run("replace", func(i int) { d.must(Change{Ops: []Op{{Gate: "api", Replace: lots[i%2]}}}) })
		run("set", func(i int) { d.must(set("api", "x", fmt.Sprint(1+i, "/h"))) })
		run("follow", func(int) { d.Follow(b.Context()) })
		run("reload", func(int) { d.reload(base()) })
		run("start", func(int) {
			book, err := Open(b.Context(), Options{Store: file, Logger: d.Book.log})
			if err != nil {
				b.Fatal(err)
			}
			plan := book.Plan(base(), nowhere, nil)
			p, err := policy.Compile(base(), policy.Options{QuotaRules: plan.Rules})
			if err != nil {
				b.Fatal(err)
			}
			book.SetPolicy(plan, p)
			p.Close()
		})
	}
}

func nowhere(string, string) string { return "" }
