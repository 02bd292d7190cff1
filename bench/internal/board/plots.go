package board

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

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
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(p.drawing().svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// drawing lays a page out.
func (p *page) drawing() *drawing {
	to := p.to
	if to == 0 {
		to = p.scenario.Duration()
	}
	d := &drawing{
		title: fmt.Sprintf("%s on %s: %.4g requests/s at most", p.row, p.backend, p.capacity),
		about: p.about, axis: "time, s", from: p.from.Seconds(), to: to.Seconds(),
	}
	goodput := chart{title: "goodput, % of the full capacity", unit: " %"}
	limit := chart{title: "limit, requests in progress"}
	latency := chart{title: "latency of what was admitted, p99 and p50 (thin)", unit: " ms", log: true}
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
			goodput.curves = append(goodput.curves, curve{cut(attainable(s, p.capacity)), "could", true})
			d.legend = append(d.legend, legend{"could", "what can be had of load and capacity"})
			could = false
		}
		goodput.curves = append(goodput.curves, curve{cut(percent(s.Good, p.capacity)), c.controller, false})
		limit.curves = append(limit.curves, curve{cut(s.Limit), c.controller, true})
		latency.curves = append(latency.curves, curve{cut(s.P50), c.controller + " thin", false}, curve{cut(s.P99), c.controller, false})
		d.legend = append(d.legend, legend{c.controller, c.text})
	}
	d.charts = []chart{goodput, limit, latency}
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

// chart is a panel of a drawing: some curves over time on one scale.
type chart struct {
	title  string
	unit   string // of the ticks, behind the number
	log    bool   // else from 0
	curves []curve
}

// curve is one line of a chart. A value that is not above 0 is a gap in a
// logarithmic chart.
type curve struct {
	values []float64
	style  string // a class of the style sheet
	step   bool   // holds each value for its whole column
}

// legend is an entry under the drawing.
type legend struct{ style, text string }

// drawing is charts above each other, with one axis of time.
type drawing struct {
	title, about string
	axis         string  // what runs from left to right
	from, to     float64 // along the axis
	charts       []chart
	legend       []legend
}

// The measures of a drawing, in pixels at its natural size.
const (
	drawingWidth = 760
	chartHeight  = 150
	leftMargin   = 78
	rightMargin  = 16
	headHeight   = 60
	chartGap     = 44
	axisHeight   = 56
	bottomMargin = 16
	legendRow    = 20
	legendColumn = 340
)

// style is legible on white and on black alike: GitHub shows the page in either.
const style = `<style>
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#7d8590}
.h{font-size:15px;font-weight:600}.c{font-weight:600}.m{text-anchor:middle}.e{text-anchor:end}
.g{stroke:#7d8590;stroke-opacity:.25;stroke-width:1}.a{stroke:#7d8590;stroke-width:1}
path{fill:none;stroke-linejoin:round;stroke-width:1.8}
.default{stroke:#2f81f7}.aimd{stroke:#d9822b}.oracle{stroke:#2da44e}.could{stroke:#7d8590;stroke-dasharray:5 3;stroke-width:1.4}
.thin{stroke-width:1.1;stroke-dasharray:2 2}
</style>`

