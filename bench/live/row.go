package live

import "time"

// Row is a scenario: stages that follow one another in one run, each of which
// may be judged.
type Row struct {
	ID     string
	About  string
	Stages []Stage
	Dist   string // of work, see [Load]
	// Impatient clients wait 2.5 times the latency at the best concurrency; the
	// others as long as the backend's deadline.
	Impatient bool
}

// Stage is a stretch of a row at one load. Its length is a number of units; the
// backend says how long a unit is.
type Stage struct {
	Name  string // empty: a run-up, not judged
	Load  float64
	Scale float64 // of the capacity that is left; 0 is all
	Units float64
	Goals []Goal
}

// Goal is a figure with a bound.
type Goal struct {
	What   string
	Value  func(f, fixed *Figures) float64
	Most   bool // the bound is an upper one
	Bound  float64
	Except map[string]float64 // other bounds, by backend
	Only   []string           // backends it is for; nil: all
	Alone  bool               // only with GOMAXPROCS 1
}

func (r *Row) length(unit time.Duration) (d time.Duration) {
	for _, s := range r.Stages {
		d += s.length(unit)
	}
	return d
}

func (s *Stage) length(unit time.Duration) time.Duration {
	return time.Duration(s.Units * float64(unit))
}

func (s *Stage) scale() float64 {
	if s.Scale == 0 {
		return 1
	}
	return s.Scale
}

// phases are the row's stages as a load.
func (r *Row) phases(unit time.Duration) []Phase {
	var all []Phase
	for _, s := range r.Stages {
		all = append(all, Phase{Load: s.Load, For: s.length(unit), Scale: s.scale()})
	}
	return all
}

func goodput(f, _ *Figures) float64     { return f.Goodput }
func ofBound(f, _ *Figures) float64     { return f.Goodput / f.Bound }
func refusalP99(f, _ *Figures) float64  { return f.RefusalP99 }
func refused(f, _ *Figures) float64     { return 100 * f.Refused }
func wasted(f, _ *Figures) float64      { return 100 * f.Wasted }
func settle(f, _ *Figures) float64      { return f.Settle }
func calm(f, _ *Figures) float64        { return f.Calm }
func firstLate(f, _ *Figures) float64   { return 100 * f.FirstLate }
func ofFixed(f, fixed *Figures) float64 { return f.Goodput / max(1e-9, fixed.Goodput) }
func p99OfFixed(f, fixed *Figures) float64 {
	return f.P99 / max(1e-3, fixed.P99)
}
func refusedBeyondFixed(f, fixed *Figures) float64 { return 100 * (f.Refused - fixed.Refused) }

