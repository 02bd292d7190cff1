package board

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-go/weir/internal/testbed/chart"
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
	d := &chart.Drawing{
		Title: fmt.Sprintf("A database that can answer %.0f requests a second", capacity),
		About: "contention makes it slower with more requests inside; an answer is of use for half a second",
		Axis:  "offered load, as a multiple of what the database can answer",
		From:  firstLoad - loadStep/2, To: lastLoad + loadStep/2,
		Panels: []chart.Panel{{Title: "answers in time, each second", Curves: []chart.Curve{
			{Values: could, Style: "could"}, {Values: without, Style: "aimd"}, {Values: with, Style: "default"},
		}}},
		Legend: []chart.Legend{{Style: "default", Text: "with weir, nothing configured"}, {Style: "aimd", Text: "without"}, {Style: "could", Text: "what is possible"}},
	}
	return os.WriteFile(filepath.Join(dir, "goodput.svg"), []byte(d.SVG()), 0o644)
}

// loadScenario is a steady load before the backend without a gate.
func loadScenario(load float64) (*sim.Scenario, error) {
	return sim.ParseScenario(fmt.Appendf(nil, `{
		"name": "goodput", "backend": %q, "policy": "none",
		"phases": [{"for": %q, "load": %g}],
		"goals": [{"metric": "goodput", "from": %q, "to": %q}]
	}`, goodputBackend, goodputLength, load, goodputSettle, goodputLength))
}
