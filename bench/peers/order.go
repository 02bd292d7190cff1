package peers

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// The board about who goes first: peers that have priorities, and peers that are
// fair, each in the scenarios about what it has.

// OrderRow is one scenario on one backend, and who runs it.
type OrderRow struct {
	Table, Name, Backend string
	Figures              []Figure

	peers    []Peer
	scenario *sim.Scenario
}

// ranking are the peers that are told priorities. The calibration and the most
// that may wait, in limits, are settings of failsafe-go's.
func ranking() []Peer {
	prioritizers := func(fixed bool) []Peer {
		var list []Peer
		for _, every := range []time.Duration{time.Second, 100 * time.Millisecond} {
			for _, most := range []float64{3, 10} {
				name := fmt.Sprintf("failsafe-go prioritizer (%v, %gx)", every, most)
				if fixed {
					name = fmt.Sprintf("failsafe-go prioritizer (fixed, %v, %gx)", every, most)
				}
				list = append(list, Peer{Name: name, Told: fixed, make: newPrioritizer(fixed, every, most)})
			}
		}
		return list
	}
	list := []Peer{
		{Name: "weir", Weir: true, make: newWeir},
		{Name: "weir (fixed)", Told: true, make: newWeirFixed},
		{Name: "no control", make: newOpen},
	}
	list = append(list, prioritizers(false)[:1]...)
	list = append(list, prioritizers(true)...)
	return append(list, Peer{Name: "partitions (fixed, .7 and .3)", Told: true,
		make: newPartitions(map[weir.Priority]float64{weir.Critical: .7, weir.Background: .3})})
}

// sharing are the peers that are told tenants.
func sharing() []Peer {
	return []Peer{
		{Name: "weir", Weir: true, make: newWeir},
		{Name: "weir (fixed)", Told: true, make: newWeirFixed},
		{Name: "Kubernetes APF", Told: true, make: newFlows},
		{Name: "semaphore (waiting)", Told: true, make: newSemaphore(true)},
	}
}

// exact are those of them with a fixed limit, for scenarios of a few seats.
func exact() []Peer { return sharing()[1:] }

// newWeirFixed is weir with a limit of the backend's best concurrency, told the
// scenario's weights.
func newWeirFixed(e *Env) (limiter, error) {
	weights := limit.Weights{Users: e.Scenario.Fair.Users, Tenants: e.Scenario.Fair.Tenants}
	return weirGate(limit.Config{Name: "weir", Limit: int64(e.Best), Queue: limit.Queue{Weights: weights}})
}

const (
	tablePriority = "A tenth critical"
	tableFairness = "Kubernetes' own fairness scenarios"
)

// orderRows says who runs what, for what part of a scenario's time.
var orderRows = []struct {
	table, file, backend string
	part                 float64
	peers                func() []Peer
	figures              []string // names of the scenario's goals, - for none
}{
	{tablePriority, "priority-2000", "", 1, ranking, []string{"2000/s: critical refused", "2000/s: critical served", "2000/s: bulk refused", "2000/s: goodput"}},
	{tablePriority, "priority-4000", "", 1, ranking, []string{"4000/s: critical refused", "4000/s: critical served", "4000/s: bulk refused", "4000/s: goodput"}},
	{"S12", "S12", "B2", .4, ranking, []string{"B2 critical served", "B2 p99 ms", "B2 wait p99 ms", "B2 critical refused", "-", "B2 goodput", "-"}},
	{"S12", "S12", "B3", .4, ranking, []string{"B3 critical served", "B3 p99 ms", "B3 wait p99 ms", "B3 critical refused", "-", "B3 goodput", "-"}},
	{"S13", "S13", "B3", .4, sharing, []string{"one: served", "one: refused", "one: p99 ms", "one: wait p99 ms", "one: Jain", "one: goodput"}},
	{"S13", "S13b", "B3", .4, sharing, []string{"16: served", "16: refused", "16: p99 ms", "16: wait p99 ms", "16: Jain", "16: goodput"}},
	{"Equal tenants, one opens a hundred times the requests", "tenants-equal", "", 1, sharing, []string{"share error", "goodput"}},
	{tableFairness, "apf-uniform", "", 1, exact, []string{"uniform (.01)"}},
	{tableFairness, "apf-equal", "", 1, exact, []string{"equal (.01)"}},
	{tableFairness, "apf-unequal", "", 1, exact, []string{"unequal (.01)"}},
	{tableFairness, "apf-widths", "", 1, exact, []string{"widths (.155)"}},
}

// OrderRows returns the rows, with times cut to a further part of theirs; 1 is
// all of it.
func OrderRows(part float64) ([]OrderRow, error) {
	var rows []OrderRow
	for _, r := range orderRows {
		s, err := orderScenario(r.file, r.backend)
		if err != nil {
			return nil, err
		}
		if len(s.Goals) != len(r.figures) {
			return nil, fmt.Errorf("%s has %d goals for %d figures", r.file, len(s.Goals), len(r.figures))
		}
		shorten(s, r.part*part)
		row := OrderRow{Table: r.table, Name: r.file, Backend: r.backend, peers: r.peers(), scenario: s}
		for i, name := range r.figures {
			if name != "-" {
				row.Figures = append(row.Figures, Figure{Name: name, Goal: s.Goals[i]})
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func orderScenario(file, backend string) (*sim.Scenario, error) {
	if backend == "" {
		data, err := files.ReadFile("scenarios/" + file + ".json")
		if err != nil {
			return nil, err
		}
		return sim.ParseScenario(data)
	}
	s, err := sim.Load(file)
	if err != nil {
		return nil, err
	}
	return s.With(backend, "none")
}

// shorten cuts all times of a scenario to a part of them.
func shorten(s *sim.Scenario, part float64) {
	cut := func(d *policy.Duration) {
		*d = policy.Duration(time.Duration(part * float64(*d)).Round(time.Millisecond))
	}
	for i := range s.Phases {
		cut(&s.Phases[i].For)
	}
	for i := range s.Traffic {
		s.Traffic[i].Phases = append([]sim.Phase(nil), s.Traffic[i].Phases...)
		for j := range s.Traffic[i].Phases {
			cut(&s.Traffic[i].Phases[j].For)
		}
	}
	for i := range s.Goals {
		cut(&s.Goals[i].From)
		cut(&s.Goals[i].To)
	}
}

// OrderBoard runs the rows, of those named if there are names, and returns the
// cells. Rows run one after the other, the peers of a row at the same time.
func OrderBoard(t *testing.T, rows []OrderRow, names, peers []string, seeds []uint64) []Cell {
	var cells []Cell
	for _, row := range rows {
		if !wanted(names, row.Name) {
			continue
		}
		var mu sync.Mutex
		reports := map[string]*sim.Report{}
		t.Run(strings.TrimSpace(row.Name+" "+row.Backend), func(t *testing.T) {
			for _, p := range row.peers {
				if !wanted(peers, p.Name) {
					continue
				}
				t.Run(p.Name, func(t *testing.T) {
					t.Parallel()
					report, err := Run(t, row.scenario, &p, seeds)
					if err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					defer mu.Unlock()
					reports[p.Name] = report
				})
			}
		})
		cells = append(cells, row.cells(reports, seeds)...)
	}
	return cells
}

func (r *OrderRow) cells(reports map[string]*sim.Report, seeds []uint64) []Cell {
	var cells []Cell
	for _, f := range r.Figures {
		from, to := f.Goal.Stretch(r.scenario)
		for _, p := range r.peers {
			if report := reports[p.Name]; report != nil {
				cells = append(cells, Cell{
					Table: r.Table, Scenario: r.Name, Backend: r.Backend, Column: f.Name, Peer: p.Name, Told: p.Told,
					Metric: f.Goal.Metric, Class: f.Goal.Class, From: from.String(), To: to.String(), Seeds: seeds,
					Spread: report.Spread(f.Goal),
				})
			}
		}
	}
	return cells
}

const orderPreface = `# Who goes first: peers

Limiters that have priorities or fairness and weir, before the same simulated backends, from the same scenario files, in virtual time. Written by
` + "`make scoreboard-order-peers`" + `; ` + "`bench/peers`" + ` says what each peer's settings are. Every figure is the median over the seeds, with the least and
the greatest in brackets where they differ. Shares are parts of one, latencies milliseconds. A star marks a peer that was told the backend's best
concurrency.
`

// WriteOrder writes the tables: a line for each peer.
func WriteOrder(w io.Writer, cells []Cell) error {
	var b strings.Builder
	b.WriteString(orderPreface)
	for _, name := range tables(cells) {
		orderTable(&b, name, cells)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func orderTable(b *strings.Builder, name string, cells []Cell) {
	var columns, peers []string
	at := map[[2]string]Cell{}
	for _, c := range cells {
		if c.Table != name {
			continue
		}
		if !slices.Contains(columns, c.Column) {
			columns = append(columns, c.Column)
		}
		peer := c.Peer
		if c.Told {
			peer += " *"
		}
		if !slices.Contains(peers, peer) {
			peers = append(peers, peer)
		}
		at[[2]string{peer, c.Column}] = c
	}
	fmt.Fprintf(b, "\n## %s\n\n| | %s |\n|---|%s\n", name, strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, p := range peers {
		fmt.Fprintf(b, "| %s |", p)
		for _, column := range columns {
			c := at[[2]string{p, column}]
			fmt.Fprintf(b, " %s |", c.figures())
		}
		b.WriteByte('\n')
	}
}

// figures is the cell with its spread.
func (c *Cell) figures() string {
	if c.Peer == "" {
		return ""
	}
	text := fmt.Sprintf("%.4g", c.Median)
	if low, high := fmt.Sprintf("%.4g", c.Min), fmt.Sprintf("%.4g", c.Max); low != high {
		text += fmt.Sprintf(" (%s-%s)", low, high)
	}
	return text
}

// ReadOrderJSON reads the cells that WriteOrderJSON has written.
func ReadOrderJSON(r io.Reader) (cells []Cell, err error) {
	err = json.NewDecoder(r).Decode(&cells)
	return cells, err
}

// MergeOrder puts new cells over old ones, in the order of the rows. Old cells
// that the rows no longer have are dropped.
func MergeOrder(rows []OrderRow, old, fresh []Cell) []Cell {
	byPlace := map[place]Cell{}
	for _, c := range slices.Concat(old, fresh) {
		byPlace[c.place()] = c
	}
	var merged []Cell
	for _, row := range rows {
		for _, f := range row.Figures {
			for _, p := range row.peers {
				if c, ok := byPlace[place{row.Name, row.Backend, f.Name, p.Name}]; ok {
					merged = append(merged, c)
				}
			}
		}
	}
	return merged
}

// WriteOrderJSON writes the cells.
func WriteOrderJSON(w io.Writer, cells []Cell) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(cells)
}
