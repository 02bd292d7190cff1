package board

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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
	from, to     float64 // seconds
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
	text(&b, leftMargin+plotWidth/2, y, "m", "time, s")
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
