package board

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-go/weir/sim"
)

// The picture of the README: good answers a second against the offered load, on one backend,
// with the default gate and with none.
const (
	goodputBackend = "B2"
	goodputSettle  = 20 * time.Second // not counted: the cold start
	goodputLength  = 60 * time.Second

	// Loads are multiples of the backend's capacity.
	firstLoad = 0.5
	lastLoad  = 4
	loadStep  = 0.25
)

// drawGoodput simulates each load on its own and writes goodput.svg to dir.
func drawGoodput(ctx context.Context, dir string) error {
	var with, without, could []float64
	var capacity float64
	for load := firstLoad; load <= lastLoad; load += loadStep {
		s, err := loadScenario(load)
		if err != nil {
			return err
		}
		none, err := sim.Run(ctx, s, sim.Options{Seeds: []uint64{1}})
		if err != nil {
			return err
		}
		if s, err = s.WithPolicy(defaultPolicy()); err != nil {
			return err
		}
		gated, err := sim.Run(ctx, s, sim.Options{Seeds: []uint64{1}})
		if err != nil {
			return err
		}
		capacity = none.Capacity
		without = append(without, none.Runs[0].Windows[1].Goodput)
		with = append(with, gated.Runs[0].Windows[1].Goodput)
		could = append(could, capacity*min(1, load))
	}
	d := &drawing{
		title: fmt.Sprintf("A database that can answer %.0f requests a second", capacity),
		about: "contention makes it slower with more requests inside; clients leave after half a second",
		axis:  "offered load, as a multiple of what the database can answer",
		from:  firstLoad - loadStep/2, to: lastLoad + loadStep/2,
		charts: []chart{{title: "answers in time, each second", curves: []curve{
			{could, "could", false}, {without, "aimd", false}, {with, "default", false},
		}}},
		legend: []legend{{"default", "with weir, nothing configured"}, {"aimd", "without"}, {"could", "what is possible"}},
	}
	return os.WriteFile(filepath.Join(dir, "goodput.svg"), []byte(d.svg()), 0o644)
}

// loadScenario is a steady load before the backend without a gate.
func loadScenario(load float64) (*sim.Scenario, error) {
	return sim.ParseScenario(fmt.Appendf(nil, `{
		"name": "goodput", "backend": %q, "policy": "none",
		"phases": [{"for": %q, "load": %g}],
		"goals": [{"metric": "goodput", "from": %q, "to": %q}]
	}`, goodputBackend, goodputLength, load, goodputSettle, goodputLength))
}
