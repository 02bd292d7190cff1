package live

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
)

// Plan says what is measured, and for how long.
type Plan struct {
	Rounds  int     // values each figure is made of
	Pace    float64 // multiplies every length; 1 is the published scoreboard
	Retries int     // of a void run
	Weir    string  // the gateway's binary; empty: part two is left out
	Envoy   string  // the program; empty: the guards with an Envoy are left out
	Parts   kit.Names
	Rows    kit.Names
	Laws    kit.Names // backends
	Guards  kit.Names
}

// The parts.
const (
	partServer  = "server"
	partGateway = "gateway"
	partYield   = "yield"
	partOrder   = "order"
)

// The parts of the scoreboard's hour, and all.
var (
	hour  = []string{partServer, partYield, partGateway}
	parts = append(slices.Clone(hour), partOrder)
)

// quickPlan takes about a minute: one short round of a few cells. Its figures say
// that everything works, and no more.
func quickPlan(weir string) Plan {
	return Plan{
		Rounds: 1, Pace: 0.2, Weir: weir, Parts: parts,
		Rows: []string{"S1", "S9", "2x", "half", "S12"}, Laws: []string{"B1", "B2", "contention-1060"},
	}
}

func (p *Plan) check() error {
	var faults []error
	if p.Rounds < 1 || p.Rounds > 9 {
		faults = append(faults, fmt.Errorf("rounds %d: must be from 1 to 9", p.Rounds))
	}
	if !(p.Pace >= 0.05 && p.Pace <= 10) {
		faults = append(faults, fmt.Errorf("pace %v: must be from 0.05 to 10", p.Pace))
	}
	for _, part := range p.Parts {
		if !slices.Contains(parts, part) {
			faults = append(faults, fmt.Errorf("part %q: must be one of %q", part, parts))
		}
	}
	if p.Weir == "" && (p.wantsPart(partGateway) || p.wantsPart(partOrder)) {
		faults = append(faults, errors.New("the parts gateway and order need the binary: -weir bin/weir, or make scoreboard-live, which builds it"))
	}
	return errors.Join(faults...)
}

// turn is how long something takes that takes d at pace 1.
func (p *Plan) turn(d time.Duration) time.Duration { return time.Duration(float64(d) * p.Pace) }

func (p *Plan) wantsPart(part string) bool { return slices.Contains(p.Parts, part) }

// site is a backend of part one, and how the server runs it.
type site struct {
	name     string
	law      Law
	procs    int
	patience time.Duration
	unit     time.Duration
}

func sites() []site {
	return []site{
		{"B1", lawB1, 1, 100 * time.Millisecond, 600 * time.Millisecond},
		{"B1, 2 procs", lawB1, 2, 100 * time.Millisecond, 600 * time.Millisecond},
		{"B2", lawB2, 1, 500 * time.Millisecond, 700 * time.Millisecond},
		{"B3", lawB3, 1, time.Second, 850 * time.Millisecond},
	}
}

// guards are those that a row is run under. The best fixed limit is what the
// sweep found, waiting at most half the deadline, as in the simulated scoreboard.
func (s *site) guards(row string, best int) []Guard {
	fixed := Guard{Name: guardFixed, Kind: "fixed", Limit: int64(best), MaxWait: s.patience / 2}
	learns := Guard{Name: guardWeir, Kind: "default"}
	all := []Guard{fixed, learns}
	if row == "S1" && s.procs == 1 {
		all = append(all, Guard{Name: guardNone, Kind: "none"})
	}
	if !s.law.Burns || row != "S1" && row != "S2" {
		return all
	}
	all = append(all,
		Guard{Name: "weir without yield", Kind: "default", NoYield: true},
		Guard{Name: "weir + signal", Kind: "default", Signals: true})
	if s.procs == 1 {
		all = append(all,
			Guard{Name: "weir + signal without yield", Kind: "default", Signals: true, NoYield: true},
			Guard{Name: "no room", Kind: "fixed", Limit: fixed.Limit, NoRoom: true},
			Guard{Name: "no room without yield", Kind: "fixed", Limit: fixed.Limit, NoRoom: true, NoYield: true})
	}
	return all
}

// upstream is a backend of part two.
type upstream struct {
	law  Law
	unit time.Duration
	rows kit.Names
}

func upstreams() []upstream {
	return []upstream{
		{law: lawPool25, unit: 1700 * time.Millisecond},
		{law: lawUSL53, unit: 1700 * time.Millisecond},
		{law: lawCores250, unit: 900 * time.Millisecond, rows: []string{"2x", "10x", "step", "half", "0.9", "bimodal"}},
		{law: lawUSL1060, unit: 800 * time.Millisecond},
		{law: lawPool2000, unit: 700 * time.Millisecond, rows: []string{"2x", "10x", "half", "0.9"}},
	}
}

