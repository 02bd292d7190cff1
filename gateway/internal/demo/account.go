package demo

import (
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// The load, as multiples of the upstream's capacity. The last step shows who
// recovers.
var steps = []float64{0.5, 0.9, 2, 3, 0.5}

// account adds up the seconds of each step of the load.
type account struct {
	capacity float64
	patience time.Duration
	steps    []stepAccount
	moments  []moment // each second so far
	lasts    int      // seconds of the whole load
	color    bool     // of the wave
}

// second counts what happened to the requests that were due in one second, on both sides.
type second struct {
	step    int
	due     float64 // how many there were to be, on the mean
	limit   int64   // in force at the end of the second
	with    loadgen.Tally
	without loadgen.Tally
}

// void reports whether the generator was too late for the second to count. It
// then counts for neither side.
func (s *second) void() bool {
	return s.with.Void() || s.without.Void() || s.missing(&s.with)+s.missing(&s.without) > 0
}

// behind is the share of requests that left too late, on the worse side.
func (s *second) behind() float64 {
	return max(s.with.Behind(), s.without.Behind(), s.missing(&s.with), s.missing(&s.without))
}

// missing is the share of requests that were due and never sent, because the generator
// stood still until the account was closed. It is 0 if chance explains what is missing.
func (s *second) missing(t *loadgen.Tally) float64 {
	offered := float64(t.Offered)
	if offered >= max(min(1, s.due), s.due-6*math.Sqrt(s.due)) {
		return 0
	}
	return 1 - offered/s.due
}

type stepAccount struct {
	load          float64
	seconds, void int
	limit         int64 // the last one in force
	with, without loadgen.Tally
}

func newAccount(capacity float64, patience time.Duration) *account {
	a := &account{capacity: capacity, patience: patience}
	for _, load := range steps {
		a.steps = append(a.steps, stepAccount{load: load})
	}
	return a
}

func (a *account) add(s *second) {
	st := &a.steps[s.step]
	if s.void() {
		a.moments = append(a.moments, moment{void: true})
		st.void++
		return
	}
	with, without := a.side(&s.with, 1), a.side(&s.without, 1)
	a.moments = append(a.moments, moment{offered: with.offered, with: with.goodput, without: without.goodput})
	st.seconds++
	st.limit = s.limit
	st.with.Add(&s.with)
	st.without.Add(&s.without)
}

// voided returns how many seconds are void, and how many there are.
func (a *account) voided() (void, all int) {
	for i := range a.steps {
		void += a.steps[i].void
		all += a.steps[i].void + a.steps[i].seconds
	}
	return void, all
}

// wave draws the seconds so far.
func (a *account) wave() string { return wave(a.moments, a.lasts, a.capacity, a.color) }

// screen shows the load while it runs, with a line for each second. On a terminal it shows the
// table of steps and the wave so far, redrawn in place.
type screen struct {
	out      io.Writer
	terminal bool
	account  *account
	drawn    int // lines to go back before the next drawing
}

func newScreen(o *Options, a *account) *screen {
	s := &screen{out: o.Out, terminal: o.Terminal, account: a}
	if !s.terminal {
		fmt.Fprint(s.out, header("second"))
	}
	return s
}

// show adds the n-th second, from 1.
func (s *screen) show(n int, sec *second) {
	load := s.account.steps[sec.step].load
	if !s.terminal {
		fmt.Fprint(s.out, s.line(fmt.Sprint(n), load, sec))
		return
	}
	text := table(s.account.figures()) + "\n" + s.account.wave() + s.line(fmt.Sprint(n), load, sec)
	fmt.Fprint(s.out, redraw(text, s.drawn))
	s.drawn = strings.Count(text, "\n")
}

func (s *screen) line(first string, load float64, sec *second) string {
	if sec.void() {
		return voidRow(first, load, sec)
	}
	return row(first, load, s.account.side(&sec.with, 1), s.account.side(&sec.without, 1), sec.limit)
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

// figures are the results of one step of the load, on both sides.
type figures struct {
	load          float64
	first, last   int // second, from 1
	void          bool
	with, without side
	limit         int64
}

// figures returns those of each step that has begun.
func (a *account) figures() (all []figures) {
	first := 1
	for i := range a.steps {
		st := &a.steps[i]
		n := st.seconds + st.void
		if n == 0 {
			continue
		}
		all = append(all, figures{
			load: st.load, first: first, last: first + n - 1, void: st.seconds == 0,
			with: a.side(&st.with, st.seconds), without: a.side(&st.without, st.seconds), limit: st.limit,
		})
		first += n
	}
	return all
}

// table has a row for each step.
func table(steps []figures) string {
	var b strings.Builder
	b.WriteString(header("seconds"))
	for i := range steps {
		st := &steps[i]
		when := fmt.Sprintf("%d-%d", st.first, st.last)
		if st.first == st.last {
			when = fmt.Sprint(st.first)
		}
		if st.void {
			fmt.Fprintf(&b, " %-7s %4s   void |\n", when, multiple(st.load))
		} else {
			b.WriteString(row(when, st.load, st.with, st.without, st.limit))
		}
	}
	return b.String()
}

// conclusion is the end of the story, in numbers.
func (a *account) conclusion() string {
	text := "\nIn all, by step of the load (good: answered before the client left; late: it left first):\n\n" + table(a.figures())
	if void, all := a.voided(); void > 0 {
		text += fmt.Sprintf("%d of %d seconds are void and left out: this machine was too busy to send on time.\n", void, all)
	}
	return text
}

// at returns the last of some steps with a load, nil if none of its seconds counts.
func at(all []figures, load float64) *figures {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].load == load && !all[i].void {
			return &all[i]
		}
	}
	return nil
}

