package demo

import (
	"fmt"
	"strings"
)

// The wave is a picture of the load in plain characters, with a column for each second.
// The good answers of each side are # under what was asked for, as dots.
const (
	waveHeight  = 5  // so that the table and both charts fit on a terminal of 24 lines
	waveColumns = 60 // at most; a longer load has several seconds in a column, a short one two columns a second
)

// moment is a second as the wave shows it, in requests a second.
type moment struct {
	void                   bool
	offered, with, without float64
}

// wave draws both sides. full is the highest rate, and capacity the one that is marked.
func wave(moments []moment, seconds int, capacity float64, color bool) string {
	full := capacity
	for _, x := range steps {
		full = max(full, x*capacity)
	}
	each := max(1, (seconds+waveColumns-1)/waveColumns)
	columns := squeeze(moments, each)
	p := pen{full: full, capacity: capacity, color: color, columns: (seconds + each - 1) / each, wide: 1}
	if 2*p.columns <= waveColumns {
		p.wide = 2
	}
	return p.chart("with weir: # answered in time, . asked for", columns, func(m *moment) float64 { return m.with }) +
		p.chart("without weir", columns, func(m *moment) float64 { return m.without })
}

// squeeze makes one moment of so many, the mean of those that count.
func squeeze(moments []moment, each int) (columns []moment) {
	for begin := 0; begin < len(moments); begin += each {
		sum, n := moment{}, 0.0
		for _, m := range moments[begin:min(begin+each, len(moments))] {
			if !m.void {
				sum.offered, sum.with, sum.without = sum.offered+m.offered, sum.with+m.with, sum.without+m.without
				n++
			}
		}
		if n == 0 {
			sum.void, n = true, 1
		}
		columns = append(columns, moment{sum.void, sum.offered / n, sum.with / n, sum.without / n})
	}
	return columns
}

// pen draws charts of one scale.
type pen struct {
	full, capacity float64
	color          bool
	columns, wide  int // how many, and how many characters each
}

// chart draws one side.
func (p *pen) chart(title string, columns []moment, good func(*moment) float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "   req/s  %s\n", title)
	for level := waveHeight; level > 0; level-- {
		line := ""
		for i := range columns {
			line += strings.Repeat(p.cell(&columns[i], good(&columns[i]), level), p.wide)
		}
		rest := max(0, p.columns-len(columns))
		fmt.Fprintf(&b, "   %5s |%s%s|\n", p.label(level), p.paint(line), strings.Repeat(" ", rest*p.wide))
	}
	return b.String()
}

// cell is the character of a second at a level, from 1. A level is reached from its middle
// on.
func (p *pen) cell(m *moment, good float64, level int) string {
	reached := func(rate float64) bool { return rate >= (float64(level)-0.5)*p.full/waveHeight }
	switch {
	case m.void && level == 1:
		return "?"
	case m.void:
		return " "
	case reached(good):
		return "#"
	case reached(m.offered):
		return "."
	}
	return " "
}

// label names the highest level, and that of the capacity.
func (p *pen) label(level int) string {
	switch at := int(p.capacity/p.full*waveHeight + 0.5); level {
	case waveHeight:
		return fmt.Sprintf("%.0f", p.full)
	case at:
		return fmt.Sprintf("%.0f", p.capacity)
	}
	return ""
}

// paint colours good answers green and others dim, if colours are wanted.
func (p *pen) paint(line string) string {
	if !p.color {
		return line
	}
	const green, dim, plain = "\x1b[32m", "\x1b[2m", "\x1b[0m"
	var b strings.Builder
	var last rune
	for _, r := range line {
		if r != last {
			switch r {
			case '#':
				b.WriteString(plain + green)
			case '.':
				b.WriteString(plain + dim)
			default:
				b.WriteString(plain)
			}
			last = r
		}
		b.WriteRune(r)
	}
	return b.String() + plain
}
