package peers

import (
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

// Limits is the board of what peers hold.
func Limits() (*Board, error) {
	b := &Board{file: "peers", judged: true}
	for _, sh := range shared {
		list, err := sharedRows(sh.table, sh.file, sh.goals, sh.columns)
		if err != nil {
			return nil, err
		}
		b.Rows = append(b.Rows, list...)
	}
	for _, o := range own {
		s, err := read(o.file, "")
		if err != nil {
			return nil, err
		}
		if len(s.Goals) != len(o.columns) {
			return nil, fmt.Errorf("scenarios/%s.json has %d goals for %d columns", o.file, len(s.Goals), len(o.columns))
		}
		b.Rows = append(b.Rows, Row{o.table, o.file, "", figures(s.Goals, o.columns), Peers(), s})
	}
	order := map[string]int{tableSteps: -2, tablePool: -1}
	slices.SortStableFunc(b.Rows, func(a, b Row) int { return order[a.Table] - order[b.Table] })
	return b, nil
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
	s, err := sim.ParseScenario(data)
	if err != nil {
		return nil, fmt.Errorf("scenarios/%s.json: %w", file, err)
	}
	return s, nil
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
		rows = append(rows, Row{table, file, backend, figures(goals, names), Peers(), on})
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

// Order is the board about who goes first: peers that have priorities, and peers
// that are fair, each in the scenarios about what it has. Its times are cut to a
// part of theirs; 1 is all of it.
func Order(part float64) (*Board, error) {
	b := &Board{file: "order-peers"}
	for _, r := range orderRows {
		s, err := read(r.file, r.backend)
		if err != nil {
			return nil, err
		}
		if len(s.Goals) != len(r.figures) {
			return nil, fmt.Errorf("%s has %d goals for %d figures", r.file, len(s.Goals), len(r.figures))
		}
		shorten(s, r.part*part)
		row := Row{Table: r.table, Name: r.file, Backend: r.backend, peers: r.peers(), scenario: s}
		for i, name := range r.figures {
			if name != "-" {
				row.Figures = append(row.Figures, Figure{Name: name, Goal: s.Goals[i]})
			}
		}
		b.Rows = append(b.Rows, row)
	}
	return b, nil
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