// verdict is the story in two sentences, that of the highest load at the end. It is empty if
// that load has no second that counts. how says how it is known.
func (a *account) verdict(all []figures, how string) string {
	peak := at(all, slices.Max(steps))
	if peak == nil {
		return ""
	}
	text, last := "", &all[len(all)-1]
	if last.load < peak.load && !last.void {
		text = a.sentence("Afterwards, at "+multiple(last.load)+" again"+how, last)
	}
	if failed := peak.with.failed + peak.without.failed; failed > 0 {
		text += fmt.Sprintf("At %s %d requests failed in other ways (%d with weir, %d without).\n", multiple(peak.load), failed, peak.with.failed, peak.without.failed)
	}
	return text + a.sentence("At "+multiple(peak.load)+how, peak)
}

// sentence compares the two sides at one step.
func (a *account) sentence(begin string, st *figures) string {
	possible := min(a.capacity, st.with.offered)
	return fmt.Sprintf("%s: %.0f of about %.0f a second in time with weir, %.0f without.\n", begin, st.with.goodput, possible, st.without.goodput)
}

const (
	heading = `                      |            with weir              |      without
 %-7s load  asked | good      p99 refused late limit |  good     p99  late`
	units = `               req/s | req/s                             | req/s`
)

// header is the head of a table. first is the name of the first column.
func header(first string) string {
	return fmt.Sprintf(heading, first) + "\n" + units + "\n"
}

// row is one line of the table.
func row(first string, load float64, with, without side, limit int64) string {
	return fmt.Sprintf(" %-7s %4s %6.0f | %5.0f %7s  %3.0f %% %3.0f %% %5d | %5.0f %7s %3.0f %%\n",
		first, multiple(load), with.offered, with.goodput, with.p99, with.refused, with.gaveUp, limit,
		without.goodput, without.p99, without.gaveUp)
}

// voidRow stands for a second that does not count.
func voidRow(first string, load float64, s *second) string {
	return fmt.Sprintf(" %-7s %4s   void | %.0f %% left more than %v late: this machine is busy\n",
		first, multiple(load), 100*s.behind(), loadgen.LateAfter(patience))
}

func (a *account) side(t *loadgen.Tally, seconds int) side {
	s := side{p99: "-", failed: t.Failed}
	if seconds == 0 || t.Offered == 0 {
		return s
	}
	s.offered = float64(t.Offered) / float64(seconds)
	s.goodput = float64(t.OK) / float64(seconds)
	s.refused = 100 * float64(t.Refused) / float64(t.Offered)
	s.gaveUp = 100 * float64(t.GaveUp) / float64(t.Offered)
	s.p99 = a.p99(t.Admitted.Bound(0.99), float64(t.GaveUp), float64(t.Admitted.Count()))
	return s
}

// side is one side's figures over some seconds, as they are shown.
type side struct {
	offered, goodput float64 // a second
	refused, gaveUp  float64 // percent of offered
	failed           int64
	p99              string
}

// p99 shows the latency of what was not refused. Those who gave up waited for longer than
// their patience; nobody knows how much longer.
func (a *account) p99(d time.Duration, gaveUp, admitted float64) string {
	switch {
	case admitted == 0:
		return "-"
	case gaveUp > 0.01*admitted:
		return fmt.Sprintf(">%d ms", a.patience.Milliseconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

// introduce says what runs where, before the first figure.
func introduce(o *Options, with, without *lane) {
	workers := workersFor(o.Capacity)
	fmt.Fprintf(o.Out, `An upstream that can do %.0f requests a second and no more. It does %d at a time, %d ms each
on average, and the rest wait in its queue. It works on for clients that have left.
Clients ask in their own time (Poisson), %s of that capacity, %v each, and
leave after %d ms. The same load goes twice to an upstream like that:

  with weir  %s, gate %q finds its limit by itself
  without    %s, the same gateway with its gate off

Look at it while it runs:

  curl -i %s/
`,
		o.Capacity, workers, with.upstream.mean.Milliseconds(), loads(), o.step(), patience.Milliseconds(),
		with.url(), gateName, without.url(), with.url())
	if admin := with.gateway.AdminAddr(); admin != nil {
		fmt.Fprintf(o.Out, "  curl http://%s/gates     limit, in flight, waiting, refusals by reason\n", admin)
		fmt.Fprintf(o.Out, "  curl http://%s/metrics   the same for Prometheus\n", admin)
	}
	for _, moved := range []struct{ what, to, from string }{
		{"gateway", with.gateway.Addr().String(), movedFrom(o.Listen, DefaultListen)},
		{"admin listener", addrOf(with.gateway.AdminAddr()), movedFrom(o.Admin, DefaultAdmin)},
	} {
		if moved.from != "" && moved.to != moved.from {
			fmt.Fprintf(o.Out, "\n%s was taken: the %s is at %s instead.\n", moved.from, moved.what, moved.to)
		}
	}
	fmt.Fprintln(o.Out)
}

// movedFrom returns the address that was to be used if it was free, empty if another one was
// asked for.
func movedFrom(asked, usual string) string {
	if asked != "" {
		return ""
	}
	return usual
}

func addrOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// loads lists the steps: 0.5x 0.9x 2x.
func loads() string {
	words := make([]string, len(steps))
	for i, x := range steps {
		words[i] = multiple(x)
	}
	return strings.Join(words, " ")
}

func multiple(x float64) string { return fmt.Sprintf("%gx", x) }
