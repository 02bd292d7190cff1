package live

import (
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
)

// TestMain lets the test's own binary play the roles, as the command does.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-role" {
		if err := playRole(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Ten seconds at twice a capacity of 100/s: every other request is refused in
// the first five seconds, and given up in the rest.
func stretchOfTwoHalves() stretch {
	var all []record
	for i := range 2000 {
		r := record{Due: time.Duration(i) * 5 * time.Millisecond, Work: ms(10), Answer: loadgen.OK, Latency: ms(20)}
		if i%2 == 1 {
			r.Answer, r.Latency = loadgen.Refused, ms(1)
			if i >= 1000 {
				r.Answer, r.Latency = loadgen.GaveUp, ms(100)
			}
		}
		all = append(all, r)
	}
	return stretch{
		records: all, all: all, to: 10 * time.Second, load: 2, scale: 1, capacity: 100, mean: ms(10),
		before: mark{}, after: mark{at: 10 * time.Second, app: stats{account: account{Work: 12.5, MaxInside: 7}},
			front: rig.Usage{CPU: 4 * time.Second}, busy: 6 * time.Second, ours: 5 * time.Second},
	}
}

func TestFigures(t *testing.T) {
	s := stretchOfTwoHalves()
	f := s.figures()
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"goodput", f.Goodput, 1},
		{"served", f.Served, 0.5},
		{"refused", f.Refused, 0.25},
		{"late", f.Late, 1.0 / 3},
		{"p50", f.P50, 20},
		{"p99", f.P99, 100},
		{"refusals' p99", f.RefusalP99, 1},
		{"wasted", f.Wasted, 0.2016}, // the last two are answered after the end
		{"settle", f.Settle, 0},
		{"calm", f.Calm, 5},
		{"first late", f.FirstLate, 0},
		{"core", f.Core, 0.4},
		{"foreign", f.Foreign, 0.1},
		{"inside", float64(f.Inside), 7},
	} {
		if math.Abs(c.got-c.want) > 1e-3 {
			t.Errorf("%s is %v, want %v", c.what, c.got, c.want)
		}
	}
}

func TestFiguresByWork(t *testing.T) {
	s := stretchOfTwoHalves()
	s.byWork = true
	for i := range s.records {
		s.records[i].Work = ms(5)
	}
	if f := s.figures(); math.Abs(f.Goodput-0.5) > 1e-9 {
		t.Errorf("goodput by work is %v, want 0.5: each request is half the mean", f.Goodput)
	}
}

func TestSettleLate(t *testing.T) {
	s := stretchOfTwoHalves()
	for i := range s.records[:400] { // two seconds without an answer
		s.records[i].Answer = loadgen.GaveUp
	}
	if f := s.figures(); math.Abs(f.Settle-1.8) > 0.051 { // a window of four seconds may lack a twentieth
		t.Errorf("settled after %v s, want 1.8", f.Settle)
	}
}

func voided(f figures) string { return void(f.Behind, f.Foreign) }

func TestVoid(t *testing.T) {
	s := stretchOfTwoHalves()
	s.after.busy = s.after.ours
	for i := range 41 {
		s.records[i].Late = true
	}
	if why := voided(s.figures()); why == "" {
		t.Error("41 of 2000 late sends are more than 2 %, and the run is not void")
	}
	s.records[0].Late = false
	if why := voided(s.figures()); why != "" {
		t.Errorf("40 of 2000 late sends are 2 %%, and the run is void: %s", why)
	}
	s.records[0].Answer = loadgen.Unsent
	if why := voided(s.figures()); why == "" {
		t.Error("a request that never left counts as late")
	}
	s = stretchOfTwoHalves()
	if why := voided(s.figures()); why == "" {
		t.Error("others used a tenth of the core, and the run is not void")
	}
}

func TestJudge(t *testing.T) {
	row := Row{ID: "row", Stages: []stage{{Name: "stage", Goals: []goal{
		{Goal: kit.Goal{What: "goodput", Bound: 0.7}, Value: goodput},
		{Goal: kit.Goal{What: "share", Bound: 0.95}, Value: ofFixed},
		{Goal: kit.Goal{What: "refused", Bound: 0.5, AtMost: true}, Value: refusedBeyondFixed},
	}}}}
	r := newResults(Plan{})
	at := staged{row: &row, backend: "slow", part: partServer}
	r.cell(&at, 0, guardWeir).Rounds = []figures{
		{Round: 0, Goodput: 0.8, Refused: 0.02}, {Round: 1, Goodput: 0.6, Refused: 0.02}, {Round: 2, Goodput: 0.75, Refused: 0.02},
		{Round: 3, Goodput: 0.1}, // void for the fixed limit
	}
	r.cell(&at, 0, guardFixed).Rounds = []figures{
		{Round: 0, Goodput: 0.8, Refused: 0.01}, {Round: 1, Goodput: 0.8, Refused: 0.01}, {Round: 2, Goodput: 0.8, Refused: 0.01},
	}
	r.judge()
	got := r.cell(&at, 0, guardWeir).Goals
	if len(got) != 3 {
		t.Fatalf("%d verdicts, want 3: %+v", len(got), got)
	}
	for i, want := range []struct {
		median  float64
		reached bool
	}{{0.75, true}, {0.75 / 0.8, false}, {1, false}} {
		if math.Abs(got[i].Median-want.median) > 1e-9 || got[i].Reached != want.reached {
			t.Errorf("%s: %v reached %v, want %v %v", got[i].What, got[i].Median, got[i].Reached, want.median, want.reached)
		}
	}
}

// B3 is slower to settle, and only what computes on one processor has the goals of S19.
func TestSites(t *testing.T) {
	for i, want := range []struct {
		rows, goals int // of S1
		good        float64
	}{{6, 4, 0.97}, {2, 2, 0.97}, {8, 2, 0.97}, {7, 2, 0.95}} {
		s := sites()[i]
		rows := s.rows()
		goals := rows[0].Stages[1].Goals
		if len(rows) != want.rows || len(goals) != want.goals || goals[0].Bound != want.good {
			t.Errorf("%s: %d rows, S1 has %d goals, the first at %v; want %+v", s.name, len(rows), len(goals), goals[0].Bound, want)
		}
	}
}
