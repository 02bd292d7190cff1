package peers

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// Cell is one figure of one peer.
type Cell struct {
	Table    string `json:"table"`
	Scenario string `json:"scenario"`
	Backend  string `json:"backend,omitempty"`
	Column   string `json:"column"`
	Peer     string `json:"peer"`
	// Told marks a peer that was told the best concurrency, on boards whose peers
	// are not all of Peers.
	Told bool `json:"told,omitempty"`

	// Metric is one of sim.Metrics, taken over From to To; with a Class, one of
	// sim.ClassMetrics.
	Metric string   `json:"metric"`
	Class  string   `json:"class,omitempty"`
	From   string   `json:"from"`
	To     string   `json:"to"`
	Seeds  []uint64 `json:"seeds"`
	// The spread over the seeds.
	sim.Spread
	// Goodput says that the verdict is about it.
	Goodput bool `json:"goodput,omitempty"`
}

// Plan is what to put on the board. The zero value is all of it.
type Plan struct {
	// Rows (by scenario), Backends and Peers restrict the board to these.
	Rows, Backends, Peers []string
	// Seeds of each cell. Default 1 to 3.
	Seeds []uint64
}

func wanted(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }

// Board runs what is planned and returns the cells in the order of tables,
// columns and peers. Rows run one after the other, the peers of a row at the
// same time.
func Board(t *testing.T, plan Plan) ([]Cell, error) {
	rows, err := Rows()
	if err != nil {
		return nil, err
	}
	if len(plan.Seeds) == 0 {
		plan.Seeds = []uint64{1, 2, 3}
	}
	var cells []Cell
	for _, row := range rows {
		if !wanted(plan.Rows, row.Name) || row.Backend != "" && !wanted(plan.Backends, row.Backend) {
			continue
		}
		cells = append(cells, row.cells(row.run(t, &plan), plan.Seeds)...)
	}
	return cells, nil
}

// run runs one row.
func (r *Row) run(t *testing.T, plan *Plan) map[string]*sim.Report {
	var mu sync.Mutex
	reports := map[string]*sim.Report{}
	t.Run(strings.TrimSpace(r.Name+" "+r.Backend), func(t *testing.T) {
		for _, p := range Peers() {
			if !wanted(plan.Peers, p.Name) {
				continue
			}
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				report, err := Run(t, r.scenario, &p, plan.Seeds)
				if err != nil {
					t.Fatal(err)
				}
				mu.Lock()
				defer mu.Unlock()
				reports[p.Name] = report
			})
		}
	})
	return reports
}

func (r *Row) cells(reports map[string]*sim.Report, seeds []uint64) []Cell {
	var cells []Cell
	for _, f := range r.Figures {
		from, to := f.Goal.Stretch(r.scenario)
		for _, p := range Peers() {
			report := reports[p.Name]
			if report == nil {
				continue
			}
			cells = append(cells, Cell{
				Table: r.Table, Scenario: r.Name, Backend: r.Backend, Column: f.Name, Peer: p.Name,
				Metric: f.Goal.Metric, From: from.String(), To: to.String(), Seeds: seeds,
				Spread: report.Spread(f.Goal), Goodput: f.Goodput,
			})
		}
	}
	return cells
}

// Row is one scenario on one backend, which every peer runs.
type Row struct {
	// Table is the table it is in, Name its scenario's.
	Table, Name string
	// Backend is the standard backend it is on, empty for a scenario that brings
	// one along.
	Backend string
	// Figures are what is looked at.
	Figures []Figure

	scenario *sim.Scenario
}

// Figure is one metric over one stretch of a run.
type Figure struct {
	// Name is its column's.
	Name string
	// Goal says which metric and when; it has no bounds.
	Goal sim.Goal
	// Goodput marks the figures that the verdict is about: shares of what could
	// have been served in time.
	Goodput bool
}

//go:embed scenarios/*.json
var files embed.FS

// The tables of scenarios that this package brings along. Every other table is
// named after the scenario file it is about.
const (
	tableSteps = "Capacity steps"
	tablePool  = "A pool of 50"
)

// own are these scenarios: the names of their columns, in the order of their
// files' goals.
var own = []struct {
	table, file string
	columns     []string
}{
	{tableSteps, "step800erlang", []string{"800/s Erlang-4: fault", "800/s Erlang-4: after"}},
	{tableSteps, "step1500erlang", []string{"1500/s Erlang-4: fault", "1500/s Erlang-4: after"}},
	{tableSteps, "step800exp", []string{"800/s exponential: fault", "800/s exponential: after"}},
	{tableSteps, "step1500exp", []string{"1500/s exponential: fault", "1500/s exponential: after"}},
	{tablePool, "load1", []string{"1x"}},
	{tablePool, "load2", []string{"2x", "2x: p50 ms", "2x: p99 ms", "2x: ramp s"}},
	{tablePool, "load10", []string{"10x"}},
	{tablePool, "spike", []string{"in a spike", "after it"}},
	{tablePool, "half", []string{"half"}},
	{tablePool, "tenth", []string{"tenth"}},
	{tablePool, "erlang", []string{"2x Erlang-4"}},
	{tablePool, "constant", []string{"2x constant"}},
}

// standard are the backends that rows of the simulator's scoreboard are run on,
// of those that they are meant for.
var standard = []string{"B1", "B2", "B3", "B4", "P1"}

