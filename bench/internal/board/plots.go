package board

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/testbed/chart"
	"github.com/weir-go/weir/sim"
)

// plot is a run worth looking at: a row on a backend, some of its time.
type plot struct {
	row, backend string
	from, to     time.Duration // to 0: all of it
	about        string
}

func (p *plot) name() string { return p.row + "-" + p.backend }

// plots are what is drawn of a whole board.
var plots = []plot{
	{"S3", "B2", 0, 0, "load steps from 0.5 to 3 times the capacity, and back"},
	{"S4", "B2", 0, 0, "load 0.9; the capacity falls to half for 20 s"},
	{"S4", "B3", 0, 0, "load 0.9; the capacity falls to half for 20 s"},
	{"S7", "B3", 0, 30 * time.Second, "cold start at 1.5 times the capacity"},
	{"S11", "B2", 0, 0, "1 request in 100 is 50 times the others; twice the capacity"},
	{"slower", "B2", 0, 300 * time.Second, "load 0.9; the backend becomes twice as slow for good"},
	{"S28b", "B2", 0, 0, "impatient clients at a load of 0.9; the capacity falls to half for good"},
	{"steps-1500", "P1", 0, 0, "1500 requests/s; 20 workers, then 4, then 20"},
}

// drawn are the columns in the plots, the later over the earlier.
var drawn = []struct{ controller, text string }{
	{"oracle", "best fixed limit, known beforehand"},
	{"aimd", "AIMD with a threshold for this backend"},
	{"default", "default, nothing configured"},
}

// plotColumns is into how many stretches the time that is drawn is cut.
const plotColumns = 140

// planned returns what is to be drawn of a row on a backend, nil for nothing.
func planned(row, backend string) *plot {
	for i := range plots {
		if plots[i].row == row && plots[i].backend == backend {
			return &plots[i]
		}
	}
	return nil
}

// columns is into how many stretches a run is cut for its plot.
func columns(s *sim.Scenario, backend string) int {
	p := planned(s.Name, backend)
	if p == nil || p.to == 0 {
		return plotColumns
	}
	return int(plotColumns * s.Duration() / (p.to - p.from))
}

// page is one plot with what goes into it.
type page struct {
	plot
	scenario *sim.Scenario
	capacity float64
	series   map[string]*sim.Series // by controller
}

// album gathers what the plots show while a board is run.
type album struct {
	mu    sync.Mutex
	all   bool // what is not planned, too
	pages map[string]*page
}

// add takes the first run of a report.
func (a *album) add(backend, controller string, r *sim.Report) {
	s := r.Scenario
	p := planned(s.Name, backend)
	if p == nil && !a.all {
		return
	}
	if p == nil {
		p = &plot{row: s.Name, backend: backend, about: s.About}
	}
	series := r.Series(0, columns(s, backend))
	a.mu.Lock()
	defer a.mu.Unlock()
	name := p.name()
	if a.pages[name] == nil {
		a.pages[name] = &page{*p, s, r.Capacity, map[string]*sim.Series{}}
	}
	a.pages[name].series[controller] = series
}

// complete drops the pages that are not planned or lack a column.
func (a *album) complete() {
	for name, p := range a.pages {
		if planned(p.row, p.backend) == nil {
			delete(a.pages, name)
		}
		for _, c := range drawn {
			if p.series[c.controller] == nil {
				delete(a.pages, name)
			}
		}
	}
}

// write puts the plots into a directory, one file each.
func (a *album) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, p := range a.pages {
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(p.drawing().SVG()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// drawing lays a page out.
func (p *page) drawing() *chart.Drawing {
	to := p.to
	if to == 0 {
		to = p.scenario.Duration()
	}
	d := &chart.Drawing{
		Title: fmt.Sprintf("%s on %s: %.4g requests/s at most", p.row, p.backend, p.capacity),
		About: p.about, Axis: "time, s", From: p.from.Seconds(), To: to.Seconds(),
	}
	goodput := chart.Panel{Title: "goodput, % of the full capacity", Unit: " %"}
	limit := chart.Panel{Title: "limit, requests in progress"}
	latency := chart.Panel{Title: "latency of what was admitted, p99 and p50 (thin)", Unit: " ms", Log: true}
	could := true
	for _, c := range drawn {
		s := p.series[c.controller]
		if s == nil {
			continue
		}
		cut := func(values []float64) []float64 {
			at := func(t time.Duration) int { return min(int(t/s.Width), len(values)) }
			return values[at(p.from):at(to)]
		}
		if could {
			goodput.Curves = append(goodput.Curves, chart.Curve{Values: cut(attainable(s, p.capacity)), Style: "could", Step: true})
			d.Legend = append(d.Legend, chart.Legend{Style: "could", Text: "what can be had of load and capacity"})
			could = false
		}
		goodput.Curves = append(goodput.Curves, chart.Curve{Values: cut(percent(s.Good, p.capacity)), Style: c.controller})
		limit.Curves = append(limit.Curves, chart.Curve{Values: cut(s.Limit), Style: c.controller, Step: true})
		latency.Curves = append(latency.Curves, chart.Curve{Values: cut(s.P50), Style: c.controller + " thin"}, chart.Curve{Values: cut(s.P99), Style: c.controller})
		d.Legend = append(d.Legend, chart.Legend{Style: c.controller, Text: c.text})
	}
	d.Panels = []chart.Panel{goodput, limit, latency}
	return d
}

// attainable is the least of load and capacity, in per cent of the full one.
func attainable(s *sim.Series, full float64) []float64 {
	list := make([]float64, len(s.Offered))
	for i := range list {
		list[i] = min(s.Offered[i], s.Capacity[i])
	}
	return percent(list, full)
}

func percent(values []float64, of float64) []float64 {
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = 100 * v / of
	}
	return list
}
