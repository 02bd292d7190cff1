package live

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/internal/station"
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
	kit.Goal
	value func(*orderFigures) float64
}

func served(f *orderFigures) float64   { return f.Served }
func p99(f *orderFigures) float64      { return f.P99 }
func ofAlone(f *orderFigures) float64  { return f.P99 / max(1e-3, f.Alone) }
func offShare(f *orderFigures) float64 { return f.OffShare }
func tasks(f *orderFigures) float64    { return f.Tasks }
func slack(f *orderFigures) float64    { return f.Slack }
func stuck(f *orderFigures) float64    { return float64(f.ofNested().Stuck) }
func behind(f *orderFigures) float64   { return float64(f.ofNested().Behind) }

func (f *orderFigures) ofNested() Nested {
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

// The lengths of a run of part three, at pace 1: to warm up, and to be measured. The last
// is to be measured where answers are only counted.
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
	return orderGoal{Goal: kit.Goal{What: "served", Bound: bound}, value: served}
}

// slower bounds the latency by that of the same requests when alone.
func slower(bound float64) orderGoal {
	return orderGoal{Goal: kit.Goal{What: "p99/alone", AtMost: true, Bound: bound}, value: ofAlone}
}

// crowdRows are those in which some must not suffer from others.
func crowdRows() []orderRow {
	off := []orderGoal{{Goal: kit.Goal{What: "share error", AtMost: true, Bound: 0.03}, value: offShare}}
	var small []string
	for i := range victims {
		small = append(small, ofTenant(fmt.Sprint("t", i)))
	}
	return []orderRow{
		{id: "S12", about: "critical work for 0.6 of the capacity, and other work for twelve times the capacity", classes: []class{
			{name: "critical", heads: []string{ofPriority("critical")}, alone: 0.6, load: 0.6, goals: []orderGoal{servedGoal(0.9999), slower(1.2)}},
			{name: "bulk", heads: []string{ofPriority("normal")}, load: 12},
		}},
		{id: "S13", about: "a hundred tenants with 0.005 of the capacity each, and one with ten times the capacity", classes: []class{
			{name: "victims", heads: small, alone: 0.5, load: 0.5, goals: []orderGoal{servedGoal(0.9999), slower(1.5)}},
			{name: "aggressor", heads: []string{ofTenant("big")}, load: 10},
		}},
		{id: "S14", about: "tenants with the weights 1, 2 and 4. The first sends seven times as much as each of the others", classes: []class{
			{name: "one", heads: []string{ofTenant("one")}, load: 10.5, weight: 1, goals: off},
			{name: "two", heads: []string{ofTenant("two")}, load: 1.5, weight: 2, goals: off},
			{name: "four", heads: []string{ofTenant("four")}, load: 1.5, weight: 4, goals: off},
		}},
		{id: "S15", about: "tasks of four calls each, one after the other, for twice the capacity. Calls after the first have the priority high", classes: []class{
			{name: "tasks", heads: []string{ofPriority("normal")}, load: 0.5, calls: 4, later: ofPriority("high"),
				goals: []orderGoal{{Goal: kit.Goal{What: "tasks", Bound: 0.9}, value: tasks}}},
		}},
		{id: "S21", about: "a foreground with half the capacity, and a batch of 200 clients that always have more to do, with the priority background", classes: []class{
			{name: "foreground", heads: []string{ofPriority("normal")}, alone: 0.5, load: 0.5, goals: []orderGoal{servedGoal(0.9999), slower(1.1)}},
			{name: "batch", heads: []string{ofPriority("background")}, clients: 200, goals: []orderGoal{{Goal: kit.Goal{What: "slack", Bound: 0.8}, value: slack}}},
		}},
		{id: "S22", about: "a hundred exempt health checks a second, beside work for ten times the capacity", classes: []class{
			{name: "health", heads: []string{head("/healthz", "")}, load: 0.5, idle: true,
				goals: []orderGoal{servedGoal(1), {Goal: kit.Goal{What: "p99 ms", AtMost: true, Bound: 20}, value: p99}}},
			{name: "bulk", heads: []string{head("/", "")}, load: 10},
		}},
	}
}

