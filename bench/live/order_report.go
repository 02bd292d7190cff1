package live

import (
	"fmt"
	"slices"
	"strings"
)

const orderIntro = `# Who goes first, on real servers

Written by ` + "`make scoreboard-live-order`" + `; live-order.json has every figure of every round. Real servers on loopback: the gateway (or the server with a gate
inside) is a process pinned to one core, load generator and backend are pinned to the other. A run is void, and repeated, if more than 2 %% of the
sends were late or others used more than 5 %% of the core under test. Figures are the median over the rounds, with the least and the largest in
brackets.

%d cores (%s), %s, %s.
%s`

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

const orderHow = `
## Who goes first

Open loop, Poisson arrivals, before %s (%s). Clients wait %v for each
call. Where a row has a time in which only those come that must not suffer, the same requests come again at the same times when all are there;
the figures are of then. Guards:

- weir: a file with the default limiter, which is told who asks by headers (tenant, priority) and paths (exempt)
- fixed: the same with the backend's best concurrency as its limit
- weir, not told: the default limiter, which is told nothing of who asks
- nested calls (S23) are told by the context of the request that makes them where the gate is inside the server, and by a path that is exempt where
  the server is behind the gateway; "fixed, by priority": not exempt, but of the priority high; not told: calls like any other

What the columns are:

- served, refused: answered in time, and refused, of all requests or tasks that were due
- p99: latency of what was not refused, in ms, up to where the client gave up; of a task, of all its calls. alone: the same while the others were not there
- goodput of all: the calls of all classes that were answered in time, over the capacity; health checks, which are no work, do not count
- share error: by how much of its share by weight the class is off
- tasks: those done, of all that were due or as many as the capacity allows
- slack: the work done for the batch, of what the foreground left of the capacity
- stuck: nested calls that came to nothing, refused or not let in before nobody wanted them any more, while their callers held their slots: what would be
  a deadlock if nobody had a time-out. behind: nested calls that the gate let wait for a slot, or refused. Both of the whole run. nested p99: until a nested call could
  begin, in ms

`

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
	fmt.Fprintf(b, "\n| row | guard | class | served | refused %% | p99 | alone | goodput of all | what the row is about | goals |\n")
	fmt.Fprintf(b, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, row := range orderRows() {
		for _, guard := range row.guards {
			for i := range row.classes {
				if c := r.ordered(row.id, guard, row.classes[i].name); c != nil {
					c.line(b, row.extras(&row.classes[i]))
				}
			}
		}
	}
}

// measured says when a row was, and at what pace; empty if it was not.
func (r *Results) measured(row string) string {
	var all []string
	for _, c := range r.Order {
		if c.Row != row || len(c.Rounds) == 0 {
			continue
		}
		rounds := "rounds"
		if len(c.Rounds) == 1 {
			rounds = "round"
		}
		if one := fmt.Sprintf("%s, %d %s at pace %.2g", c.Measured, len(c.Rounds), rounds, c.Pace); !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	if len(all) == 0 && slices.ContainsFunc(r.Order, func(c *OrderCell) bool { return c.Row == row }) {
		return "void"
	}
	return strings.Join(all, "; ")
}

// extra is a figure that only some classes have.
type extra struct {
	name, verb string
	of         func(*OrderFigures) float64
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
	all = append(all, extra{"nested calls", "%.0f", func(f *OrderFigures) float64 { return float64(f.ofNested().Calls) }}, extra{"stuck", "%.0f", stuck})
	if row.library {
		all = append(all, extra{"behind", "%.0f", behind})
	}
	return append(all, extra{"nested p99", "%.0f", func(f *OrderFigures) float64 { return f.ofNested().P99 }})
}

func (c *OrderCell) line(b *strings.Builder, extras []extra) {
	fmt.Fprintf(b, "| %s | %s | %s |", c.Row, c.Guard, c.Class)
	if len(c.Rounds) == 0 {
		fmt.Fprintf(b, " void |%s\n", strings.Repeat(" |", 6))
		return
	}
	alone := ""
	if v := c.figures(func(f *OrderFigures) float64 { return f.Alone }); v[len(v)-1] > 0 {
		alone = spread(v, "%.0f")
	}
	var about []string
	for _, e := range extras {
		about = append(about, e.name+" "+spread(c.figures(e.of), e.verb))
	}
	fmt.Fprintf(b, " %s | %s | %s | %s | %s | %s | %s |\n",
		spread(c.figures(served), "%.4f"),
		spread(c.figures(func(f *OrderFigures) float64 { return 100 * f.Refused }), "%.1f"),
		spread(c.figures(p99), "%.0f"), alone,
		spread(c.figures(func(f *OrderFigures) float64 { return f.Goodput }), "%.2f"),
		strings.Join(about, "; "), verdicts(c.Goals))
}
