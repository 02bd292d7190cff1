package peers

import (
	"slices"
	"strings"
	"sync"
	"testing"

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
