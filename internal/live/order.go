package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// OrderFigures are what a class came to in one run of part three while all were
// there.
type OrderFigures struct {
	Round int `json:"round"`
	// Sent is how many requests were due, Served the share of them that was
	// answered in time, Refused the share that was refused.
	Sent    int     `json:"sent"`
	Served  float64 `json:"served"`
	Refused float64 `json:"refused"`
	// P99 is the latency of what was not refused, in ms; Alone the same while only
	// those were there that must not suffer.
	P99   float64 `json:"p99_ms"`
	Alone float64 `json:"alone_p99_ms"`
	// OffShare is by how much of its share by weight the class is off, of all that
	// was answered in time.
	OffShare float64 `json:"off_share"`
	// Goodput is of all classes, over the capacity.
	Goodput float64 `json:"goodput"`
}

// OrderCell is one class of one row under one guard.
type OrderCell struct {
	Row   string `json:"row"`
	Guard string `json:"guard"`
	Class string `json:"class"`

	Void   int            `json:"void"` // runs without a figure
	Rounds []OrderFigures `json:"rounds"`
	Goals  []Verdict      `json:"goals,omitempty"`
}

// order runs one round of part three.
func (r *runner) order(ctx context.Context, round int) error {
	for _, row := range orderRows() {
		if !r.plan.wants(r.plan.Rows, row.id) {
			continue
		}
		for _, guard := range turned(r.plan.chosen(orderGuards), round) {
			if err := r.tryOrder(ctx, &row, guard, round); err != nil {
				return fmt.Errorf("%s, %s: %w", row.id, guard, err)
			}
		}
	}
	return nil
}

// tryOrder runs a row under a guard until it is not void, and collects its figures.
func (r *runner) tryOrder(ctx context.Context, row *orderRow, guard string, round int) error {
	for attempt := 1; ; attempt++ {
		l, err := r.ordered(ctx, guard)
		if err != nil {
			return err
		}
		o := orderRun{row: row, lane: l, round: round, warm: r.plan.turn(orderWarm), stage: r.plan.turn(orderStage)}
		_, o.capacity = lawPool200.best()
		o.run(ctx, r.test)
		if err := errors.Join(l.stop(), context.Cause(ctx)); err != nil {
			return err
		}
		figures, why := o.figures(), o.void()
		fmt.Fprintf(r.log, "order %-5s %-18s", row.id, guard)
		for i, c := range row.classes {
			f := &figures[i]
			fmt.Fprintf(r.log, "  %s served %.4f refused %.0f%% p99 %.0f alone %.0f off %.3f", c.name, f.Served, 100*f.Refused, f.P99, f.Alone, f.OffShare)
		}
		if why != "" {
			fmt.Fprintf(r.log, "  VOID: %s", why)
		}
		fmt.Fprintln(r.log)
		if why != "" && attempt <= r.plan.Retries {
			continue
		}
		for i, c := range row.classes {
			cell := r.results.orderCell(row.id, guard, c.name)
			if why != "" {
				cell.Void++
			} else {
				cell.Rounds = append(cell.Rounds, figures[i])
			}
		}
		return nil
	}
}

// ordered starts a gateway with a file of its own before a backend.
func (r *runner) ordered(ctx context.Context, guard string) (*lane, error) {
	app, err := startRole(r.rest, role{Kind: "backend", Procs: 1, Law: lawPool200})
	if err != nil {
		return nil, err
	}
	front, err := r.configured(ctx, guard, "http://"+app.addr)
	if err != nil {
		return nil, errors.Join(err, app.stop())
	}
	return &lane{guard: guard, front: front, app: app}, nil
}

func (r *runner) configured(ctx context.Context, guard, upstream string) (*process, error) {
	addr, admin, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weir-live")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // read once it listens
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(orderConfig(guard, addr, admin, upstream)), 0o600); err != nil {
		return nil, err
	}
	return startWeir(ctx, r.test, r.plan.Weir, addr, admin, "--config", file)
}

// orderRun is one run of a row under a guard.
type orderRun struct {
	row         *orderRow
	lane        *lane
	round       int
	capacity    float64
	warm, stage time.Duration

	records [][]Record // by class
	foreign float64    // share of the core that others used
}

