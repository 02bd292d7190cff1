package peers

import (
	_ "embed"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

// board is rows of scenarios and the peers that run them.
type board struct {
	Rows []Row

	file string // its files' name
	// judged boards have a verdict, on the goodput figures.
	judged bool
}

// Row is one scenario on one backend.
type Row struct {
	// Table is the table it is in, Name its scenario's.
	Table, Name string
	// Backend is the standard backend it is on, empty for a scenario that brings
	// one along.
	Backend string
	// Figures are what is looked at.
	Figures []figure

	peers    []peer
	scenario *sim.Scenario
}

// figure is one metric over one stretch of a run.
type figure struct {
	// Name is its column's.
	Name string
	// Goal says which metric and when; it has no bounds.
	Goal sim.Goal
	// Goodput marks the figures that the verdict is about: shares of what could
	// have been served in time.
	Goodput bool
}

// Cell is one figure of one peer.
type Cell struct {
	Table    string `json:"table"`
	Scenario string `json:"scenario"`
	Backend  string `json:"backend,omitempty"`
	Column   string `json:"column"`
	Peer     string `json:"peer"`
	// Told marks a peer that was told the best concurrency.
	Told bool `json:"told,omitempty"`

	// Metric is one of sim.Metrics, taken over From to To; with a Class, one of
	// sim.ClassMetrics.
	Metric string   `json:"metric"`
	Class  string   `json:"class,omitempty"`
	From   string   `json:"from"`
	To     string   `json:"to"`
	Seeds  []uint64 `json:"seeds"`
	// The spread over the seeds.
	kit.Spread
	// Goodput says that the verdict is about it.
	Goodput bool `json:"goodput,omitempty"`
}

// place is where a cell is on its board.
type place struct{ scenario, backend, column, peer string }

func (c *Cell) place() place { return place{c.Scenario, c.Backend, c.Column, c.Peer} }

// Plan is what to put on a board. The zero value is all of it.
type Plan struct {
	// Rows (by scenario), Backends and Peers restrict the board to these.
	Rows, Backends, Peers kit.Names
	// Seeds of each cell. Default 1 to 3.
	Seeds []uint64
}

// part reports whether the plan is less than all of it.
func (p *Plan) part() bool { return len(p.Rows)+len(p.Backends)+len(p.Peers) > 0 }

// Run runs what is planned and returns the cells, in the order of the board. Rows
// run one after the other, the peers of a row at the same time.
func (b *board) Run(t *testing.T, plan Plan) []Cell {
	if len(plan.Seeds) == 0 {
		plan.Seeds = []uint64{1, 2, 3}
	}
	var cells []Cell
	for _, row := range b.Rows {
		if plan.Rows.Has(row.Name) && (row.Backend == "" || plan.Backends.Has(row.Backend)) {
			cells = append(cells, row.run(t, &plan)...)
		}
	}
	return b.Merge(cells)
}

// run runs one row.
func (r *Row) run(t *testing.T, plan *Plan) (cells []Cell) {
	var mu sync.Mutex
	t.Run(strings.TrimSpace(r.Name+" "+r.Backend), func(t *testing.T) {
		for _, p := range r.peers {
			if !plan.Peers.Has(p.Name) {
				continue
			}
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				report, err := run(t, r.scenario, &p, plan.Seeds)
				if err != nil {
					t.Fatal(err)
				}
				mu.Lock()
				defer mu.Unlock()
				cells = append(cells, r.cells(&p, report)...)
			})
		}
	})
	return cells
}

// cells are the figures of one peer.
func (r *Row) cells(p *peer, report *sim.Report) (cells []Cell) {
	for _, f := range r.Figures {
		from, to := f.Goal.Stretch(r.scenario)
		cells = append(cells, Cell{
			Table: r.Table, Scenario: r.Name, Backend: r.Backend, Column: f.Name, Peer: p.Name, Told: p.Told,
			Metric: f.Goal.Metric, Class: f.Goal.Class, From: from.String(), To: to.String(), Seeds: report.Seeds,
			Spread: report.Spread(f.Goal), Goodput: f.Goodput,
		})
	}
	return cells
}

// Merge puts the cells of later lists over those of earlier ones, in the order of
// the board. Cells that the board no longer has are dropped.
func (b *board) Merge(lists ...[]Cell) []Cell {
	var places []place
	for _, row := range b.Rows {
		for _, f := range row.Figures {
			for _, p := range row.peers {
				places = append(places, place{row.Name, row.Backend, f.Name, p.Name})
			}
		}
	}
	return kit.Merge(places, (*Cell).place, lists...)
}