// nestedRows are those in which a request makes another of the same service before it
// is answered, for twice the capacity.
func nestedRows() []orderRow {
	none := func(what string, value func(*orderFigures) float64) orderGoal {
		return orderGoal{Goal: kit.Goal{What: what, AtMost: true, Every: true}, value: value}
	}
	outer := func(goals ...orderGoal) []class {
		return []class{{name: "outer", heads: []string{head("/", "")}, load: 1, nested: true, goals: goals}}
	}
	done := orderGoal{Goal: kit.Goal{What: "tasks", Bound: 0.9}, value: tasks}
	inside := outer(none("stuck", stuck), none("behind", behind), done)
	return []orderRow{
		{id: "S23", about: "no gateway. The gate is inside the server, and the handler calls it again",
			law: lawPool200, guards: orderGuards, stage: orderCount, library: true, classes: inside},
		{id: "S23 one slot", about: "the same with a single slot, before the backend " + lawOne.Name + ", which serves one request at a time",
			law: lawOne, guards: []string{guardFixed, guardFixedUntold}, stage: orderCount, library: true, classes: inside},
		{id: "S23 gateway", about: "a server behind the gateway calls itself by way of the gateway",
			law: lawPool200, guards: slices.Concat(orderGuards, []string{guardHigh}), stage: orderCount,
			classes: outer(none("stuck", stuck), done)},
	}
}

// nested reports whether the row's requests make others.
func (row *orderRow) nested() bool { return row.classes[0].nested }

// The guards of part three. They are the gateway told who asks, with the default limiter
// and with the backend's best concurrency, and the gateway as it is. Where work is
// nested, also the best concurrency and not told, and with nested calls that are not
// exempt but high.
const (
	guardUntold      = "weir, not told"
	guardFixedUntold = "fixed, not told"
	guardHigh        = "fixed, by priority"
)

var orderGuards = []string{guardWeir, guardFixed, guardUntold}

// orderPatience is how long clients wait in part three.
const orderPatience = time.Second

// The backends of part three: 200 requests a second, and one at a time, 100 a second.
var (
	lawPool200 = Law{Name: "pool-200", Service: 50 * time.Millisecond, Law: station.Law{Slots: 10}}
	lawOne     = Law{Name: "one-100", Service: 10 * time.Millisecond, Law: station.Law{Slots: 1}}
)

// orderConfig is the gateway's file for a guard of part three. Without an upstream it is for an Envoy that asks.
func orderConfig(guard string, law *Law, addr, admin, upstream string) string {
	limit, identity, inner, health := "{}", "", "", ""
	serve, upstreams, to := ", serve: [ext_proc]", "", ""
	if upstream != "" {
		serve, upstreams, to = "", fmt.Sprintf("upstreams: {app: {targets: [\"%s\"]}}\n", upstream), ", upstream: app"
	}
	switch guard {
	case guardFixed, guardHigh:
		n, _ := law.best()
		limit = fmt.Sprintf("{limit: %d, queue: {weights: {tenants: {two: 2, four: 4}}}}", n)
	case guardWeir, guardAsked:
		limit = "{queue: {weights: {tenants: {two: 2, four: 4}}}}"
	}
	if guard != guardUntold {
		identity, health = "identity: {tenant: header:X-Tenant, priority: header:X-Priority}\n", ", exempt: true"
		if guard != guardHigh {
			inner = ", exempt: true"
		}
	}
	return fmt.Sprintf(`listeners: [{address: "%s"%s}]
admin: {address: "%s"}
%s%sgates: {all: {limit: %s}}
routes:
  - {match: [/healthz], gates: [all]%s%s}
  - {match: [%s], gates: [all]%[7]s, timeout: %[10]s%[11]s}
  - {match: [/], gates: [all]%[7]s, timeout: %[10]s}
`, addr, serve, admin, identity, upstreams, limit, to, health, innerPath, orderPatience, inner)
}

// libraryRole is the server for a guard of a row of part three that has its gate
// inside.
func libraryRole(row *orderRow, guard string) role {
	r := role{Kind: "server", Procs: 1, Law: row.law, Guard: Guard{Name: guard, Kind: "default"}, Nested: nestedTold}
	if guard == guardFixed || guard == guardFixedUntold {
		n, _ := row.law.best()
		r.Guard.Kind, r.Guard.Limit = "fixed", int64(n)
	}
	if guard == guardUntold || guard == guardFixedUntold {
		r.Nested = nestedUntold
	}
	return r
}

