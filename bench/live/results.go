package live

import (
	"cmp"
	"runtime"
	"slices"
	"time"
)

// Results are all figures of a run of the scoreboard.
type Results struct {
	Machine    Machine     `json:"machine"`
	Measured   string      `json:"measured"` // the day
	Rounds     int         `json:"rounds"`   // that were completed
	Pace       float64     `json:"pace"`
	Capacities []Capacity  `json:"capacities"`
	Yield      []YieldCost `json:"yield_cost"`
	Cells      []*Cell     `json:"cells"`

	Order []*OrderCell `json:"order,omitempty"`
}

// Machine is where the figures come from.
type Machine struct {
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Arch   string `json:"arch"`
	// Apart says that generator and system under test had a core each.
	Apart bool `json:"apart"`
}

// Capacity is what the sweep of one round found.
type Capacity struct {
	Backend   string  `json:"backend"`
	Round     int     `json:"round"`
	Rate      float64 `json:"requests_per_s"`
	Clients   int     `json:"clients"`
	RequestUS float64 `json:"request_cpu_us"`
	RefusalUS float64 `json:"refusal_cpu_us"`
	Foreign   float64 `json:"foreign"` // share of the core that others used
}

// YieldCost is what a request to a handler that does nothing costs.
type YieldCost struct {
	Guard     string  `json:"guard"`
	Round     int     `json:"round"`
	RequestUS float64 `json:"request_cpu_us"`
	Rate      float64 `json:"requests_per_s"`
	Foreign   float64 `json:"foreign"` // share of the core that others used
}

// Cell is one stage of one row on one backend under one guard.
type Cell struct {
	Part    string `json:"part"`
	Row     string `json:"row"`
	Stage   string `json:"stage"`
	Index   int    `json:"index"` // of the stage in its row
	Backend string `json:"backend"`
	Guard   string `json:"guard"`

	Void   int       `json:"void"` // runs without a figure
	Rounds []Figures `json:"rounds"`
	Goals  []Verdict `json:"goals,omitempty"`

	row   *Row
	procs int
	law   string
	order int
}

// Verdict says whether a goal is reached, by the median over the rounds or in every one.
type Verdict struct {
	What    string  `json:"what"`
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Bound   float64 `json:"bound"`
	AtMost  bool    `json:"at_most"`
	Every   bool    `json:"every,omitempty"` // the bound is for each round
	Reached bool    `json:"reached"`
}

func newResults(plan Plan) *Results {
	return &Results{
		Machine:  Machine{Cores: runtime.NumCPU(), Kernel: kernel(), Go: runtime.Version(), Arch: runtime.GOARCH},
		Measured: time.Now().UTC().Format(time.DateOnly), Pace: plan.Pace,
	}
}

// cell finds the cell of a stage and a guard, or adds it.
func (r *Results) cell(t *trial, index int, guard string) *Cell {
	for _, c := range r.Cells {
		if c.Part == t.part && c.Row == t.row.ID && c.Index == index && c.Backend == t.backend && c.Guard == guard {
			return c
		}
	}
	c := &Cell{
		Part: t.part, Row: t.row.ID, Stage: t.row.Stages[index].Name, Index: index, Backend: t.backend, Guard: guard,
		row: t.row, procs: t.procs, law: t.law.Name, order: len(r.Cells),
	}
	r.Cells = append(r.Cells, c)
	return c
}

// figures returns a figure of each round, in ascending order.
func (c *Cell) figures(of func(*Figures) float64) []float64 {
	var all []float64
	for i := range c.Rounds {
		all = append(all, of(&c.Rounds[i]))
	}
	slices.Sort(all)
	return all
}

// median of an ascending list; 0 of nothing.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

// judge compares all cells with their goals.
func (r *Results) judge() {
	r.judgeOrder()
	slices.SortStableFunc(r.Cells, func(a, b *Cell) int {
		return cmp.Or(cmp.Compare(slices.Index(parts, a.Part), slices.Index(parts, b.Part)), cmp.Compare(a.Row, b.Row),
			cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Index, b.Index), cmp.Compare(a.order, b.order))
	})
	for _, c := range r.Cells {
		c.Goals = nil
		for _, g := range c.row.Stages[c.Index].Goals {
			if g.appliesTo(c) {
				if v, ok := g.judge(c, r.fixed(c)); ok {
					c.Goals = append(c.Goals, v)
				}
			}
		}
	}
}

// fixed is the cell of the best fixed limit beside c.
func (r *Results) fixed(c *Cell) *Cell {
	for _, o := range r.Cells {
		if o.Guard == guardFixed && o.Part == c.Part && o.Row == c.Row && o.Index == c.Index && o.Backend == c.Backend {
			return o
		}
	}
	return &Cell{}
}

func (g *Goal) appliesTo(c *Cell) bool {
	return (g.Only == nil || slices.Contains(g.Only, c.law)) && (!g.Alone || c.procs == 1)
}

// judge takes the figure in each round in which both cells have one.
func (g *Goal) judge(c, fixed *Cell) (Verdict, bool) {
	var values []float64
	for i := range c.Rounds {
		for j := range fixed.Rounds {
			if fixed.Rounds[j].Round == c.Rounds[i].Round {
				values = append(values, g.Value(&c.Rounds[i], &fixed.Rounds[j]))
			}
		}
	}
	if len(values) == 0 {
		return Verdict{}, false
	}
	slices.Sort(values)
	bound := g.Bound
	if b, ok := g.Except[c.law]; ok {
		bound = b
	}
	v := Verdict{What: g.What, Median: median(values), Min: values[0], Max: values[len(values)-1], Bound: bound, AtMost: g.Most}
	v.Reached = v.Median >= bound
	if g.Most {
		v.Reached = v.Median <= bound
	}
	return v, true
}