// serverRows are the rows of part one, with the goals of the whole scoreboard.
func serverRows() []Row {
	lateSlow := map[string]float64{"B3": 3}
	return []Row{
		{ID: "S1", About: "steady load of twice the capacity (S19 on B1)", Stages: []Stage{
			{Load: 2, Units: 4},
			{Name: "2x", Load: 2, Units: 6, Goals: []Goal{
				{What: "goodput", Value: goodput, Bound: 0.97, Except: map[string]float64{"B3": 0.95}},
				{What: "S19 goodput/bound", Value: ofBound, Bound: 0.95, Only: []string{"B1"}, Alone: true},
				{What: "S19 refusals' p99 ms", Value: refusalP99, Most: true, Bound: 15, Only: []string{"B1"}, Alone: true},
				{What: "p99/fixed", Value: p99OfFixed, Most: true, Bound: 1.15},
			}}}},
		{ID: "S2", About: "steady load of ten times the capacity (S19 on B1)", Stages: []Stage{
			{Load: 10, Units: 4},
			{Name: "10x", Load: 10, Units: 6, Goals: []Goal{
				{What: "goodput/bound", Value: ofBound, Bound: 0.95},
				{What: "S19 refusals' p99 ms", Value: refusalP99, Most: true, Bound: 30, Only: []string{"B1"}, Alone: true},
			}}}},
		{ID: "S3", About: "from half the capacity to three times it, and back", Stages: []Stage{
			{Load: 0.5, Units: 3},
			{Name: "up", Load: 3, Units: 5, Goals: []Goal{
				{What: "settle s", Value: settle, Most: true, Bound: 0.5, Except: lateSlow},
				{What: "late in .5 s %", Value: firstLate, Most: true, Bound: 2},
			}},
			{Name: "back", Load: 0.5, Units: 3, Goals: []Goal{
				{What: "calm s", Value: calm, Most: true, Bound: 0.2},
			}}}},
		{ID: "S4", About: "at .9 of the capacity, half of it goes, and comes back; then four fifths", Stages: []Stage{
			{Load: 0.9, Units: 3},
			{Name: "half", Load: 0.9, Scale: 0.5, Units: 4, Goals: []Goal{{What: "goodput", Value: goodput, Bound: 0.95}}},
			{Name: "back", Load: 0.9, Units: 3, Goals: []Goal{{What: "settle s", Value: settle, Most: true, Bound: 1}}},
			{Name: "fifth", Load: 0.9, Scale: 0.2, Units: 4, Goals: []Goal{{What: "goodput", Value: goodput, Bound: 0.95}}},
			{Name: "back", Load: 0.9, Units: 3, Goals: []Goal{{What: "settle s", Value: settle, Most: true, Bound: 1}}},
		}},
		{ID: "S9", About: "false refusals below the capacity", Stages: []Stage{
			{Load: 0.7, Units: 1},
			{Name: ".7", Load: 0.7, Units: 5, Goals: []Goal{{What: "refused %", Value: refused, Most: true, Bound: 0}}},
			{Name: ".95", Load: 0.95, Units: 6, Goals: []Goal{
				{What: "refused % - fixed's", Value: refusedBeyondFixed, Most: true, Bound: 0.5},
			}}}},
		{ID: "S17", About: "clients leave at their time-out, at three times the capacity", Stages: []Stage{
			{Load: 3, Units: 3},
			{Name: "3x", Load: 3, Units: 5, Goals: []Goal{{What: "wasted %", Value: wasted, Most: true, Bound: 2}}},
		}},
		{ID: "S28", About: "clients with little patience; the backend works on", Impatient: true, Stages: []Stage{
			{Load: 2, Units: 4},
			{Name: "2x", Load: 2, Units: 5, Goals: []Goal{{What: "goodput/fixed", Value: ofFixed, Bound: 0.95}}},
			{Name: "half", Load: 2, Scale: 0.5, Units: 6, Goals: []Goal{{What: "goodput/fixed", Value: ofFixed, Bound: 0.95}}},
		}},
		{ID: "S28 log-normal", About: "S28 with log-normal work", Dist: "lognormal", Impatient: true, Stages: []Stage{
			{Load: 2, Units: 4},
			{Name: "2x", Load: 2, Units: 5, Goals: []Goal{{What: "goodput/fixed", Value: ofFixed, Bound: 0.95}}},
		}},
	}
}

// gatewayRows are the rows of part two. What is judged there is the share of
// what the best fixed limit gets.
func gatewayRows() []Row {
	best := []Goal{{What: "goodput/fixed", Value: ofFixed, Bound: 0.9}}
	return []Row{
		{ID: "2x", About: "steady load of twice the capacity", Stages: []Stage{
			{Load: 2, Units: 3}, {Name: "2x", Load: 2, Units: 5, Goals: best}}},
		{ID: "10x", About: "steady load of ten times the capacity", Stages: []Stage{
			{Load: 10, Units: 3}, {Name: "10x", Load: 10, Units: 5, Goals: best}}},
		{ID: "step", About: "from half the capacity to three times it", Stages: []Stage{
			{Load: 0.5, Units: 3}, {Name: "up", Load: 3, Units: 5, Goals: best}}},
		{ID: "half", About: "at .9 of the capacity, half of it goes, and comes back", Stages: []Stage{
			{Load: 0.9, Units: 3},
			{Name: "half", Load: 0.9, Scale: 0.5, Units: 4, Goals: best},
			{Name: "back", Load: 0.9, Units: 2, Goals: best}}},
		{ID: ".9", About: "false refusals", Stages: []Stage{
			{Load: 0.9, Units: 1},
			{Name: ".9", Load: 0.9, Units: 7, Goals: []Goal{{What: "refused % - fixed's", Value: refusedBeyondFixed, Most: true, Bound: 1}}}}},
		{ID: "bimodal", About: "twice the capacity; one request in a hundred is fifty times the others; goodput by work", Dist: "bimodal", Stages: []Stage{
			{Load: 2, Units: 3}, {Name: "2x", Load: 2, Units: 5, Goals: best}}},
		{ID: "S28", About: "clients with little patience, and then half the capacity", Impatient: true, Stages: []Stage{
			{Load: 0.9, Units: 3},
			{Name: "half", Load: 0.9, Scale: 0.5, Units: 4, Goals: []Goal{{What: "goodput/fixed", Value: ofFixed, Bound: 0.95}}},
			{Name: "back", Load: 0.9, Units: 2, Goals: []Goal{{What: "goodput/fixed", Value: ofFixed, Bound: 0.95}}}}},
	}
}