//go:embed order.md.tmpl
var orderIntro string

// orderMarkdown is the report of part three alone.
func (r *Results) orderMarkdown(b *strings.Builder) {
	fmt.Fprintf(b, orderIntro, r.Machine.Cores, r.Machine.Arch, r.Machine.Kernel, r.Machine.Go, r.together())
	r.voids(b)
	r.order(b)
}

// together warns of figures that are none.
func (r *Results) together() string {
	if r.Machine.Apart {
		return ""
	}
	return "**Generator and system under test shared one core: figures of this run are no results.**\n"
}

//go:embed classes.md.tmpl
var orderHow string

// order writes part three.
func (r *Results) order(b *strings.Builder) {
	if len(r.Order) == 0 {
		return
	}
	fmt.Fprintf(b, orderHow, lawPool200.Name, lawPool200.String(), orderPatience)
	for _, row := range orderRows() {
		if when := r.measured(row.id); when != "" {
			fmt.Fprintf(b, "- %s: %s (%s)\n", row.id, row.about, when)
		}
	}
	table := kit.Table{{"row", "guard", "class", "served", "refused %", "p99", "alone", "goodput of all", "what the row is about", "goals"}}
	for _, row := range orderRows() {
		for i := range r.Order {
			if c := &r.Order[i]; c.Row == row.id {
				table = append(table, c.line(&row, len(table[0])))
			}
		}
	}
	b.WriteString("\n" + table.Plain(kit.Rule(len(table[0]))))
}

// measured says when a row was, and at what pace; empty if it was not.
func (r *Results) measured(row string) string {
	text := ""
	rounds := 0
	for i := range r.Order {
		c := &r.Order[i]
		if c.Row != row || len(c.Rounds) < rounds {
			continue
		}
		switch rounds = len(c.Rounds); rounds {
		case 0:
			text = "void"
		case 1:
			text = fmt.Sprintf("%s, 1 round at pace %.2g", c.Measured, c.Pace)
		default:
			text = fmt.Sprintf("%s, %d rounds at pace %.2g", c.Measured, rounds, c.Pace)
		}
	}
	return text
}

// extra is a figure that only some classes have.
type extra struct {
	name, verb string
	of         func(*orderFigures) float64
}

// extras are those of a class of the row.
func (row *orderRow) extras(c *class) (all []extra) {
	if c.weight > 0 {
		all = append(all, extra{"share error", "%.3f", offShare})
	}
	if c.callsOfTask() > 1 {
		all = append(all, extra{"tasks", "%.3f", tasks})
	}
	if c.clients > 0 {
		all = append(all, extra{"slack", "%.3f", slack})
	}
	if !c.nested {
		return all
	}
	all = append(all, extra{"nested calls", "%.0f", func(f *orderFigures) float64 { return float64(f.ofNested().Calls) }}, extra{"stuck", "%.0f", stuck})
	if row.library {
		all = append(all, extra{"behind", "%.0f", behind})
	}
	return append(all, extra{"nested p99", "%.0f", func(f *orderFigures) float64 { return f.ofNested().P99 }})
}

// line is the cell's row of the table.
func (c *orderCell) line(row *orderRow, columns int) []string {
	line := make([]string, columns)
	copy(line, []string{c.Row, c.Guard, c.Class, "void"})
	if len(c.Rounds) == 0 {
		return line
	}
	alone := func(f *orderFigures) float64 { return f.Alone }
	copy(line[3:], []string{
		c.text("%.4f", served), c.text("%.1f", func(f *orderFigures) float64 { return 100 * f.Refused }), c.text("%.0f", p99), "",
		c.text("%.2f", func(f *orderFigures) float64 { return f.Goodput }), "", verdicts(c.Goals),
	})
	if c.over(alone).Max > 0 {
		line[6] = c.text("%.0f", alone)
	}
	var about []string
	for i := range row.classes {
		if row.classes[i].name == c.Class {
			for _, e := range row.extras(&row.classes[i]) {
				about = append(about, e.name+" "+c.text(e.verb, e.of))
			}
		}
	}
	line[8] = strings.Join(about, "; ")
	return line
}
