package quotas

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/policy"
)

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
	d.Adopt(plan, p)
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
	if l := d.Look("api"); l.KeptIn != to.Name() || len(l.Rules) != 3 {
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
	k, err := ReadFile(t.Context(), d.Look("").KeptIn)
	if err != nil || k.Len() != 1 {
		t.Errorf("%v, %v", k, err)
	}
	if k, err = ReadFile(t.Context(), inTemp(t)); err != nil || k.Len() != 0 {
		t.Errorf("%v, %v", k, err)
	}
	if _, err = ReadFile(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no plain file") {
		t.Errorf("a directory: %v", err)
	}
}
