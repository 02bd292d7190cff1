package board

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/testbed/chart"
)

// The picture of a belief that narrows: the default controller before a pool of workers that
// always has more to do. After a while half of the workers go away.
const (
	poolPlaces  = 30
	poolService = 20 * time.Millisecond // exponential
	poolHalves  = 30 * time.Second
	poolLength  = 60 * time.Second

	// Of the picture: how much time a column is, and where the upper end is cut off.
	beliefStep = 250 * time.Millisecond
	beliefMost = 100
)

// drawBelief runs the controller and writes belief.svg to dir.
func drawBelief(dir string) error {
	c, ok := control.Default().(*control.Belief)
	if !ok {
		return fmt.Errorf("the default controller is %q: it has no belief to draw", control.Default().Name())
	}
	var low, high, best, limit []float64
	p := newPool(c)
	for at := time.Duration(0); at < poolLength; at += beliefStep {
		if at == poolHalves {
			p.free = p.free[:poolPlaces/2]
		}
		for p.now < at+beliefStep {
			p.window()
		}
		e := p.d.Estimate
		low, high, best = append(low, e.Low), append(high, min(e.High, beliefMost)), append(best, e.Best)
		limit = append(limit, float64(p.d.Limit))
	}
	d := &chart.Drawing{
		Title: fmt.Sprintf("What the default controller believes of a pool of %d workers", poolPlaces),
		About: fmt.Sprintf("a cold start under full load; after %.0f s half of the workers are gone", poolHalves.Seconds()),
		Axis:  "time, s", From: 0, To: poolLength.Seconds(),
		Panels: []chart.Panel{{Title: "concurrency", Log: true, Curves: []chart.Curve{
			{Values: low, Style: "could", Step: true}, {Values: high, Style: "could", Step: true}, {Values: limit, Style: "aimd thin", Step: true}, {Values: best, Style: "default", Step: true},
		}}},
		Legend: []chart.Legend{
			{Style: "default", Text: "best limit, by the mean of all that is believed"}, {Style: "could", Text: "95 % sure the best is between these (cut off at 100)"},
			{Style: "aimd thin", Text: "limit in force, experiments included"},
		},
	}
	return os.WriteFile(filepath.Join(dir, "belief.svg"), []byte(d.SVG()), 0o644)
}

// poolRun is a controller before a pool. Work is served in the order of its arrival, and there
// is always more.
type poolRun struct {
	control control.Controller
	d       control.Decision
	now     time.Duration
	begun   time.Duration // of the window
	free    []time.Duration
	inside  []poolWork // by when they end
	area    float64    // in flight, integrated over time
	random  *rand.Rand
	w       control.Window
}

type poolWork struct {
	start, end time.Duration
	area       float64 // when it started
}

func newPool(c control.Controller) *poolRun {
	return &poolRun{control: c, d: c.Start(), free: make([]time.Duration, poolPlaces), random: rand.New(rand.NewPCG(1, 1))}
}

// window lets time pass until the controller wants to decide, and lets it.
func (p *poolRun) window() {
	end, before, from := p.now+p.d.Next, p.area, p.now
	for p.now < end {
		for int64(len(p.inside)) < p.d.Limit {
			p.admit()
		}
		next := min(end, p.inside[0].end)
		p.area += float64(len(p.inside)) * (next - p.now).Seconds()
		p.now = next
		for len(p.inside) > 0 && p.inside[0].end == p.now {
			p.finish()
		}
	}
	w := &p.w
	w.MeanInFlight = (w.MeanInFlight*(from-p.begun).Seconds() + p.area - before) / (p.now - p.begun).Seconds()
	w.Now, w.Elapsed, w.Saturated, w.Limit = p.now, p.now-p.begun, p.now-p.begun, p.d.Limit
	slices.Sort(w.Latencies)
	if p.d = p.control.Update(w); !p.d.Extend {
		p.w, p.begun = control.Window{}, p.now
	}
}

func (p *poolRun) admit() {
	first := 0
	for i := range p.free {
		if p.free[i] < p.free[first] {
			first = i
		}
	}
	end := max(p.now, p.free[first]) + time.Duration(p.random.ExpFloat64()*float64(poolService)) + 1
	p.free[first] = end
	i, _ := slices.BinarySearchFunc(p.inside, end, func(w poolWork, end time.Duration) int { return int(w.end - end) })
	p.inside = slices.Insert(p.inside, i, poolWork{p.now, end, p.area})
}

func (p *poolRun) finish() {
	done := p.inside[0]
	p.inside = p.inside[1:]
	life := done.end - done.start
	p.w.Samples = append(p.w.Samples, control.Sample{Start: done.start, Latency: life, Concurrency: (p.area - done.area) / life.Seconds(), Good: true})
	p.w.Latencies = append(p.w.Latencies, life)
	p.w.OK++
	p.w.Timed++
	p.w.LatencySum += life
}
