package sim_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/sim"
)

// A quota with debt says how long to wait to the millisecond, is open then and not a
// millisecond before, and over a minute lets through what it should and no more.
func TestQuotaWithDebt(t *testing.T) {
	s, err := sim.Load("S24")
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(t.Context(), s, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]sim.ClassSummary{}
	for _, c := range r.Runs[0].Windows[0].Classes {
		classes[c.Name] = c
	}
	if next := classes["next"]; next.Starved != 12*time.Second || next.Attempts != 2 || next.Admitted != 1 || next.Reasons[weir.ReasonQuota] != 1 {
		t.Errorf("who did as the refusal said was let in after %v: %+v; want 12s", next.Starved, next)
	}
	if early := classes["early"]; early.Admitted != 0 || early.Reasons[weir.ReasonQuota] != 1 {
		t.Errorf("a millisecond early: %+v; want a refusal", early)
	}
	// 500 to begin with and 5 a second are 800 in a minute: 560, 1 and 239.
	if flood := classes["flood"]; flood.Admitted != 239 || classes["large"].Admitted != 1 {
		t.Errorf("%d were let in of the flood, want 239", flood.Admitted)
	}
	if !r.Reached() {
		t.Errorf("not every goal is reached:\n%s", r)
	}
}