// patience of the clients of part two: five times the latency at the best
// concurrency, 2.5 times where they have little.
func (u *upstream) patience(impatient bool) time.Duration {
	if impatient {
		return u.law.loaded() * 5 / 2
	}
	return max(100*time.Millisecond, 5*u.law.loaded())
}

// sideBySide is the sum of rates, in requests a second, up to which all proxies are
// measured at the same time. Together they take a small part of a core.
const sideBySide = 3000

// The guards that both parts and the report speak of.
const (
	guardNone          = "none"
	guardFixed         = "fixed"
	guardWeir          = "weir"
	guardFailsafe      = "failsafe-go"
	guardFailsafeQueue = "failsafe-go + queue"
)

var (
	proxyGuards = []string{guardFixed, guardWeir, guardFailsafe, guardFailsafeQueue, guardNone}
	envoyGuards = []string{guardAsked, guardEnvoy}
)

// proxies are the guards that a row of part two is run under. That no control
// collapses needs no more than two rows.
func (p *Plan) proxies(row string) []string {
	all := proxyGuards[:4]
	if row == "2x" || row == "half" {
		all = proxyGuards
	}
	if p.Envoy != "" {
		all = slices.Concat(all, envoyGuards)
	}
	return all
}

// Row is a scenario: stages that follow one another in one run, each of which
// may be judged.
type Row struct {
	ID     string
	Stages []stage
	Dist   string // of work, see [Load]
	// Impatient clients wait 2.5 times the latency at the best concurrency; the
	// others as long as the backend's deadline.
	Impatient bool
}

// stage is a stretch of a row at one load. Its length is a number of units; the
// backend says how long a unit is.
type stage struct {
	Name  string // empty: a run-up, not judged
	Load  float64
	Scale float64 // of the capacity that is left; 0 is all
	Units float64
	Goals []goal
}

// goal is a figure with a bound.
type goal struct {
	kit.Goal
	Value func(f, fixed *figures) float64
}

func atLeast(what string, bound float64, value func(f, fixed *figures) float64) goal {
	return goal{kit.Goal{What: what, Bound: bound}, value}
}

func atMost(what string, bound float64, value func(f, fixed *figures) float64) goal {
	return goal{kit.Goal{What: what, Bound: bound, AtMost: true}, value}
}

// phases are the row's stages as a load.
func (r *Row) phases(unit time.Duration) []phase {
	var all []phase
	for _, s := range r.Stages {
		all = append(all, phase{Load: s.Load, For: time.Duration(s.Units * float64(unit)), Scale: cmp.Or(s.Scale, 1)})
	}
	return all
}

func goodput(f, _ *figures) float64     { return f.Goodput }
func ofBound(f, _ *figures) float64     { return f.Goodput / f.Bound }
func refusalP99(f, _ *figures) float64  { return f.RefusalP99 }
func refused(f, _ *figures) float64     { return 100 * f.Refused }
func wasted(f, _ *figures) float64      { return 100 * f.Wasted }
func settle(f, _ *figures) float64      { return f.Settle }
func calm(f, _ *figures) float64        { return f.Calm }
func firstLate(f, _ *figures) float64   { return 100 * f.FirstLate }
func ofFixed(f, fixed *figures) float64 { return f.Goodput / max(1e-9, fixed.Goodput) }
func p99OfFixed(f, fixed *figures) float64 {
	return f.P99 / max(1e-3, fixed.P99)
}
func refusedBeyondFixed(f, fixed *figures) float64 { return 100 * (f.Refused - fixed.Refused) }

