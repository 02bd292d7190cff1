package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// asker is a client before its gate, which comes back when it is told to.
type asker struct {
	weir.Arriver
	w               *world
	refused         int
	first, told, in time.Duration // the first refusal, and what it said; when it was let in
}

func (a *asker) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, waiter, err := a.Arriver.Arrive(w, func(p weir.Permit, err error) {
		a.note(err)
		wake(p, err)
	})
	if err != weir.ErrWaiting {
		a.note(err)
	}
	return p, waiter, err
}

func (a *asker) note(err error) {
	if err == nil {
		a.in = a.w.now
		return
	}
	if a.refused++; a.refused == 1 {
		a.first, a.told = a.w.now, weir.AsRejection(err).RetryAfter
	}
}

// toldOf is what those of a class were told that were refused. All are medians.
type toldOf struct {
	refusals, told, took float64
	ratio                float64 // of what each was told first and how long it took it to get in
}

// overloaded is an overload before a pool of 20 workers with a limit of 20.
type overloaded struct {
	name          string
	lasts         time.Duration
	limit, fair   string
	comeBack      bool      // all do, three times; else only the askers
	load          []float64 // of each class, in times of the capacity
	ratio         float64   // at least
	refusals      float64   // at most
	longest       float64   // that anybody is told, in seconds
	leastGoodWork uint64
}

