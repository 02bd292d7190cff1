package quotas

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// logged keeps what is logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// base is a configuration with two quotas and one gate of another kind.
func base() policy.Spec {
	return policy.Spec{Gates: map[string]policy.GateSpec{
		"api": {Quota: &policy.QuotaSpec{
			QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}, By: []string{"user"},
			Rules: []policy.QuotaRuleSpec{{Rule: quota.Rule{Name: "big", User: "alice"}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "50/h"}}},
		}},
		"other": {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}, Debt: true}},
		"slots": {Limit: &policy.LimitSpec{Limit: 1}},
	}}
}

// desk is a book with the policy it changes.
type desk struct {
	*Book
	t      testing.TB
	policy *policy.Policy
	log    *logged
}

func newDesk(t testing.TB, store Store, spec policy.Spec) *desk {
	t.Helper()
	d := &desk{t: t, log: new(logged)}
	book, err := Open(t.Context(), Options{Store: store, Logger: slog.New(slog.NewTextHandler(d.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	d.Book = book
	d.reload(spec)
	return d
}

// reload compiles another configuration and lets it take over.
func (d *desk) reload(spec policy.Spec) {
	d.t.Helper()
	prev := d.policy
	plan := d.Plan(spec, func(gate, field string) string { return "weir.yaml:" + gate + "." + field }, nil)
	p, err := policy.Compile(spec, policy.Options{Previous: prev, QuotaRules: plan.Rules})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(p.Close)
	d.SetPolicy(plan, p)
	d.policy = p
	if prev != nil {
		prev.Replace(p)
	}
}

// passes counts how many of n requests of a user a gate lets through.
func (d *desk) passes(gate, user string, n int) (passed int) {
	for range n {
		if _, err := d.policy.Gate(gate).TryAdmit(weir.Work{User: user}); err == nil {
			passed++
		}
	}
	return passed
}

// lastLine is what was logged last.
func lastLine(d *desk) string {
	lines := strings.Split(strings.TrimSpace(d.log.String()), "\n")
	return lines[len(lines)-1]
}

func newFile(t testing.TB, name string) *File {
	t.Helper()
	f, err := OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func inTemp(t testing.TB) string { return filepath.Join(t.TempDir(), "quotas.json") }

// user is a rule for one user.
func user(name, rate string) *policy.QuotaRuleSpec {
	return &policy.QuotaRuleSpec{Rule: quota.Rule{User: quota.Match(name)}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: rate}}
}

func set(gate, name, rate string) Change {
	return Change{Ops: []Op{{Gate: gate, Set: user(name, rate)}}, By: "tester"}
}

// must makes a change that has to succeed.
func (d *desk) must(c Change) Result {
	d.t.Helper()
	res, err := d.Change(d.t.Context(), c)
	if err != nil {
		d.t.Fatal(err)
	}
	return res
}

// tiny is a rule whose bucket never has a whole token.
func tiny(name string) *policy.QuotaRuleSpec {
	r := user(name, "1/h")
	r.Burst = 0.5
	return r
}