// svg draws it all.
func (d *drawing) svg() string {
	rows := (len(d.legend) + 1) / 2
	height := headHeight + len(d.charts)*(chartHeight+chartGap) - chartGap + axisHeight + rows*legendRow + bottomMargin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n%s\n",
		drawingWidth, height, drawingWidth, height, escape(d.title+": "+d.about), style)
	text(&b, 8, 20, "h", d.title)
	text(&b, 8, 38, "", d.about)
	y := float64(headHeight + 12)
	for i := range d.charts {
		d.charts[i].draw(&b, d, y)
		y += chartHeight + chartGap
	}
	y += 36 - chartGap
	text(&b, leftMargin+plotWidth/2, y, "m", d.axis)
	for i, l := range d.legend {
		x, at := float64(leftMargin+i%2*legendColumn), y+float64(22+i/2*legendRow)
		fmt.Fprintf(&b, `<path class="%s" d="M%.0f %.0fh26"/>`+"\n", l.style, x, at-4)
		text(&b, x+32, at, "", l.text)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

const plotWidth = drawingWidth - leftMargin - rightMargin

// draw draws a chart whose upper edge is at y.
func (c *chart) draw(b *strings.Builder, d *drawing, y float64) {
	text(b, leftMargin, y-10, "c", c.title)
	ticks := c.ticks()
	low, high := ticks[0], ticks[len(ticks)-1]
	place := func(v float64) float64 {
		share := (v - low) / (high - low)
		if c.log {
			share = math.Log(v/low) / math.Log(high/low)
		}
		return y + chartHeight*(1-min(1, max(0, share)))
	}
	for _, v := range ticks {
		fmt.Fprintf(b, `<path class="g" d="M%d %.1fH%d"/>`+"\n", leftMargin, place(v), leftMargin+plotWidth)
		text(b, leftMargin-6, place(v)+4, "e", strconv.FormatFloat(v, 'f', -1, 64)+c.unit)
	}
	across := func(seconds float64) float64 { return leftMargin + plotWidth*(seconds-d.from)/(d.to-d.from) }
	for t := math.Ceil(d.from/d.every()) * d.every(); t <= d.to+1e-9; t += d.every() {
		fmt.Fprintf(b, `<path class="a" d="M%.1f %.1fv4"/>`+"\n", across(t), y+chartHeight)
		text(b, across(t), y+chartHeight+17, "m", fmt.Sprintf("%.4g", t))
	}
	fmt.Fprintf(b, `<path class="a" d="M%d %.1fH%d"/>`+"\n", leftMargin, y+chartHeight, leftMargin+plotWidth)
	for _, line := range c.curves {
		fmt.Fprintf(b, `<path class="%s" d="%s"/>`+"\n", line.style, line.path(c.log, place))
	}
}

// path is the curve as the commands of an SVG path, spread over the width.
func (l *curve) path(log bool, place func(float64) float64) string {
	var b strings.Builder
	width := float64(plotWidth) / float64(len(l.values))
	down := false
	for i, v := range l.values {
		if log && v <= 0 {
			down = false
			continue
		}
		command := "M"
		if down {
			command = "L"
		}
		x, y := leftMargin+width*float64(i), place(v)
		if l.step {
			fmt.Fprintf(&b, "%s%.1f %.1fh%.1f", command, x, y, width)
		} else {
			fmt.Fprintf(&b, "%s%.1f %.1f", command, x+width/2, y)
		}
		down = true
	}
	return b.String()
}

// ticks are round values that the curves lie between.
func (c *chart) ticks() []float64 {
	low, high := math.Inf(1), 0.0
	for _, l := range c.curves {
		for _, v := range l.values {
			high = max(high, v)
			if v > 0 {
				low = min(low, v)
			}
		}
	}
	switch {
	case high == 0 && c.log:
		return []float64{1, 10}
	case high == 0:
		return []float64{0, 1}
	}
	if c.log {
		var list []float64
		for t := math.Pow(10, math.Floor(math.Log10(low))); ; t *= 10 {
			if list = append(list, t); t >= high*(1-1e-9) {
				break
			}
		}
		if len(list) == 1 {
			list = append(list, 10*list[0])
		}
		return list
	}
	step := round(high / 6)
	var list []float64
	for i := 0.0; ; i++ {
		if list = append(list, i*step); i*step >= high*(1-1e-9) {
			return list
		}
	}
}

// every is the distance of the marks on the axis of time, in seconds.
func (d *drawing) every() float64 { return round((d.to - d.from) / 6) }

// round is the next larger 1, 2, 2.5 or 5 times a power of ten.
func round(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 2.5, 5, 10} {
		if f*power >= v*(1-1e-9) {
			return f * power
		}
	}
	return 10 * power
}

func text(b *strings.Builder, x, y float64, class, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, escape(s))
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace
