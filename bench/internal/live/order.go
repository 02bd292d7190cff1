package live

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/internal/loadgen"
)

// orderFigures are what a class came to in one run of part three while all were
// there.
type orderFigures struct {
	Round int `json:"round"`
	// Sent is how many requests or tasks were due, Served the share of them that was
	// answered in time, Refused the share that was refused.
	Sent    int     `json:"sent"`
	Served  float64 `json:"served"`
	Refused float64 `json:"refused"`
	// P99 is the latency of what was not refused, in ms. Alone is the same while only
	// those were there that must not suffer. It is 0 where the row has no such time.
	P99   float64 `json:"p99_ms"`
	Alone float64 `json:"alone_p99_ms"`
	// OffShare is by how much of its share by weight the class is off, of all that
	// was answered in time.
	OffShare float64 `json:"off_share"`
	// Tasks is those done of what could have been: all that were due, or as many as
	// the capacity allows of so many calls.
	Tasks float64 `json:"tasks,omitempty"`
	// Slack is the work that was done for the class of what the others left of the
	// capacity.
	Slack float64 `json:"slack,omitempty"`
	// Nested is of the whole run, also of the time before it is judged.
	Nested *Nested `json:"nested,omitempty"`
	// Goodput is the calls of all classes that are work and were answered in time,
	// over the capacity.
	Goodput float64 `json:"goodput"`
}

// orderCell is one class of one row under one guard.
type orderCell struct {
	Row   string `json:"row"`
	Guard string `json:"guard"`
	Class string `json:"class"`
	// Measured is the day, Pace the plan's.
	Measured string  `json:"measured"`
	Pace     float64 `json:"pace"`

	samples[orderFigures]
}

// wantsOrder reports whether the plan has a row of part three. S23 asks for all that
// begin with that word.
func (p *Plan) wantsOrder(row *orderRow) bool {
	first, _, _ := strings.Cut(row.id, " ")
	return p.Rows.Has(row.id) || p.Rows.Has(first)
}

// order runs one round of part three.
func (r *runner) order(ctx context.Context, round int) error {
	for _, row := range orderRows() {
		if !r.plan.wantsOrder(&row) {
			continue
		}
		o := orderRun{row: &row, round: round, times: row.times(&r.plan)}
		_, o.capacity = row.law.best()
		guards := row.guards
		if r.plan.Envoy != "" && !row.nested() {
			guards = append(slices.Clone(guards), guardAsked)
		}
		for _, guard := range kit.Turned(r.plan.Guards.Of(guards), round) {
			if err := r.try(ctx, o.trial(r.results), func() ([]*lane, error) { return r.ordered(ctx, &row, guard) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// ordered starts what a row is run on. It is a gateway with a file of its own before a
// backend, or a server with a gate inside.
func (r *runner) ordered(ctx context.Context, row *orderRow, guard string) ([]*lane, error) {
	if row.library {
		return r.serving(libraryRole(row, guard))
	}
	l, err := r.before(row.law, guard, row.nested(), func(addr, admin, url string) (*process, error) {
		if guard == guardAsked {
			return r.startAsked(ctx, addr, admin, url, func(listen string) string { return orderConfig(guard, &row.law, listen, admin, "") })
		}
		return startWeir(ctx, r.test, r.plan.Weir, addr, admin, orderConfig(guard, &row.law, addr, admin, url))
	})
	return []*lane{l}, err
}

func (r *Results) orderCell(row, guard, class string) *orderCell {
	i := slices.IndexFunc(r.Order, func(c orderCell) bool { return c.Row == row && c.Guard == guard && c.Class == class })
	if i < 0 {
		i = len(r.Order)
		r.Order = append(r.Order, orderCell{Row: row, Guard: guard, Class: class, Measured: r.Measured, Pace: r.Pace})
	}
	return &r.Order[i]
}

// orderTimes are the lengths of a run of part three.
type orderTimes struct {
	warm, stage time.Duration
	alone       time.Duration // until then only those are there that must not suffer
	tail        time.Duration // load beyond what is judged
}

// times returns those of a row. All but the tail follow the plan's pace. What was due
// last is judged, and others must come while it waits: as long as its clients do.
func (row *orderRow) times(p *Plan) orderTimes {
	t := orderTimes{warm: p.turn(orderWarm), stage: p.turn(row.stage), tail: orderPatience}
	for _, c := range row.classes {
		if c.alone > 0 {
			t.alone = t.warm + t.stage
		}
		t.tail = max(t.tail, time.Duration(c.calls)*orderPatience)
	}
	return t
}

// from is when what is judged begins.
func (t *orderTimes) from() time.Duration { return t.alone + t.warm }

// length is that of the load.
func (t *orderTimes) length() time.Duration { return t.from() + t.stage + t.tail }

// orderRun is one run of a row under a guard.
type orderRun struct {
	row      *orderRow
	round    int
	capacity float64
	times    orderTimes

	records [][]record // by class
	nested  Nested
}

// trial runs the row and adds the figures of its classes to the results.
func (o orderRun) trial(results *Results) *trial {
	t := &trial{part: partOrder, row: o.row.id, backend: o.row.law.Name}
	for _, length := range []time.Duration{o.times.alone, o.times.length() - o.times.alone} {
		if length > 0 {
			t.phases = append(t.phases, phase{For: length})
		}
	}
	for i := range o.row.classes {
		t.clients = append(t.clients, o.clients(i))
	}
	t.collect = func(out *outcome, void bool) {
		o.records, o.nested = out.records, out.last.Nested
		for i, f := range o.figures() {
			results.orderCell(o.row.id, out.guard, o.row.classes[i].name).add(f, void)
		}
	}
	return t
}

// clients are those of a class. What comes while only some are there comes again
// while all are, with the same work at the same times.
func (o *orderRun) clients(i int) clients {
	c, t := &o.row.classes[i], &o.times
	seed := uint64(o.round*len(o.row.classes) + i + 1)
	if c.clients > 0 {
		return &batch{head: c.heads[0], clients: c.clients, patience: orderPatience, mean: o.row.law.Service, seed: seed, begin: t.alone, end: t.length()}
	}
	load := &Load{
		Heads: c.heads, Capacity: o.capacity, Patience: orderPatience,
		Phases: []phase{{Load: c.alone, For: t.alone}, {Load: c.load, For: t.length() - t.alone}}, Again: true,
		Mean: o.row.law.Service, Seed: seed, Calls: c.calls, Later: c.later,
	}
	if c.idle {
		load.Mean = 0
	}
	return load
}

// figures computes those of each class.
func (o *orderRun) figures() []orderFigures {
	figures := make([]orderFigures, len(o.row.classes))
	from, to := o.times.from(), o.times.from()+o.times.stage
	good, weights, calls := 0., 0., 0.
	for i, records := range o.records {
		c, f := &o.row.classes[i], &figures[i]
		f.Round = o.round
		crowd := due(records, from, to)
		f.Sent = len(crowd)
		f.Served, f.Refused, f.P99 = fates(crowd)
		if o.times.alone > 0 {
			_, _, f.Alone = fates(due(records, o.times.warm, o.times.alone))
		}
		good += f.Served * float64(f.Sent)
		weights += c.weight
		calls += c.answered(crowd)
		o.special(c, f, i)
	}
	for i, c := range o.row.classes {
		f := &figures[i]
		f.Goodput = calls / (o.capacity * o.times.stage.Seconds())
		if c.weight > 0 && good > 0 {
			f.OffShare = math.Abs(f.Served*float64(f.Sent)/good*weights/c.weight - 1)
		}
	}
	return figures
}

// special adds what only some classes have.
func (o *orderRun) special(c *class, f *orderFigures, i int) {
	if n := c.callsOfTask(); n > 1 && f.Sent > 0 {
		possible := min(float64(f.Sent), o.capacity*o.times.stage.Seconds()/n)
		f.Tasks = f.Served * float64(f.Sent) / possible
	}
	if c.nested {
		f.Nested = &o.nested
	}
	if c.clients > 0 {
		f.Slack = o.slack(i)
	}
}

// slack is the work done for class i of what the others left of the capacity, by when
// it was done.
func (o *orderRun) slack(i int) float64 {
	from, to := o.times.from(), o.times.from()+o.times.stage
	left := o.capacity * o.row.law.Service.Seconds() * o.times.stage.Seconds()
	for j, records := range o.records {
		if j != i {
			left -= delivered(records, from, to)
		}
	}
	return delivered(o.records[i], from, to) / max(1e-9, left)
}

// answered is how many calls that are work were answered in time.
func (c *class) answered(records []record) (calls float64) {
	if c.idle {
		return 0
	}
	for i := range records {
		calls += float64(records[i].Calls)
	}
	if c.nested {
		calls *= 2
	}
	return calls
}

// callsOfTask is how many calls a request is in the end.
func (c *class) callsOfTask() float64 {
	if c.nested {
		return 2
	}
	return float64(max(1, c.calls))
}

// fates returns the shares that were answered in time and refused, and the 99th
// percentile of the latency of what was not refused, in ms.
func fates(records []record) (served, refused, p99 float64) {
	t := tallyOf(records)
	return t.share(loadgen.OK), t.share(loadgen.Refused), quantile(t.admitted, 0.99)
}

// judgeOrder compares the cells of part three with their goals.
func (r *Results) judgeOrder() {
	for _, row := range orderRows() {
		for _, class := range row.classes {
			for i := range r.Order {
				c := &r.Order[i]
				if c.Row != row.id || c.Class != class.name || len(c.Rounds) == 0 {
					continue
				}
				c.Goals = nil
				for _, g := range class.goals {
					c.Goals = append(c.Goals, g.Judge(c.over(g.value)))
				}
			}
		}
	}
}
