package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

// virtual plays the rows of part two in the simulator, for each seed from 1 to seeds. It prints what the default has of the best
// fixed limit's goodput. No machine disturbs it, so it tells what a limiter can do in so little time from what a machine
// does to it. Where the live board falls behind by as much, the rows are short.
func virtual(ctx context.Context, plan Plan, seeds int, out io.Writer) error {
	if seeds < 1 || seeds > 1000 {
		return fmt.Errorf("-virtual %d: must be from 1 to 1000 seeds, as in -virtual 15", seeds)
	}
	plan.Parts = nil // what needs the gateway's binary
	if err := plan.check(); err != nil {
		return err
	}
	var numbers []uint64
	for i := range seeds {
		numbers = append(numbers, uint64(i+1))
	}
	t := kit.Table{{"row", "on", "fixed", "weir"}}
	var shares []float64
	for _, u := range upstreams() {
		for _, row := range gatewayRows() {
			if !plan.Laws.Has(u.law.Name) || !u.rows.Has(row.ID) || !plan.Rows.Has(row.ID) {
				continue
			}
			var goodputs [2][]sim.Spread
			best, _ := u.law.best()
			for i, limit := range []any{best, "auto"} {
				s, err := u.scenario(&plan, &row, limit)
				if err != nil {
					return err
				}
				report, err := sim.Run(ctx, s, sim.Options{Seeds: numbers})
				if err != nil {
					return err
				}
				for _, goal := range report.Goals() {
					goodputs[i] = append(goodputs[i], goal.Spread)
				}
			}
			for i, fixed := range goodputs[0] {
				auto, stage := goodputs[1][i], row.judged()[i]
				shares = append(shares, auto.Median/max(1e-9, fixed.Median))
				t = append(t, []string{row.ID + " " + stage.Name, u.law.Name, spread(fixed), spread(auto)})
			}
		}
	}
	if len(shares) == 0 {
		return fmt.Errorf("no row of the gateway has this name on these backends")
	}
	slices.Sort(shares)
	sum := 0.0
	for _, share := range shares {
		sum += share
	}
	_, err := fmt.Fprintf(out, "%s\nAs a share of the fixed limit's: worst %.2f, median %.3f, mean %.3f\n",
		t.Padded(), shares[0], shares[len(shares)/2], sum/float64(len(shares)))
	return err
}

func spread(s sim.Spread) string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max) }

// judged are the stages that a row is about.
func (r *Row) judged() []stage {
	return slices.DeleteFunc(slices.Clone(r.Stages), func(s stage) bool { return s.Name == "" })
}

// scenario is a row before this backend in the simulator. Its goals are the goodput of the stages that are judged.
func (u *upstream) scenario(plan *Plan, row *Row, limit any) (*sim.Scenario, error) {
	type group = map[string]any
	service := group{"dist": "exponential", "mean": u.law.Service.String()}
	if row.Dist == "bimodal" {
		usual := time.Duration(float64(u.law.Service) / (1 + heavyShare*(heavyTimes-1)))
		service = group{"dist": "bimodal", "modes": []group{
			{"weight": 1 - heavyShare, "time": usual.String()}, {"weight": heavyShare, "time": (heavyTimes * usual).String()},
		}}
	}
	backend := group{"service": service, "deadline": u.patience(row.Impatient).String()}
	switch l := u.law.Law; {
	case l.Slots > 0:
		backend["law"], backend["workers"] = "pool", l.Slots
	case l.Sigma > 0:
		backend["law"], backend["sigma"], backend["kappa"] = "usl", l.Sigma, l.Kappa
	default:
		backend["law"], backend["discipline"], backend["cores"], backend["thrash"] = "cores", "ps", l.Cores, l.Thrash
	}
	var phases, goals []group
	var begin time.Duration
	for _, s := range row.Stages {
		lasts := plan.turn(time.Duration(s.Units * float64(u.unit))).Round(time.Millisecond)
		phase := group{"for": lasts.String(), "load": s.Load}
		if s.Scale > 0 {
			phase["capacity"] = s.Scale
		}
		phases = append(phases, phase)
		if s.Name != "" {
			goals = append(goals, group{"metric": "goodput", "from": begin.String(), "to": (begin + lasts).String(), "min": 0})
		}
		begin += lasts
	}
	text, err := json.Marshal(group{
		"name": row.ID, "backend": backend, "phases": phases, "goals": goals,
		"traffic": []group{{"name": "all", "leaves": true, "tell_deadline": false}},
		"policy": group{
			"gates":  group{"backend": group{"limit": limit}},
			"routes": []group{{"name": "all", "match": []string{"/"}, "gates": []string{"backend"}}},
		},
	})
	if err != nil {
		return nil, err
	}
	return sim.ParseScenario(text)
}
