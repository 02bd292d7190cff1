package callers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
)

// figures are those of each process of a run. Two of one kind are one.
func (p *plan) figures(row, mix string, kinds [2]string, accounts [2][]second) []result {
	if kinds[0] == kinds[1] {
		both := sum(accounts[0], accounts[1])
		return []result{{row, mix, kinds[0], p.of(row, kinds[0], both, 1)}}
	}
	var results []result
	for i, kind := range kinds {
		figures := p.of(row, kind, accounts[i], 0.5)
		if row == "S5" {
			figures = append(figures, p.share(kind, accounts[i], accounts[1-i]))
		}
		results = append(results, result{row, mix, kind, figures})
	}
	return results
}

// sum adds two accounts, second by second.
func sum(a, b []second) []second {
	both := slices.Clone(a)
	for i := range min(len(a), len(b)) {
		s := &both[i]
		s.Due, s.OK, s.Refused, s.GaveUp, s.Attempts = s.Due+b[i].Due, s.OK+b[i].OK, s.Refused+b[i].Refused, s.GaveUp+b[i].GaveUp, s.Attempts+b[i].Attempts
		s.Behind = s.Behind || b[i].Behind
	}
	return both
}

// of are the figures of clients that have a part of the capacity to themselves.
func (p *plan) of(row, kind string, account []second, part float64) []figure {
	if row == "S15" {
		all := total(account, p.calm/3, p.calm) // after the start
		possible := part * p.capacity / 4 * (p.calm - p.calm/3).Seconds()
		return []figure{
			{"tasks done of those possible", ratio(float64(all.OK), possible), goalOf(kind, 0.9, false)},
			{"attempts for each task", ratio(float64(all.Attempts), float64(all.Due)), nil},
			behind(account),
		}
	}
	fault := total(account, p.calm, p.calm+p.fault)
	whole := total(account, 0, p.calm+p.fault+p.after)
	return []figure{
		{"attempts for each call, in the fault", ratio(float64(fault.Attempts), float64(fault.Due)), goalOf(kind, 1.1, true)},
		{"in the whole run", ratio(float64(whole.Attempts), float64(whole.Due)), goalOf(kind, 1.1, true)},
		{"served in the fault", ratio(float64(fault.OK), float64(fault.Due)), nil},
		{"seconds until 0.95 are served again", p.settled(account), goalOf(kind, timeout.Seconds(), true)},
		behind(account),
	}
}

// goalOf is a goal of our clients. Naive ones have none.
func goalOf(kind string, bound float64, atMost bool) *kit.Goal {
	if kind == naive {
		return nil
	}
	return &kit.Goal{Bound: bound, AtMost: atMost}
}

// share is what clients were served in the fault, over their fair share. That is half of what both
// were served, and no more than they asked for.
func (p *plan) share(kind string, mine, others []second) figure {
	a, b := total(mine, p.calm, p.calm+p.fault), total(others, p.calm, p.calm+p.fault)
	fair := min(float64(a.OK+b.OK)/2, float64(a.Due))
	return figure{"of a fair share in the fault", ratio(float64(a.OK), fair), goalOf(kind, 0.9, false)}
}

// settled is how many whole seconds pass after the fault until one in which 0.95 of the calls are served.
// It is the length of the rest if there is none.
func (p *plan) settled(account []second) float64 {
	from := int((p.calm + p.fault) / time.Second)
	for i := from; i < len(account); i++ {
		if float64(account[i].OK) >= 0.95*float64(account[i].Due) {
			return float64(i - from)
		}
	}
	return p.after.Seconds()
}

// behind is the part of the seconds in which the generator was late. Above 0 the run says little.
func behind(account []second) figure {
	n := 0.
	for _, s := range account {
		if s.Behind {
			n++
		}
	}
	return figure{"seconds with a late generator", ratio(n, float64(len(account))), nil}
}

// total is the account of what was due from one time to another.
func total(account []second, from, to time.Duration) (t second) {
	for i := int(from / time.Second); i < min(len(account), int(to/time.Second)); i++ {
		s := account[i]
		t.Due, t.OK, t.Refused, t.GaveUp, t.Attempts = t.Due+s.Due, t.OK+s.OK, t.Refused+s.Refused, t.GaveUp+s.GaveUp, t.Attempts+s.Attempts
	}
	return t
}

func ratio(a, b float64) float64 { return a / max(1, b) }

// report is a table: a line for each figure, over the rounds.
func report(results []result) string {
	t := kit.Table{{"scenario", "processes", "clients", "figure", "median (least–largest)", "goal"}}
	for _, runs := range kit.Groups(results, func(r *result) string { return strings.Join([]string{r.row, r.kinds, r.kind}, "/") }) {
		for i, f := range runs[0].figures {
			var values []float64
			for _, r := range runs {
				values = append(values, r.figures[i].value)
			}
			spread, goal := kit.SpreadOf(values), ""
			if f.goal != nil {
				v := f.goal.Judge(spread)
				goal = v.String()
			}
			t = append(t, []string{runs[0].row, runs[0].kinds, runs[0].kind, f.name, kit.Text(spread, "%.3f"), goal})
		}
	}
	return fmt.Sprintf("Medians of the rounds, on a backend of %d slots and %v.\n\n%s", slots, service, t.Padded())
}