// shared are rows of the simulator's scoreboard with the stretches in which they
// are judged: by goodput while there is more load than capacity, by the share
// served while there is not. The files say when that is.
var shared = []struct {
	table, file string
	goals       []sim.Goal
	columns     []string // after the backend's name
}{
	{tableSteps, "steps-800", []sim.Goal{stretch("goodput", 60, 120), stretch("served", 120, 180)}, []string{"800/s: fault", "800/s: after"}},
	{tableSteps, "steps-1500", []sim.Goal{stretch("goodput", 60, 120), stretch("goodput", 120, 180)}, []string{"1500/s: fault", "1500/s: after"}},
	{"S1", "S1", []sim.Goal{stretch("goodput", 20, 60)}, []string{""}},
	{"S2", "S2", []sim.Goal{stretch("goodput", 20, 40)}, []string{""}},
	{"S3", "S3", []sim.Goal{stretch("goodput", 20, 40), stretch("served", 40, 60)}, []string{"step", "after"}},
	{"S4", "S4", []sim.Goal{stretch("goodput", 20, 40), stretch("served", 40, 60)}, []string{"fault", "after"}},
	{"S4b", "S4b", []sim.Goal{stretch("goodput", 20, 40), stretch("served", 40, 60)}, []string{"fault", "after"}},
	{"S9", "S9", []sim.Goal{{Metric: "served"}}, []string{""}},
	{"S9b", "S9b", []sim.Goal{{Metric: "served"}}, []string{""}},
	{"S11", "S11", []sim.Goal{stretch("goodput_work", 60, 120)}, []string{""}},
}

func stretch(metric string, from, to int) sim.Goal {
	return sim.Goal{Metric: metric, From: policy.Duration(seconds(from)), To: policy.Duration(seconds(to))}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// Rows returns all rows.
func Rows() ([]Row, error) {
	var rows []Row
	for _, sh := range shared {
		list, err := sharedRows(sh.table, sh.file, sh.goals, sh.columns)
		if err != nil {
			return nil, err
		}
		rows = append(rows, list...)
	}
	for _, o := range own {
		data, err := files.ReadFile("scenarios/" + o.file + ".json")
		if err != nil {
			return nil, err
		}
		s, err := sim.ParseScenario(data)
		if err != nil {
			return nil, fmt.Errorf("scenarios/%s.json: %w", o.file, err)
		}
		if len(s.Goals) != len(o.columns) {
			return nil, fmt.Errorf("scenarios/%s.json has %d goals for %d columns", o.file, len(s.Goals), len(o.columns))
		}
		rows = append(rows, Row{o.table, o.file, "", figures(s.Goals, o.columns), s})
	}
	order := map[string]int{tableSteps: -2, tablePool: -1}
	slices.SortStableFunc(rows, func(a, b Row) int { return order[a.Table] - order[b.Table] })
	return rows, nil
}

// cut are files with one phase, shortened to this: peers cost up to 60 µs a
// request.
var cut = map[string]time.Duration{"S2": 40 * time.Second, "S11": 2 * time.Minute}

// sharedRows puts one of the simulator's files on each of the backends.
func sharedRows(table, file string, goals []sim.Goal, columns []string) ([]Row, error) {
	s, err := sim.Load(file)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, backend := range s.On {
		if !slices.Contains(standard, backend) {
			continue
		}
		on, err := s.With(backend, "none")
		if err != nil {
			return nil, err
		}
		on.Goals = slices.Clone(goals)
		if length := cut[file]; length > 0 {
			on.Phases[0].For = policy.Duration(length)
		}
		names := columns
		if table != tableSteps { // which has one backend
			names = nil
			for _, c := range columns {
				names = append(names, strings.TrimSpace(backend+" "+c))
			}
		}
		rows = append(rows, Row{table, file, backend, figures(goals, names), on})
	}
	return rows, nil
}

func figures(goals []sim.Goal, names []string) []Figure {
	var list []Figure
	for i, g := range goals {
		share := g.Metric == "goodput" || g.Metric == "goodput_work" || g.Metric == "served"
		list = append(list, Figure{names[i], g, share})
	}
	return list
}

// ReadJSON reads the cells that WriteJSON has written.
func ReadJSON(r io.Reader) ([]Cell, error) {
	var file struct {
		Cells []Cell `json:"cells"`
	}
	err := json.NewDecoder(r).Decode(&file)
	return file.Cells, err
}

// place is where a cell is on the board.
type place struct{ scenario, backend, column, peer string }

func (c *Cell) place() place { return place{c.Scenario, c.Backend, c.Column, c.Peer} }

// Merge puts new cells over old ones, in the order of the board. Old cells that
// the board no longer has are dropped.
func Merge(old, fresh []Cell) ([]Cell, error) {
	rows, err := Rows()
	if err != nil {
		return nil, err
	}
	order := map[place]int{}
	for _, row := range rows {
		for _, f := range row.Figures {
			for _, p := range Peers() {
				order[place{row.Name, row.Backend, f.Name, p.Name}] = len(order)
			}
		}
	}
	byPlace := map[place]Cell{}
	for _, list := range [][]Cell{old, fresh} {
		for _, c := range list {
			if _, ok := order[c.place()]; ok {
				byPlace[c.place()] = c
			}
		}
	}
	merged := make([]Cell, 0, len(byPlace))
	for _, c := range byPlace {
		merged = append(merged, c)
	}
	slices.SortFunc(merged, func(a, b Cell) int { return cmp.Compare(order[a.place()], order[b.place()]) })
	return merged, nil
}