// run sends the loads of all classes at once.
func (o *orderRun) run(ctx context.Context, core int) {
	o.records = make([][]Record, len(o.row.classes))
	pid, begun := o.lane.front.cmd.Process.Pid, time.Now()
	all, ours := busy(core), usageOfPID(pid).cpu
	epoch := begun.Add(50 * time.Millisecond)
	var wg sync.WaitGroup
	for i, c := range o.row.classes {
		load := Load{
			Addr: o.lane.front.addr, Heads: c.heads, Capacity: o.capacity, Patience: orderPatience,
			Phases: []Phase{{Load: c.alone, For: o.warm + o.stage}, {Load: c.load, For: o.warm + o.stage}},
			Mean:   lawPool200.Service, Seed: uint64(o.round*len(o.row.classes) + i + 1),
		}
		if c.idle {
			load.Mean = 0
		}
		wg.Go(func() { o.records[i] = load.run(ctx, epoch) })
	}
	wg.Wait()
	ours = usageOfPID(pid).cpu - ours
	o.foreign = max(0, (busy(core)-all-ours).Seconds()/time.Since(begun).Seconds())
}

// void says why the run means nothing; empty if it does not.
func (o *orderRun) void() string {
	behind, total := 0, 1
	for _, records := range o.records {
		total += len(records)
		for i := range records {
			if records[i].Late || records[i].Answer == Unsent {
				behind++
			}
		}
	}
	switch {
	case float64(behind) > VoidAbove*float64(total):
		return fmt.Sprintf("%d of %d sends late", behind, total)
	case o.foreign > ForeignAbove:
		return fmt.Sprintf("others used %.0f %% of the core", 100*o.foreign)
	}
	return ""
}

// figures computes those of each class.
func (o *orderRun) figures() []OrderFigures {
	figures := make([]OrderFigures, len(o.row.classes))
	from := 2*o.warm + o.stage
	good, weights := 0., 0.
	for i, records := range o.records {
		f := &figures[i]
		f.Round = o.round
		crowd := due(records, from, from+o.stage)
		f.Sent = len(crowd)
		f.Served, f.Refused, f.P99 = fates(crowd)
		_, _, f.Alone = fates(due(records, o.warm, o.warm+o.stage))
		good += f.Served * float64(f.Sent)
		weights += o.row.classes[i].weight
	}
	for i, c := range o.row.classes {
		f := &figures[i]
		f.Goodput = good / (o.capacity * o.stage.Seconds())
		if c.weight > 0 && good > 0 {
			f.OffShare = math.Abs(f.Served*float64(f.Sent)/good*weights/c.weight - 1)
		}
	}
	return figures
}

// fates returns the shares that were answered in time and refused, and the 99th
// percentile of the latency of what was not refused, in ms.
func fates(records []Record) (served, refused, p99 float64) {
	if len(records) == 0 {
		return 0, 0, 0
	}
	var latencies []time.Duration
	for i := range records {
		switch r := &records[i]; r.Answer {
		case OK:
			served++
			latencies = append(latencies, r.Latency)
		case Refused:
			refused++
		case Failed, GaveUp:
			latencies = append(latencies, r.Latency)
		}
	}
	n := float64(len(records))
	return served / n, refused / n, quantile(latencies, 0.99)
}

func (r *Results) orderCell(row, guard, class string) *OrderCell {
	i := slices.IndexFunc(r.Order, func(c *OrderCell) bool { return c.Row == row && c.Guard == guard && c.Class == class })
	if i < 0 {
		i = len(r.Order)
		r.Order = append(r.Order, &OrderCell{Row: row, Guard: guard, Class: class})
	}
	return r.Order[i]
}

// judgeOrder compares the cells of part three with their goals, and puts them in
// the order of the rows.
func (r *Results) judgeOrder() {
	var sorted []*OrderCell
	for _, row := range orderRows() {
		for _, guard := range orderGuards {
			for _, c := range row.classes {
				i := slices.IndexFunc(r.Order, func(o *OrderCell) bool { return o.Row == row.id && o.Guard == guard && o.Class == c.name })
				if i < 0 {
					continue
				}
				cell := r.Order[i]
				cell.Goals = nil
				for _, g := range c.goals {
					if len(cell.Rounds) > 0 {
						cell.Goals = append(cell.Goals, g.judge(cell))
					}
				}
				sorted = append(sorted, cell)
			}
		}
	}
	r.Order = sorted
}

func (g *orderGoal) judge(c *OrderCell) Verdict {
	v := c.figures(g.value)
	verdict := Verdict{What: g.what, Median: median(v), Min: v[0], Max: v[len(v)-1], Bound: g.bound, AtMost: g.most}
	verdict.Reached = verdict.Median >= g.bound
	if g.most {
		verdict.Reached = verdict.Median <= g.bound
	}
	return verdict
}

// figures returns a figure of each round, in ascending order.
func (c *OrderCell) figures(of func(*OrderFigures) float64) []float64 {
	var all []float64
	for i := range c.Rounds {
		all = append(all, of(&c.Rounds[i]))
	}
	slices.Sort(all)
	return all
}