// tell plays it. Beside the load of each class come 70 askers of it, one by one.
func (o *overloaded) tell(t *testing.T, classes []string) (of []toldOf, good uint64) {
	const calm, askers = 5 * time.Second, 70
	all, after, returns := 0., 40*time.Second, ""
	for _, load := range o.load {
		all += load
	}
	if o.comeBack {
		returns = `, "retry": {"attempts": 3, "backoff": "1ms", "max_backoff": "1ms", "on": ["refusal"], "heed": true}`
	}
	var traffic []string
	for i, class := range classes {
		quiet := 0.5 * o.load[i] / all
		traffic = append(traffic, fmt.Sprintf(`{%s, "client": "k", "tell_deadline": false,
			"phases": [{"for": %q, "load": %v}, {"for": %q, "load": %v}, {"for": %q, "load": %v}]%s}`,
			class, calm, quiet, o.lasts, o.load[i], after, quiet, returns))
	}
	for k := range askers {
		at := calm + time.Second/2 + time.Duration(k)*(o.lasts-time.Second)/askers
		for _, class := range classes {
			traffic = append(traffic, fmt.Sprintf(`{%s, "client": "k", "tell_deadline": false, "at": [%q],
				"retry": {"attempts": 1000, "backoff": "1ms", "max_backoff": "1ms", "on": ["refusal"], "heed": true}}`, class, at))
		}
	}
	s := mustParse(t, fmt.Sprintf(`{"name": %q, %s "seeds": [1], "phases": [{"for": %q}],
		"backend": {"law": "pool", "workers": 20, "service": {"dist": "exponential", "mean": "10ms"}, "deadline": "10s"},
		"policy": {"gates": {"g": {"limit": %s}}, "routes": [{"name": "all", "match": ["/"], "gates": ["g"]}]}, "traffic": [%s]}`,
		o.name, o.fair, calm+o.lasts+after, o.limit, strings.Join(traffic, ",\n")))
	w, err := newWorld(s, 1, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	gates := w.fronts[0].gates
	for i := range gates {
		gates[i] = &asker{Arriver: gates[i], w: w}
	}
	r, err := w.play(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range classes {
		var refusals, told, took, ratio []float64
		for k := len(classes) + i; k < len(gates); k += len(classes) {
			a := gates[k].(*asker)
			switch {
			case a.in == 0:
				t.Errorf("%s: %s: a client was refused %d times, and is still out", o.name, classes[i], a.refused)
			case a.refused > 0:
				first, wait := a.told.Seconds(), (a.in - a.first).Seconds()
				refusals, told, took, ratio = append(refusals, float64(a.refused)), append(told, first), append(took, wait), append(ratio, first/wait)
			}
		}
		if of = append(of, toldOf{}); len(told) >= 10 {
			of[i] = toldOf{median(refusals), median(told), median(took), median(ratio)}
		}
	}
	return of, r.Windows[0].Good
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// What a refused client is told is true of its own class. It went by all that leaves: under ten
// times the load the lowest class was told 32 ms, and was refused three hundred times.
// go test -v prints the table of docs/explain/waiting.md.
func TestWhatIsTold(t *testing.T) {
	if testing.Short() {
		t.Skip("a simulation takes ten times as long under the race detector; run without -short")
	}
	priorities := []string{`"priority": "critical"`, `"priority": "normal"`, `"priority": "background"`}
	tenants := []string{`"tenant": "of weight 4"`, `"tenant": "of weight 2"`, `"tenant": "of weight 1"`}
	const (
		limit   = `{"limit": 20}`
		pools   = limit + `, "each": {"by": "client"}`
		fifo    = `{"limit": 20, "queue": {"order": "fifo"}}`
		weights = `"fair": {"tenants": {"of weight 4": 4, "of weight 2": 2, "of weight 1": 1}},`
		tenth   = `"fair": {"shares": {"background": 0.1}},`
		long    = 20 * time.Second
	)
	for _, o := range []overloaded{
		{"twice the load, a tenth left for background", long, limit, "", false, []float64{0.3, 0.6, 1.1}, 0.15, 4, 10, 0},
		{"the same, oldest first", long, fifo, "", false, []float64{0.3, 0.6, 1.1}, 0.15, 4, 30, 0},
		{"the same, all come back", long, limit, "", true, []float64{0.3, 0.6, 1.1}, 0.15, 8, 15, 95_000},
		{"twice the load, nothing left for background", long, limit, "", false, []float64{0.6, 0.8, 0.6}, 0.15, 4, 30, 0},
		{"the same, a pool of a key", long, pools, "", false, []float64{0.6, 0.8, 0.6}, 0.15, 4, 30, 0},
		{"ten times, a tenth left for background", long, limit, "", false, []float64{0.3, 0.6, 9.1}, 0.15, 4, 30, 0},
		{"the same, all come back", long, limit, "", true, []float64{0.3, 0.6, 9.1}, 0.15, 15, 30, 98_000},
		{"ten times, two fifths left for normal", long, limit, "", false, []float64{0.6, 4, 5.4}, 0.15, 8, 30, 0},
		{"ten times, critical alone too much", long, limit, "", false, []float64{2, 3, 5}, 0.15, 4, 30, 0},
		{"the same, a tenth guaranteed to background", long, limit, tenth, false, []float64{2, 3, 5}, 0.12, 8, 30, 0},
		{"the same for 1.2 s", 1200 * time.Millisecond, limit, "", false, []float64{2, 3, 5}, 0.5, 2, 2, 0},
		{"twice the load of tenants", long, limit, weights, false, []float64{0.67, 0.67, 0.67}, 0.15, 6, 1, 0},
		{"ten times the load of tenants", long, limit, weights, false, []float64{3.3, 3.3, 3.3}, 0.05, 20, 1, 0},
	} {
		classes := priorities
		if o.fair == weights {
			classes = tenants
		}
		of, good := o.tell(t, classes)
		for i, told := range of {
			if told.refusals == 0 {
				continue
			}
			t.Logf("| %-45s | %-24s | %6.3f s | %6.3f s | %.3f | %3.0f |", o.name, strings.ReplaceAll(classes[i], `"`, ""), told.told, told.took, told.ratio, told.refusals)
			if told.ratio < o.ratio || told.refusals > o.refusals || told.told > o.longest {
				t.Errorf("%s: %s: %+v", o.name, classes[i], told)
			}
		}
		if t.Logf("%s: %d answers", o.name, good); good < o.leastGoodWork {
			t.Errorf("%s: %d answers, want %d", o.name, good, o.leastGoodWork)
		}
	}
}
