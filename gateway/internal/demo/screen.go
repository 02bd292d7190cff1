package demo

import (
	"fmt"
	"io"
	"strings"
)

// screen shows the load while it runs: a line for each second, or on a terminal
// the table of steps and the last second as bars, redrawn in place.
type screen struct {
	out      io.Writer
	terminal bool
	account  *account
	drawn    int // lines to go back before the next drawing
}

func newScreen(o *Options, a *account) *screen {
	s := &screen{out: o.Out, terminal: o.Terminal, account: a}
	if !s.terminal {
		fmt.Fprint(s.out, header("s"))
	}
	return s
}

// show takes up the n-th second, from 1.
func (s *screen) show(n int, sec *second) {
	load := s.account.steps[sec.step].load
	if !s.terminal {
		fmt.Fprint(s.out, s.line(fmt.Sprint(n), load, sec))
		return
	}
	text := s.account.table() + "\n" + s.bars(n, load, sec)
	fmt.Fprint(s.out, redraw(text, s.drawn))
	s.drawn = strings.Count(text, "\n")
}

func (s *screen) line(first string, load float64, sec *second) string {
	if sec.void() {
		return voidRow(first, load, sec)
	}
	return row(first, load, s.account.side(&sec.with, 1), s.account.side(&sec.without, 1), sec.limit)
}

// barWidth is the length of the longest bar, that of the highest load.
const barWidth = 48

// bars draws the last second.
func (s *screen) bars(n int, load float64, sec *second) string {
	if sec.void() {
		return voidRow(fmt.Sprint(n), load, sec) + "\n\n\n"
	}
	with, without := s.account.side(&sec.with, 1), s.account.side(&sec.without, 1)
	full := s.account.capacity
	for _, x := range steps {
		full = max(full, x*s.account.capacity)
	}
	bar := func(name string, rate float64, note string) string {
		length := min(barWidth, int(rate/full*barWidth+0.5))
		return fmt.Sprintf("   %-10s %4.0f/s %s %s\n", name, rate, strings.Repeat("#", length), note)
	}
	return fmt.Sprintf(" second %d, load %s\n", n, multiple(load)) +
		bar("offered", with.offered, "") +
		bar("with weir", with.goodput, fmt.Sprintf("good, p99 %s, %.0f %% refused, limit %d", with.p99, with.refused, sec.limit)) +
		bar("without", without.goodput, fmt.Sprintf("good, p99 %s, %.0f %% left unanswered", without.p99, without.gaveUp))
}

// redraw returns text so that it takes the place of the last lines.
func redraw(text string, lines int) string {
	var b strings.Builder
	if lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", lines)
	}
	for line := range strings.Lines(text) {
		b.WriteString("\x1b[2K")
		b.WriteString(line)
	}
	return b.String()
}
