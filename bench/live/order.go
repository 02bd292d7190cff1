package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// OrderFigures are what a class came to in one run of part three while all were
// there.
type OrderFigures struct {
	Round int `json:"round"`
	// Sent is how many requests or tasks were due, Served the share of them that was
	// answered in time, Refused the share that was refused.
	Sent    int     `json:"sent"`
	Served  float64 `json:"served"`
	Refused float64 `json:"refused"`
	// P99 is the latency of what was not refused, in ms; Alone the same while only
	// those were there that must not suffer, 0 where the row has no such time.
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

// OrderCell is one class of one row under one guard.
type OrderCell struct {
	Row   string `json:"row"`
	Guard string `json:"guard"`
	Class string `json:"class"`
	// Measured is the day, Pace the plan's.
	Measured string  `json:"measured"`
	Pace     float64 `json:"pace"`

	Void   int            `json:"void"` // runs without a figure
	Rounds []OrderFigures `json:"rounds"`
	Goals  []Verdict      `json:"goals,omitempty"`
}

// wantsOrder reports whether the plan has a row of part three. S23 asks for all that
// begin with that word.
func (p *Plan) wantsOrder(row *orderRow) bool {
	first, _, _ := strings.Cut(row.id, " ")
	return p.wants(p.Rows, row.id) || p.wants(p.Rows, first)
}

// order runs one round of part three.
func (r *runner) order(ctx context.Context, round int) error {
	for _, row := range orderRows() {
		if !r.plan.wantsOrder(&row) {
			continue
		}
		for _, guard := range turned(r.plan.chosen(row.guards), round) {
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
		l, err := r.ordered(ctx, row, guard)
		if err != nil {
			return err
		}
		o := orderRun{row: row, lane: l, round: round, times: row.times(&r.plan)}
		_, o.capacity = row.law.best()
		err = o.run(ctx, r.test)
		if err := errors.Join(err, l.stop(), context.Cause(ctx)); err != nil {
			return err
		}
		figures, why := o.figures(), o.void()
		r.sayOrder(row, guard, figures, why)
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

// sayOrder tells of a run as it ends.
func (r *runner) sayOrder(row *orderRow, guard string, figures []OrderFigures, why string) {
	fmt.Fprintf(r.log, "order %-12s %-18s", row.id, guard)
	for i := range row.classes {
		c, f := &row.classes[i], &figures[i]
		fmt.Fprintf(r.log, "  %s served %.4f refused %.0f%% p99 %.0f alone %.0f goodput of all %.2f", c.name, f.Served, 100*f.Refused, f.P99, f.Alone, f.Goodput)
		for _, extra := range row.extras(c) {
			fmt.Fprintf(r.log, " %s "+extra.verb, extra.name, extra.of(f))
		}
	}
	if why != "" {
		fmt.Fprintf(r.log, "  VOID: %s", why)
	}
	fmt.Fprintln(r.log)
}

// ordered starts what a row is run on: a gateway with a file of its own before a
// backend, or a server with a gate inside.
func (r *runner) ordered(ctx context.Context, row *orderRow, guard string) (*lane, error) {
	if row.library {
		p, err := startRole(r.test, libraryRole(row, guard))
		if err != nil {
			return nil, err
		}
		return &lane{guard: guard, front: p, app: p}, nil
	}
	addr, admin, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	behind := role{Kind: "backend", Procs: 1, Law: row.law}
	if row.nested() {
		behind.Nested = "http://" + addr
	}
	app, err := startRole(r.rest, behind)
	if err != nil {
		return nil, err
	}
	front, err := r.configured(ctx, addr, admin, orderConfig(guard, &row.law, addr, admin, "http://"+app.addr))
	if err != nil {
		return nil, errors.Join(err, app.stop())
	}
	return &lane{guard: guard, front: front, app: app}, nil
}

// configured starts a gateway with that file.
func (r *runner) configured(ctx context.Context, addr, admin, config string) (*process, error) {
	dir, err := os.MkdirTemp("", "weir-live")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // read once it listens
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return startWeir(ctx, r.test, r.plan.Weir, addr, admin, "--config", file)
}

func (r *Results) orderCell(row, guard, class string) *OrderCell {
	i := slices.IndexFunc(r.Order, func(c *OrderCell) bool { return c.Row == row && c.Guard == guard && c.Class == class })
	if i < 0 {
		i = len(r.Order)
		r.Order = append(r.Order, &OrderCell{Row: row, Guard: guard, Class: class, Measured: r.Measured, Pace: r.Pace})
	}
	return r.Order[i]
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