// judgedCells is the file of a board with a verdict.
type judgedCells struct {
	Verdict verdict `json:"verdict"`
	Cells   []Cell  `json:"cells"`
}

// Read returns the cells that were written to a directory last.
func (b *board) Read(dir string) (cells []Cell, err error) {
	file := filepath.Join(dir, b.file+".json")
	if !b.judged {
		return cells, kit.Read(file, &cells)
	}
	var all judgedCells
	err = kit.Read(file, &all)
	return all.Cells, err
}

// Write writes the figures to a directory, as data and as a page.
func (b *board) Write(dir string, cells []Cell) error {
	data, err := kit.JSON(cells, " ")
	if b.judged {
		data, err = kit.JSON(judgedCells{judge(cells), cells}, "  ")
	}
	if err != nil {
		return err
	}
	return kit.Write(dir, map[string][]byte{b.file + ".json": data, b.file + ".md": []byte(b.Markdown(cells))})
}

//go:embed peers.md.tmpl
var preface string

//go:embed order.md.tmpl
var orderPreface string

// Markdown is the board as a page.
func (b *board) Markdown(cells []Cell) string {
	var text strings.Builder
	if b.judged {
		text.WriteString(preface)
		v := judge(cells)
		v.write(&text)
		writeSeeds(&text, cells)
	} else {
		text.WriteString(orderPreface)
	}
	for _, table := range kit.Groups(cells, func(c *Cell) string { return c.Table }) {
		fmt.Fprintf(&text, "\n## %s\n\n%s", table[0].Table, b.table(table))
	}
	return text.String()
}

// table is a line for each peer and a column for each figure.
func (b *board) table(cells []Cell) string {
	head := []string{""}
	for _, c := range cells {
		if !slices.Contains(head, c.Column) {
			head = append(head, c.Column)
		}
	}
	table := kit.Table{head}
	for _, peer := range kit.Groups(cells, func(c *Cell) string { return c.Peer }) {
		line := make([]string, len(head))
		line[0] = b.title(&peer[0])
		for i := range peer {
			line[slices.Index(head, peer[i].Column)] = b.figure(&peer[i])
		}
		table = append(table, line)
	}
	return table.Plain(kit.Figures(len(head)))
}

// title is the name of a cell's peer.
func (b *board) title(c *Cell) string {
	if b.judged && c.Peer == "weir" {
		return "**" + c.Peer + "**"
	}
	return starred(c.Peer, c.Told || told(c.Peer)) // cells of old files do not say it
}

// figure is the cell as a table shows it.
func (b *board) figure(c *Cell) string {
	if !b.judged {
		text := fmt.Sprintf("%.4g", c.Median)
		if low, high := fmt.Sprintf("%.4g", c.Min), fmt.Sprintf("%.4g", c.Max); low != high {
			text += fmt.Sprintf(" (%s-%s)", low, high)
		}
		return text
	}
	if !c.Goodput {
		if to, err := time.ParseDuration(c.To); c.Metric == "settle" && err == nil && c.Median >= to.Seconds() {
			return "never" // every settle here is from the start of a run
		}
		return fmt.Sprintf("%.3g", c.Median)
	}
	if c.Max-c.Min <= 0.02 {
		return twoDigits(c.Median)
	}
	return fmt.Sprintf("%s (%s-%s)", twoDigits(c.Median), twoDigits(c.Min), twoDigits(c.Max))
}

// twoDigits writes a share with two digits.
func twoDigits(x float64) string { return fmt.Sprintf("%.2f", x) }

// writeSeeds says which figures have fewer seeds than the others.
func writeSeeds(b *strings.Builder, cells []Cell) {
	var most int
	for _, c := range cells {
		most = max(most, len(c.Seeds))
	}
	fewer := map[string]bool{}
	for _, c := range cells {
		if len(c.Seeds) < most {
			fewer[c.Scenario] = true
		}
	}
	if len(fewer) > 0 {
		fmt.Fprintf(b, "\nFigures have %d seeds. In %s some peers have fewer; peers.json says which. An empty cell has not been run.\n",
			most, strings.Join(slices.Sorted(maps.Keys(fewer)), ", "))
	}
}
