package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-go/weir/gateway/internal/loadgen"
)

// introduce says what runs where, before the first figure.
func introduce(o *Options, with, without *lane) {
	workers := workersFor(o.Capacity)
	fmt.Fprintf(o.Out, `An upstream that can do %.0f requests a second and no more: %d at a time, %d ms each on
average, the rest in its queue. It works on for clients that have left.
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
	fmt.Fprintln(o.Out)
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

const (
	heading = `                    |              with weir                |       without
 %-4s  load offered |  good    p99  refused   late  limit   |  good     p99   late`
	units = `               req/s | req/s                                 | req/s`
)

// header is the head of a table whose first column is called first.
func header(first string) string {
	return fmt.Sprintf(heading, first) + "\n" + units + "\n"
}

// row is one line of such a table.
func row(first string, load float64, with, without side, limit int64) string {
	return fmt.Sprintf(" %-4s %5s %7.0f | %5.0f %7s   %4.0f %% %4.0f %%  %5d   | %5.0f %7s %4.0f %%\n",
		first, multiple(load), with.offered, with.goodput, with.p99, with.refused, with.gaveUp, limit,
		without.goodput, without.p99, without.gaveUp)
}

// voidRow stands for a second that does not count.
func voidRow(first string, load float64, s *second) string {
	return fmt.Sprintf(" %-4s %5s    void | %.0f %% of the requests left more than %v late: this machine is busy\n",
		first, multiple(load), 100*s.behind(), time.Duration(loadgen.LateAfter*float64(patience)))
}

// table is what each step that has begun came to so far.
func (a *account) table() string {
	var b strings.Builder
	b.WriteString(header("s"))
	for i := range a.steps {
		st := &a.steps[i]
		switch {
		case st.seconds == 0 && st.void == 0:
			continue
		case st.seconds == 0:
			fmt.Fprintf(&b, " %-4s %5s       - |\n", "-", multiple(st.load))
			continue
		}
		b.WriteString(row(fmt.Sprint(st.seconds), st.load,
			a.side(&st.with, st.seconds), a.side(&st.without, st.seconds), st.limit))
	}
	return b.String()
}

// conclusion is the end of the story, in numbers.
func (a *account) conclusion() string {
	var b strings.Builder
	b.WriteString("\nIn all, by step of the load (good: answered before the client left; late: it left first):\n\n")
	b.WriteString(a.table())
	b.WriteString("\n")
	peak := 0
	for i := range a.steps {
		if a.steps[i].load > a.steps[peak].load {
			peak = i
		}
	}
	b.WriteString(a.sentence("At", &a.steps[peak]))
	if last := len(a.steps) - 1; last != peak {
		b.WriteString(a.sentence("Then, back at", &a.steps[last]))
	}
	if void, all := a.voided(); void > 0 {
		fmt.Fprintf(&b, "%d of %d seconds are void and left out: the machine was too busy to send on time.\nTry again when it is idle, or with a smaller --capacity.\n", void, all)
	}
	return b.String()
}

// sentence compares the two sides at one step.
func (a *account) sentence(begin string, st *stepAccount) string {
	if st.seconds == 0 {
		return fmt.Sprintf("%s %s: no second counts.\n", begin, multiple(st.load))
	}
	with, without := a.side(&st.with, st.seconds), a.side(&st.without, st.seconds)
	possible := min(a.capacity, with.offered)
	text := fmt.Sprintf("%s %s, of about %.0f requests a second that could be answered in time, %.0f were with weir (%.0f %%, p99 %s) and %.0f without (%.0f %%, p99 %s).\n",
		begin, multiple(st.load), possible,
		with.goodput, 100*with.goodput/possible, with.p99,
		without.goodput, 100*without.goodput/possible, without.p99)
	if failed := with.failed + without.failed; failed > 0 {
		text += fmt.Sprintf("%d requests failed in other ways (%d with weir, %d without).\n", failed, with.failed, without.failed)
	}
	return text
}
