//go:build linux

package live

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/station"
	"github.com/weir-go/weir/internal/testbed/cores"
)

// Everything but the figures: processes start, stages follow one another, every
// request is accounted for, the report has a line for each cell.
func TestSmoke(t *testing.T) {
	test, rest, err := cores.Pair()
	if err != nil {
		t.Fatal(err)
	}
	log := new(strings.Builder)
	r := &runner{plan: Plan{Pace: 0.05}, test: test, rest: rest, log: log, results: newResults(Plan{Pace: 0.05})}

	var c capacity
	for pace := r.plan.Pace; c.rate == 0 && pace < 10; pace *= 2 { // a busy machine may answer nothing in such short turns
		r.plan.Pace = pace
		if c, err = r.sweep(t.Context(), Law{Name: "B2", Service: 5 * time.Millisecond, Law: station.Law{Slots: 4}}, 1); err != nil {
			t.Fatal(err)
		}
	}
	r.plan.Pace = 0.05
	if c.rate <= 0 || c.clients < 1 {
		t.Errorf("the sweep found %+v", c)
	}

	law := Law{Name: "pool", Service: 20 * time.Millisecond, Law: station.Law{Slots: 2}}
	row := gatewayRows()[3] // half
	_, rate := law.best()
	one := staged{row: &row, law: &law, backend: law.Name, unit: 100 * time.Millisecond, patience: 200 * time.Millisecond,
		capacity: rate, part: partGateway}
	err = r.try(t.Context(), one.trial(r.results), func() ([]*lane, error) {
		return r.lanes(t.Context(), law, []string{guardFailsafe, guardNone})
	})
	if err != nil {
		t.Fatal(err)
	}
	site := sites()[0]
	for _, g := range []Guard{{Name: guardFixed, Kind: "fixed", Limit: 1}, {Name: guardWeir, Kind: "default"}} {
		one.part, one.law, one.capacity = partServer, &site.law, 100
		err = r.try(t.Context(), one.trial(r.results), func() ([]*lane, error) {
			return r.serving(role{Kind: "server", Procs: 1, Law: site.law, Guard: g})
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	r.plan.Rows = []string{"S23 one slot"}
	if err := r.order(t.Context(), 0); err != nil {
		t.Fatal(err)
	}

	r.results.judge()
	report := r.results.Markdown()
	for _, want := range []string{"| half half | pool | failsafe-go |", "| half back | pool | none |", "| half half | pool | fixed |", "| half back | pool | weir |",
		"| S23 one slot | fixed | outer |", "| S23 one slot | fixed, not told | outer |"} {
		if !strings.Contains(report, want) {
			t.Errorf("no line %q in\n%s", want, report)
		}
	}
	for _, c := range r.results.Cells {
		if len(c.Rounds)+c.Void != 1 {
			t.Errorf("%s %s: %d figures and %d void runs of one run", c.Guard, c.Stage, len(c.Rounds), c.Void)
		}
	}
	for _, c := range r.results.Order {
		if len(c.Rounds)+c.Void != 1 {
			t.Errorf("%s %s: %d figures and %d void runs of one run", c.Row, c.Guard, len(c.Rounds), c.Void)
		}
	}
}
