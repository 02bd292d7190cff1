package live

import (
	"fmt"
	"slices"
	"time"
)

// orderRow is a scenario of part three: classes of clients before one gate, of which
// some must not suffer from the others. Where a class has a load when alone, it is run
// with that first, and then with all.
type orderRow struct {
	id, about string
	law       Law
	guards    []string
	stage     time.Duration // that is judged, at pace 1
	library   bool          // the gate is in the server's process, and no gateway before it
	classes   []class
}

// class is one class of clients: a load of its own.
type class struct {
	name  string
	heads []string // of its requests, see [Load]
	alone float64  // load while only some are there, as a share of the capacity
	load  float64  // while all are there
	idle  bool     // its requests are no work for the backend
	goals []orderGoal
	// weight is that of its tenant, where the row is about shares.
	weight float64
	// calls is how many a task is, see [Load]; later begins those after the first.
	calls int
	later string
	// nested requests make another one before they are answered.
	nested bool
	// clients is how many there are in a closed loop, instead of a load.
	clients int
}

// orderGoal is a figure of a class with a bound.
type orderGoal struct {
	what  string
	value func(*OrderFigures) float64
	most  bool // the bound is an upper one
	every bool // in every round, not on the median
	bound float64
}

func served(f *OrderFigures) float64   { return f.Served }
func p99(f *OrderFigures) float64      { return f.P99 }
func ofAlone(f *OrderFigures) float64  { return f.P99 / max(1e-3, f.Alone) }
func offShare(f *OrderFigures) float64 { return f.OffShare }
func tasks(f *OrderFigures) float64    { return f.Tasks }
func slack(f *OrderFigures) float64    { return f.Slack }
func stuck(f *OrderFigures) float64    { return float64(f.ofNested().Stuck) }
func behind(f *OrderFigures) float64   { return float64(f.ofNested().Behind) }

func (f *OrderFigures) ofNested() Nested {
	if f.Nested == nil {
		return Nested{}
	}
	return *f.Nested
}

// head is the beginning of a request to a path, up to the headers that the client
// adds itself.
func head(path, headers string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: live\r\n" + headers
}

func ofTenant(name string) string { return head("/", "X-Tenant: "+name+"\r\n") }

func ofPriority(word string) string { return head("/", "X-Priority: "+word+"\r\n") }

// victims are the tenants that share half of the capacity.
const victims = 100

// The lengths of a run of part three, at pace 1: to warm up, to be measured, and to
// be measured where nothing is but counted.
const (
	orderWarm  = 3 * time.Second
	orderStage = 7 * time.Second
	orderCount = 3 * time.Second
)

// orderRows are the rows of part three.
func orderRows() []orderRow {
	rows := crowdRows()
	for i := range rows {
		rows[i].law, rows[i].guards, rows[i].stage = lawPool200, orderGuards, orderStage
	}
	return append(rows, nestedRows()...)
}

func servedGoal(bound float64) orderGoal {
	return orderGoal{what: "served", value: served, bound: bound}
}

// slower bounds the latency by that of the same requests when alone.
func slower(bound float64) orderGoal {
	return orderGoal{what: "p99/alone", value: ofAlone, most: true, bound: bound}
}

// crowdRows are those in which some must not suffer from others.
func crowdRows() []orderRow {
	off := []orderGoal{{what: "share error", value: offShare, most: true, bound: 0.03}}
	var small []string
	for i := range victims {
		small = append(small, ofTenant(fmt.Sprint("t", i)))
	}
	return []orderRow{
		{id: "S12", about: "critical work of .6 of the capacity, and other work of twelve times it", classes: []class{
			{name: "critical", heads: []string{ofPriority("critical")}, alone: 0.6, load: 0.6, goals: []orderGoal{servedGoal(0.9999), slower(1.2)}},
			{name: "bulk", heads: []string{ofPriority("normal")}, load: 12},
		}},
		{id: "S13", about: "a hundred tenants of .005 of the capacity each, and one of ten times it", classes: []class{
			{name: "victims", heads: small, alone: 0.5, load: 0.5, goals: []orderGoal{servedGoal(0.9999), slower(1.5)}},
			{name: "aggressor", heads: []string{ofTenant("big")}, load: 10},
		}},
		{id: "S14", about: "tenants of the weights 1, 2 and 4; the first sends seven times as much as each of the others", classes: []class{
			{name: "one", heads: []string{ofTenant("one")}, load: 10.5, weight: 1, goals: off},
			{name: "two", heads: []string{ofTenant("two")}, load: 1.5, weight: 2, goals: off},
			{name: "four", heads: []string{ofTenant("four")}, load: 1.5, weight: 4, goals: off},
		}},
		{id: "S15", about: "tasks of four calls, one after the other, for twice the capacity; calls after the first have the priority high", classes: []class{
			{name: "tasks", heads: []string{ofPriority("normal")}, load: 0.5, calls: 4, later: ofPriority("high"),
				goals: []orderGoal{{what: "tasks", value: tasks, bound: 0.9}}},
		}},
		{id: "S21", about: "a foreground of half the capacity, and 200 clients of a batch that always have more, of the priority background", classes: []class{
			{name: "foreground", heads: []string{ofPriority("normal")}, alone: 0.5, load: 0.5, goals: []orderGoal{servedGoal(0.9999), slower(1.1)}},
			{name: "batch", heads: []string{ofPriority("background")}, clients: 200, goals: []orderGoal{{what: "slack", value: slack, bound: 0.8}}},
		}},
		{id: "S22", about: "a hundred health checks a second, exempt, beside ten times the capacity", classes: []class{
			{name: "health", heads: []string{head("/healthz", "")}, load: 0.5, idle: true,
				goals: []orderGoal{servedGoal(1), {what: "p99 ms", value: p99, most: true, bound: 20}}},
			{name: "bulk", heads: []string{head("/", "")}, load: 10},
		}},
	}
}

// nestedRows are those in which a request makes another of the same service before it
// is answered, for twice the capacity.
func nestedRows() []orderRow {
	none := func(what string, value func(*OrderFigures) float64) orderGoal {
		return orderGoal{what: what, value: value, most: true, every: true}
	}
	outer := func(goals ...orderGoal) []class {
		return []class{{name: "outer", heads: []string{head("/", "")}, load: 1, nested: true, goals: goals}}
	}
	done := orderGoal{what: "tasks", value: tasks, bound: 0.9}
	inside := outer(none("stuck", stuck), none("behind", behind), done)
	return []orderRow{
		{id: "S23", about: "no gateway: a server with the gate inside, whose handler calls the gate again",
			law: lawPool200, guards: orderGuards, stage: orderCount, library: true, classes: inside},
		{id: "S23 one slot", about: "the same before a backend that serves one at a time, " + lawOne.Name + ", with a single slot",
			law: lawOne, guards: []string{guardFixed, guardFixedUntold}, stage: orderCount, library: true, classes: inside},
		{id: "S23 gateway", about: "a server behind the gateway that calls itself by way of the gateway; told: by a path that is exempt",
			law: lawPool200, guards: slices.Concat(orderGuards, []string{guardHigh}), stage: orderCount,
			classes: outer(none("stuck", stuck), done)},
	}
}

// nested reports whether the row's requests make others.
func (row *orderRow) nested() bool { return row.classes[0].nested }

// length is how long a run of the row takes.
func (row *orderRow) length(p *Plan) time.Duration {
	t := row.times(p)
	return t.length() + orderPatience/2 + startUp
}
