// Package chart draws curves over one axis as an SVG: for the scoreboard and the examples.
package chart

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Panel is a part of a drawing: some curves over time on one scale.
type Panel struct {
	Title  string
	Unit   string // of the ticks, behind the number
	Log    bool   // else from 0
	Curves []Curve
	Points []Point
}

// Point is a value beside the curves, with its name.
type Point struct {
	At, Value float64 // At is along the axis
	Style     string
	Name      string
}

// Curve is one line of a panel. A value that is not above 0 is a gap in a
// logarithmic panel.
type Curve struct {
	Values []float64
	Style  string // a class of the style sheet
	Step   bool   // holds each value for its whole column
}

// Legend is an entry under the drawing.
type Legend struct{ Style, Text string }

// Drawing is panels above each other, with one axis of time.
type Drawing struct {
	Title, About string
	Axis         string   // what runs from left to right
	From, To     float64  // along the axis
	Columns      []string // names in place of numbers along the axis, each in the middle of a column of width 1; From is 0
	Panels       []Panel
	Legend       []Legend
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

// SVG draws it all.
func (d *Drawing) SVG() string {
	rows := (len(d.Legend) + 1) / 2
	height := headHeight + len(d.Panels)*(chartHeight+chartGap) - chartGap + axisHeight + rows*legendRow + bottomMargin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n%s\n",
		drawingWidth, height, drawingWidth, height, escape(d.Title+": "+d.About), style)
	text(&b, 8, 20, "h", d.Title)
	text(&b, 8, 38, "", d.About)
	y := float64(headHeight + 12)
	for i := range d.Panels {
		d.Panels[i].draw(&b, d, y)
		y += chartHeight + chartGap
	}
	y += 36 - chartGap
	text(&b, leftMargin+plotWidth/2, y, "m", d.Axis)
	for i, l := range d.Legend {
		x, at := float64(leftMargin+i%2*legendColumn), y+float64(22+i/2*legendRow)
		fmt.Fprintf(&b, `<path class="%s" d="M%.0f %.0fh26"/>`+"\n", l.Style, x, at-4)
		text(&b, x+32, at, "", l.Text)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

const plotWidth = drawingWidth - leftMargin - rightMargin

// draw draws a panel whose upper edge is at y.
func (c *Panel) draw(b *strings.Builder, d *Drawing, y float64) {
	text(b, leftMargin, y-10, "c", c.Title)
	ticks := c.ticks()
	low, high := ticks[0], ticks[len(ticks)-1]
	place := func(v float64) float64 {
		share := (v - low) / (high - low)
		if c.Log {
			share = math.Log(v/low) / math.Log(high/low)
		}
		return y + chartHeight*(1-min(1, max(0, share)))
	}
	for _, v := range ticks {
		fmt.Fprintf(b, `<path class="g" d="M%d %.1fH%d"/>`+"\n", leftMargin, place(v), leftMargin+plotWidth)
		text(b, leftMargin-6, place(v)+4, "e", strconv.FormatFloat(v, 'f', -1, 64)+c.Unit)
	}
	across := func(seconds float64) float64 { return leftMargin + plotWidth*(seconds-d.From)/(d.To-d.From) }
	tick := func(at float64, name string) {
		fmt.Fprintf(b, `<path class="a" d="M%.1f %.1fv4"/>`+"\n", across(at), y+chartHeight)
		text(b, across(at), y+chartHeight+17, "m", name)
	}
	for i, name := range d.Columns {
		tick(float64(i)+0.5, name)
	}
	for t := math.Ceil(d.From/d.every()) * d.every(); t <= d.To+1e-9 && len(d.Columns) == 0; t += d.every() {
		tick(t, fmt.Sprintf("%.4g", t))
	}
	fmt.Fprintf(b, `<path class="a" d="M%d %.1fH%d"/>`+"\n", leftMargin, y+chartHeight, leftMargin+plotWidth)
	for _, line := range c.Curves {
		fmt.Fprintf(b, `<path class="%s" d="%s"/>`+"\n", line.Style, line.path(c.Log, place))
	}
	for _, p := range c.Points {
		if !finite(p.Value) || !finite(p.At) {
			continue
		}
		x, at := across(min(max(p.At, d.From), d.To)), place(p.Value)
		fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="4" fill="none" stroke-width="2.4"/>`+"\n", p.Style, x, at)
		if x > leftMargin+plotWidth/2 { // the name has room on the left
			text(b, x-8, at+4, "e", p.Name)
		} else {
			text(b, x+8, at+4, "", p.Name)
		}
	}
}

// path is the curve as the commands of an SVG path, spread over the width.
func (l *Curve) path(log bool, place func(float64) float64) string {
	var b strings.Builder
	width := float64(plotWidth) / float64(len(l.Values))
	down := false
	for i, v := range l.Values {
		if !finite(v) || log && v <= 0 {
			down = false
			continue
		}
		command := "M"
		if down {
			command = "L"
		}
		x, y := leftMargin+width*float64(i), place(v)
		if l.Step {
			fmt.Fprintf(&b, "%s%.1f %.1fh%.1f", command, x, y, width)
		} else {
			fmt.Fprintf(&b, "%s%.1f %.1f", command, x+width/2, y)
		}
		down = true
	}
	return b.String()
}

// finite reports whether a value can be drawn. Others are gaps.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// ticks are round values that the curves lie between.
func (c *Panel) ticks() []float64 {
	low, high := math.Inf(1), 0.0
	for _, l := range c.Curves {
		for _, v := range l.Values {
			if !finite(v) {
				continue
			}
			high = max(high, v)
			if v > 0 {
				low = min(low, v)
			}
		}
	}
	switch {
	case high == 0 && c.Log:
		return []float64{1, 10}
	case high == 0:
		return []float64{0, 1}
	}
	if c.Log {
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
func (d *Drawing) every() float64 { return round((d.To - d.From) / 6) }

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
