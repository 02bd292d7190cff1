package peers

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

//go:embed scenarios/*.json
var files embed.FS

// The tables of scenarios that this package brings along. Every other table is
// named after the scenario file it is about.
const (
	tableSteps = "Capacity steps"
	tablePool  = "A pool of 50"
)

// source is a scenario file of which rows are made: one for each backend.
type source struct {
	table, file string
	on          []string   // backends; nil: the standard ones that the file names, or the one it brings along
	goals       []sim.Goal // instead of the file's
	// columns name the goals: - for none, and * stands for the backend.
	columns []string
	length  time.Duration // of a file with one phase, if not its own
	part    float64       // of all times; 0 is all of them
	peers   func() []peer // nil: all
}

// standard are the backends that rows of the simulator's scoreboard are run on,
// of those that they are meant for.
var standard = []string{"B1", "B2", "B3", "B4", "P1"}

// limitSources judge rows of the simulator's scoreboard in stretches of their own. While
// there is more load than capacity, goodput counts. While there is not, the share served
// does. S2 and S11 are shortened, as peers cost up to 60 µs a request.
var limitSources = []source{
	{table: tableSteps, file: "steps-800", goals: []sim.Goal{stretch("goodput", 60, 120), stretch("served", 120, 180)}, columns: []string{"800/s: fault", "800/s: after"}},
	{table: tableSteps, file: "steps-1500", goals: []sim.Goal{stretch("goodput", 60, 120), stretch("goodput", 120, 180)}, columns: []string{"1500/s: fault", "1500/s: after"}},
	{table: tableSteps, file: "step800erlang", columns: []string{"800/s Erlang-4: fault", "800/s Erlang-4: after"}},
	{table: tableSteps, file: "step1500erlang", columns: []string{"1500/s Erlang-4: fault", "1500/s Erlang-4: after"}},
	{table: tableSteps, file: "step800exp", columns: []string{"800/s exponential: fault", "800/s exponential: after"}},
	{table: tableSteps, file: "step1500exp", columns: []string{"1500/s exponential: fault", "1500/s exponential: after"}},
	{table: tablePool, file: "load1", columns: []string{"1x"}},
	{table: tablePool, file: "load2", columns: []string{"2x", "2x: p50 ms", "2x: p99 ms", "2x: ramp s"}},
	{table: tablePool, file: "load10", columns: []string{"10x"}},
	{table: tablePool, file: "spike", columns: []string{"in a spike", "after it"}},
	{table: tablePool, file: "half", columns: []string{"half"}},
	{table: tablePool, file: "tenth", columns: []string{"tenth"}},
	{table: tablePool, file: "erlang", columns: []string{"2x Erlang-4"}},
	{table: tablePool, file: "constant", columns: []string{"2x constant"}},
	{table: "S1", file: "S1", goals: []sim.Goal{stretch("goodput", 20, 60)}, columns: []string{"*"}},
	{table: "S2", file: "S2", goals: []sim.Goal{stretch("goodput", 20, 40)}, columns: []string{"*"}, length: 40 * time.Second},
	{table: "S3", file: "S3", goals: []sim.Goal{stretch("goodput", 20, 40), stretch("served", 40, 60)}, columns: []string{"* step", "* after"}},
	{table: "S4", file: "S4", goals: []sim.Goal{stretch("goodput", 20, 40), stretch("served", 40, 60)}, columns: []string{"* fault", "* after"}},
	{table: "S4b", file: "S4b", goals: []sim.Goal{stretch("goodput", 20, 40), stretch("served", 40, 60)}, columns: []string{"* fault", "* after"}},
	{table: "S9", file: "S9", goals: []sim.Goal{{Metric: "served"}}, columns: []string{"*"}},
	{table: "S9b", file: "S9b", goals: []sim.Goal{{Metric: "served"}}, columns: []string{"*"}},
	{table: "S11", file: "S11", goals: []sim.Goal{stretch("goodput_work", 60, 120)}, columns: []string{"*"}, length: 2 * time.Minute},
}

func stretch(metric string, from, to int) sim.Goal {
	return sim.Goal{Metric: metric, From: policy.Duration(seconds(from)), To: policy.Duration(seconds(to))}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// Limits is the board of what peers hold.
func Limits() (*board, error) {
	b := &board{file: "peers", judged: true}
	return b, b.add(limitSources, 1)
}

// Order is the board about who goes first: peers that have priorities, and peers
// that are fair, each in the scenarios about what it has. Its times are cut to a
// part of theirs; 1 is all of it.
func Order(part float64) (*board, error) {
	b := &board{file: "order-peers"}
	return b, b.add(orderSources, part)
}

// add makes the rows of files.
func (b *board) add(sources []source, part float64) error {
	for _, src := range sources {
		on, err := src.backends()
		for i := 0; i < len(on) && err == nil; i++ {
			err = b.addRow(&src, on[i], part)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", src.file, err)
		}
	}
	return nil
}

// backends are those of the file's rows: one without a name is the file's own.
func (src *source) backends() ([]string, error) {
	switch {
	case src.on != nil:
		return src.on, nil
	case src.goals == nil:
		return []string{""}, nil
	}
	s, err := sim.Load(src.file)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(s.On), func(name string) bool { return !slices.Contains(standard, name) }), nil
}

// addRow adds the row of a file on a backend.
func (b *board) addRow(src *source, backend string, part float64) error {
	s, err := read(src.file, backend)
	if err != nil {
		return err
	}
	if src.goals != nil {
		s.Goals = slices.Clone(src.goals)
	}
	if len(s.Goals) != len(src.columns) {
		return fmt.Errorf("%d goals for %d columns", len(s.Goals), len(src.columns))
	}
	if src.length > 0 {
		s.Phases[0].For = policy.Duration(src.length)
	}
	shorten(s, part*cmp.Or(src.part, 1))
	row := Row{Table: src.table, Name: src.file, Backend: backend, peers: peers(), scenario: s}
	if src.peers != nil {
		row.peers = src.peers()
	}
	for i, goal := range s.Goals {
		share := goal.Metric == "goodput" || goal.Metric == "goodput_work" || goal.Metric == "served"
		if name := strings.Replace(src.columns[i], "*", backend, 1); name != "-" {
			row.Figures = append(row.Figures, figure{name, goal, b.judged && share})
		}
	}
	b.Rows = append(b.Rows, row)
	return nil
}

// read reads a scenario: one of this package, or one of the simulator's on a
// backend.
func read(file, backend string) (*sim.Scenario, error) {
	if backend != "" {
		s, err := sim.Load(file)
		if err != nil {
			return nil, err
		}
		return s.With(backend, "none")
	}
	data, err := files.ReadFile("scenarios/" + file + ".json")
	if err != nil {
		return nil, err
	}
	return sim.ParseScenario(data)
}

// ranking are the peers that are told priorities. The calibration and the most
// that may wait, in limits, are settings of failsafe-go's.
func ranking() []peer {
	list := []peer{
		{Name: "weir", Weir: true, make: newWeir},
		{Name: "weir (fixed)", Told: true, make: newWeirFixed},
		{Name: "no control", make: newOpen},
		{Name: "failsafe-go prioritizer (1s, 3x)", make: newPrioritizer(false, time.Second, 3)},
	}
	for _, every := range []time.Duration{time.Second, 100 * time.Millisecond} {
		for _, most := range []float64{3, 10} {
			list = append(list, peer{Name: fmt.Sprintf("failsafe-go prioritizer (fixed, %v, %gx)", every, most), Told: true, make: newPrioritizer(true, every, most)})
		}
	}
	return append(list, peer{Name: "partitions (fixed, 0.7 and 0.3)", Told: true,
		make: newPartitions(map[weir.Priority]float64{weir.Critical: 0.7, weir.Background: 0.3})})
}

// sharing are the peers that are told tenants.
func sharing() []peer {
	return []peer{
		{Name: "weir", Weir: true, make: newWeir},
		{Name: "weir (fixed)", Told: true, make: newWeirFixed},
		{Name: "Kubernetes APF", Told: true, make: newQueueSet(flowByTenant)},
		{Name: "semaphore (waiting)", Told: true, make: newSemaphore(true)},
	}
}

// exact are those of them with a fixed limit, for scenarios of a few seats.
func exact() []peer { return sharing()[1:] }

// newWeirFixed is weir with a limit of the backend's best concurrency, told the
// scenario's weights.
func newWeirFixed(e *env) (*limiter, error) {
	weights := limit.Weights{Users: e.Scenario.Fair.Users, Tenants: e.Scenario.Fair.Tenants}
	return weirGate(limit.Config{Name: "weir", Limit: int64(e.Best), Queue: limit.Queue{Weights: weights}})
}

const (
	tablePriority = "A tenth critical"
	tableFairness = "Kubernetes' own fairness scenarios"
)

// orderSources say who runs what, for what part of a scenario's time.
var orderSources = []source{
	{table: tablePriority, file: "priority-2000", peers: ranking, columns: []string{"2000/s: critical refused", "2000/s: critical served", "2000/s: bulk refused", "2000/s: goodput"}},
	{table: tablePriority, file: "priority-4000", peers: ranking, columns: []string{"4000/s: critical refused", "4000/s: critical served", "4000/s: bulk refused", "4000/s: goodput"}},
	{table: "S12", file: "S12", on: []string{"B2", "B3"}, part: 0.4, peers: ranking, columns: []string{"* critical served", "* p99 ms", "* wait p99 ms", "* critical refused", "-", "* goodput", "-"}},
	{table: "S13", file: "S13", on: []string{"B3"}, part: 0.4, peers: sharing, columns: []string{"one: served", "one: refused", "one: p99 ms", "one: wait p99 ms", "one: Jain", "one: goodput"}},
	{table: "S13", file: "S13b", on: []string{"B3"}, part: 0.4, peers: sharing, columns: []string{"16: served", "16: refused", "16: p99 ms", "16: wait p99 ms", "16: Jain", "16: goodput"}},
	{table: "Equal tenants, one opens a hundred times the requests", file: "tenants-equal", peers: sharing, columns: []string{"share error", "goodput"}},
	{table: tableFairness, file: "apf-uniform", peers: exact, columns: []string{"uniform (0.01)"}},
	{table: tableFairness, file: "apf-equal", peers: exact, columns: []string{"equal (0.01)"}},
	{table: tableFairness, file: "apf-unequal", peers: exact, columns: []string{"unequal (0.01)"}},
	{table: tableFairness, file: "apf-widths", peers: exact, columns: []string{"widths (0.155)"}},
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
