package room

import (
	"math"
	"testing"
)

// A reason counts as long as the newest goes first for it, and no longer: whoever
// has turned its order once is in order again when another does.
func TestAReasonEndsWithItsPhase(t *testing.T) {
	r := newRoom(8, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
	leaves := map[string]*Waiter{"early": push(r, "early", 0), "late": push(r, "late", 0)}
	for _, tenant := range []string{"early", "late"} {
		push(r, tenant, 1)
		push(r, tenant, 2)
	}
	reversed := func(tenant string) bool {
		return r.newestFirst(r.tenants.find(tenant, r.users.find("", 1)))
	}
	r.GiveUp(50*ms, leaves["early"])
	if !reversed("early") || reversed("late") {
		t.Errorf("after one has left: early %v, late %v", reversed("early"), reversed("late"))
	}
	r.Next(200 * ms) // nobody has left for an interval
	if reversed("early") {
		t.Error("the order stays turned when nobody leaves any more")
	}
	r.GiveUp(210*ms, leaves["late"])
	if reversed("early") || !reversed("late") {
		t.Errorf("after another has left: early %v, late %v", reversed("early"), reversed("late"))
	}
	r.check(t)
}

// The count of phases wraps past 0, which is the mark of those without a reason.
func TestPhasesWrap(t *testing.T) {
	r := newRoom(8, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
	r.standing.phase = math.MaxUint16
	leaves := push(r, "rude", 0)
	push(r, "rude", 1)
	push(r, "calm", 0)
	push(r, "calm", 1)
	r.GiveUp(50*ms, leaves)
	if calm := r.tenants.find("calm", r.users.find("", 1)); !r.NewestFirst() || r.newestFirst(calm) {
		t.Errorf("newest first %v, and of those who gave no reason %v", r.NewestFirst(), r.newestFirst(calm))
	}
}
