package quota

import (
	"testing"

	"github.com/weir-go/weir"
)

// rig is a gate on a clock that the test moves.
type rig struct {
	*Quota
	*testing.T
	clock *still
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	clock := &still{}
	cfg.Name, cfg.Now = "q", clock.now
	return &rig{newQuota(t, cfg), t, clock}
}

func newQuota(t testing.TB, cfg Config) *Quota {
	t.Helper()
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

func (r *rig) admit(w weir.Work) weir.Permit {
	r.Helper()
	p, err := r.TryAdmit(w)
	if err != nil {
		r.Fatalf("%+v: %v", w, err)
	}
	return p
}

func (r *rig) refused(w weir.Work) *weir.Rejection {
	r.Helper()
	_, err := r.TryAdmit(w)
	return r.rejection(err)
}

func (r *rig) rejection(err error) *weir.Rejection {
	r.Helper()
	got := weir.AsRejection(err)
	if got == nil {
		r.Fatalf("%v, want a rejection", err)
	}
	return got
}

// left is how many tokens the bucket of w has.
func (r *rig) left(w weir.Work) float64 {
	r.Helper()
	w.Cost = 0
	id := r.Quota.settings.Load().identify(w)
	rule := r.Quota.settings.Load().rules.find(&id)
	key := string(appendKey(nil, "q", rule, &id))
	return take(r, r.store, Take{Key: key, Limits: rule.limits, Mode: DryRun, Debt: true}).Remaining
}

func everyUser(limits ...Limit) []Rule { return []Rule{{User: Every, Limits: limits}} }

var (
	alice = weir.Work{User: "alice"}
	bob   = weir.Work{User: "bob"}
)

func of(w weir.Work, cost int64) weir.Work { w.Cost = cost; return w }