// rows are the rows of part one that say anything on the site. Its goals are those of
// the whole scoreboard.
func (s *site) rows() []Row {
	good, settled := 0.97, 0.5
	if s.law.Slots > 0 {
		good, settled = 0.95, 3
	}
	twice := []goal{atLeast("goodput", good, goodput), atMost("p99/fixed", 1.15, p99OfFixed)}
	tenfold := []goal{atLeast("goodput/bound", 0.95, ofBound)}
	if s.law.Burns && s.procs == 1 { // S19
		const quick = "S19 refusals' p99 ms"
		twice = slices.Insert(twice, 1, atLeast("S19 goodput/bound", 0.95, ofBound), atMost(quick, 15, refusalP99))
		tenfold = append(tenfold, atMost(quick, 30, refusalP99))
	}
	rows := []Row{
		// Steady load of twice the capacity, and of ten times the capacity.
		{ID: "S1", Stages: []stage{{Load: 2, Units: 4}, {Name: "2x", Load: 2, Units: 6, Goals: twice}}},
		{ID: "S2", Stages: []stage{{Load: 10, Units: 4}, {Name: "10x", Load: 10, Units: 6, Goals: tenfold}}},
	}
	if s.procs > 1 {
		return rows
	}
	most := []goal{atLeast("goodput", 0.95, goodput)}
	soon := []goal{atMost("settle s", 1, settle)}
	rows = append(rows, []Row{
		// From half the capacity to three times it, and back.
		{ID: "S3", Stages: []stage{
			{Load: 0.5, Units: 3},
			{Name: "up", Load: 3, Units: 5, Goals: []goal{atMost("settle s", settled, settle), atMost("late in 0.5 s %", 2, firstLate)}},
			{Name: "back", Load: 0.5, Units: 3, Goals: []goal{atMost("calm s", 0.2, calm)}},
		}},
		// At 0.9 of the capacity, half of it goes, and comes back; then four fifths.
		{ID: "S4", Stages: []stage{
			{Load: 0.9, Units: 3},
			{Name: "half", Load: 0.9, Scale: 0.5, Units: 4, Goals: most},
			{Name: "back", Load: 0.9, Units: 3, Goals: soon},
			{Name: "fifth", Load: 0.9, Scale: 0.2, Units: 4, Goals: most},
			{Name: "back", Load: 0.9, Units: 3, Goals: soon},
		}},
		// False refusals below the capacity.
		{ID: "S9", Stages: []stage{
			{Load: 0.7, Units: 1},
			{Name: "0.7", Load: 0.7, Units: 5, Goals: []goal{atMost("refused %", 0, refused)}},
			{Name: "0.95", Load: 0.95, Units: 6, Goals: []goal{atMost("refused % - fixed's", 0.5, refusedBeyondFixed)}},
		}},
		// Clients leave at their time-out, at three times the capacity.
		{ID: "S17", Stages: []stage{{Load: 3, Units: 3}, {Name: "3x", Load: 3, Units: 5, Goals: []goal{atMost("wasted %", 2, wasted)}}}},
	}...)
	if s.law.Burns {
		return rows
	}
	// Clients with little patience; the backend works on.
	like := []goal{atLeast("goodput/fixed", 0.95, ofFixed)}
	stages := []stage{{Load: 2, Units: 4}, {Name: "2x", Load: 2, Units: 5, Goals: like}, {Name: "half", Load: 2, Scale: 0.5, Units: 6, Goals: like}}
	rows = append(rows, Row{ID: "S28", Impatient: true, Stages: stages})
	if s.law.Sigma > 0 {
		rows = append(rows, Row{ID: "S28 log-normal", Dist: "lognormal", Impatient: true, Stages: stages[:2]})
	}
	return rows
}

// gatewayRows are the rows of part two. What is judged there is the share of
// what the best fixed limit gets.
func gatewayRows() []Row {
	best, like := []goal{atLeast("goodput/fixed", 0.9, ofFixed)}, []goal{atLeast("goodput/fixed", 0.95, ofFixed)}
	twice := []stage{{Load: 2, Units: 3}, {Name: "2x", Load: 2, Units: 5, Goals: best}}
	// At 0.9 of the capacity, half of it goes, and comes back.
	half := func(goals []goal) []stage {
		return []stage{
			{Load: 0.9, Units: 3},
			{Name: "half", Load: 0.9, Scale: 0.5, Units: 4, Goals: goals},
			{Name: "back", Load: 0.9, Units: 2, Goals: goals},
		}
	}
	return []Row{
		{ID: "2x", Stages: twice},
		{ID: "10x", Stages: []stage{{Load: 10, Units: 3}, {Name: "10x", Load: 10, Units: 5, Goals: best}}},
		{ID: "step", Stages: []stage{{Load: 0.5, Units: 3}, {Name: "up", Load: 3, Units: 5, Goals: best}}},
		{ID: "half", Stages: half(best)},
		// False refusals.
		{ID: "0.9", Stages: []stage{{Load: 0.9, Units: 1}, {Name: "0.9", Load: 0.9, Units: 7, Goals: []goal{atMost("refused % - fixed's", 1, refusedBeyondFixed)}}}},
		// One request in a hundred is fifty times the others; goodput by work.
		{ID: "bimodal", Dist: "bimodal", Stages: twice},
		{ID: "S28", Impatient: true, Stages: half(like)},
	}
}

// startUp is about what starting and stopping the processes of a run takes.
const startUp = 400 * time.Millisecond
