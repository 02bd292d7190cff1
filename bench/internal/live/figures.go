package live

import (
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
)

// figures are what one stage of one run came to.
type figures struct {
	Round int `json:"round"`
	// Goodput is the answers in time over what the capacity in force could
	// have answered: by number, or by work where there are two kinds.
	Goodput float64 `json:"goodput"`
	// Served is the share of the requests that were answered in time.
	Served float64 `json:"served"`
	// P50 to P999 are the latencies of what was not refused, in ms; who gave up
	// counts with the whole patience. RefusalP99 is that of the refusals.
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	P999       float64 `json:"p999_ms"`
	RefusalP99 float64 `json:"refusal_p99_ms"`
	Refused    float64 `json:"refused"` // share of all
	Late       float64 `json:"late"`    // share of what was not refused
	Failed     float64 `json:"failed"`  // share of all
	// Wasted is the share of the backend's work that nobody waited for.
	Wasted float64 `json:"wasted"`
	// Bound is the least upper bound of Goodput where refusals cost the
	// backend's own processor, else 1.
	Bound float64 `json:"bound"`

	// Settle is when goodput first held 95 % of what was offered or could be done, for
	// the time of 400 requests. FirstLate is the late share of the first half second.
	// Calm is when the last fifth of a second with 1 % of refusals was over. Times are in
	// seconds from the stage's beginning.
	Settle    float64 `json:"settle_s"`
	FirstLate float64 `json:"first_late"`
	Calm      float64 `json:"calm_s"`

	LimitLeast int64   `json:"limit_min"`
	LimitMean  float64 `json:"limit_mean"`
	LimitMost  int64   `json:"limit_max"`
	Inside     int     `json:"inside_max"` // the most requests inside the backend

	Behind     float64 `json:"behind"`     // share of sends that were late
	Core       float64 `json:"core"`       // share of its core the system under test used
	Foreign    float64 `json:"foreign"`    // share of that core that others used
	Heap       uint64  `json:"heap"`       // bytes
	Goroutines int     `json:"goroutines"` // at the end of the stage
	PeakMemory uint64  `json:"peak_rss"`   // bytes, since its start
}

// mark is the state of a lane between two stages.
type mark struct {
	at    time.Duration // since the load's start
	app   stats
	front rig.Usage
	busy  time.Duration // the core of the systems under test
	ours  time.Duration // of it, by all systems under test
}

// foreign is the share of the core under test that others used until a later mark.
func (m *mark) foreign(until *mark) float64 {
	others := until.busy - m.busy - (until.ours - m.ours)
	return max(0, others.Seconds()/max(1e-3, (until.at-m.at).Seconds()))
}

// late is the share of the sends that were late, or came to nothing.
func late(records ...[]record) float64 {
	behind, total := 0, 0
	for _, class := range records {
		total += len(class)
		for i := range class {
			if class[i].Late || class[i].Answer == loadgen.Unsent {
				behind++
			}
		}
	}
	return float64(behind) / max(1, float64(total))
}

// stretch is one stage of one run, with all that is known about it.
type stretch struct {
	records  []record // due in it
	all      []record // of the whole run
	from, to time.Duration
	load     float64 // offered, as a share of the whole capacity
	scale    float64 // of the capacity that was left
	capacity float64 // whole, requests a second
	mean     time.Duration
	byWork   bool
	before   mark
	after    mark
}

func (s *stretch) figures() figures {
	t := tallyOf(s.records)
	f := figures{
		Goodput: s.good(s.records) / (s.capacity * s.scale * (s.to - s.from).Seconds()),
		Served:  t.share(loadgen.OK), Refused: t.share(loadgen.Refused), Failed: t.share(loadgen.Failed), Late: t.late(),
		P50: quantile(t.admitted, 0.5), P99: quantile(t.admitted, 0.99), P999: quantile(t.admitted, 0.999),
		RefusalP99: quantile(t.refusals, 0.99), Behind: late(s.records), Bound: 1,
		Settle: s.settle(), FirstLate: s.firstLate(), Calm: s.calm(),
	}
	s.account(&f)
	return f
}

// tally is what became of some requests.
type tally struct {
	total              float64
	n                  map[loadgen.Answer]float64
	admitted, refusals []time.Duration // latencies; who gave up counts as admitted
}

func tallyOf(records []record) tally {
	t := tally{total: float64(len(records)), n: map[loadgen.Answer]float64{}}
	for i := range records {
		r := &records[i]
		t.n[r.Answer]++
		switch r.Answer {
		case loadgen.OK, loadgen.Failed, loadgen.GaveUp:
			t.admitted = append(t.admitted, r.Latency)
		case loadgen.Refused:
			t.refusals = append(t.refusals, r.Latency)
		}
	}
	return t
}

// share is the part of all requests that had this answer.
func (t *tally) share(a loadgen.Answer) float64 { return t.n[a] / max(1, t.total) }

// late is the part of what was not refused that was not answered in time.
func (t *tally) late() float64 {
	missed := t.n[loadgen.GaveUp] + t.n[loadgen.Failed]
	return missed / max(1, t.n[loadgen.OK]+missed)
}

// good is what the good answers count: each as one, or by its work.
func (s *stretch) good(records []record) (good float64) {
	for i := range records {
		switch r := &records[i]; {
		case r.Answer != loadgen.OK:
		case s.byWork:
			good += r.Work.Seconds() / s.mean.Seconds()
		default:
			good++
		}
	}
	return good
}

// account adds what the processes said.
func (s *stretch) account(f *figures) {
	b, a := &s.before, &s.after
	f.Inside = a.app.MaxInside
	f.LimitLeast, f.LimitMean, f.LimitMost = a.app.LimitLeast, a.app.LimitMean, a.app.LimitMost
	f.Heap, f.Goroutines, f.PeakMemory = a.app.Heap, a.app.Goroutines, a.front.Peak
	wall := max(1e-3, (a.at - b.at).Seconds())
	f.Core = (a.front.CPU - b.front.CPU).Seconds() / wall
	f.Foreign = b.foreign(a)
	if done := a.app.Work - b.app.Work; done > 0 {
		f.Wasted = max(0, 1-delivered(s.all, b.at, a.at)/done)
	}
}

// delivered is the work of the answers that arrived in time between two moments, in
// seconds.
func delivered(records []record, from, to time.Duration) float64 {
	work := 0.0
	for i := range records {
		if r := &records[i]; r.Answer == loadgen.OK && r.Due+r.Latency >= from && r.Due+r.Latency < to {
			work += r.Work.Seconds()
		}
	}
	return work
}

// Chance moves the count of 400 Poisson arrivals by 5 %.
const settleRequests = 400

// settleWindow is the time of [settleRequests] at the rate that can be answered.
func (s *stretch) settleWindow() time.Duration {
	return time.Duration(settleRequests / (s.capacity * min(s.load, s.scale)) * float64(time.Second))
}

func (s *stretch) settle() float64 {
	const step = 50 * time.Millisecond
	window := s.settleWindow()
	for from := s.from; from+window <= s.to; from += step {
		if s.good(due(s.records, from, from+window)) >= 0.95*settleRequests {
			return (from - s.from).Seconds()
		}
	}
	return (s.to - s.from).Seconds()
}

func (s *stretch) firstLate() float64 {
	t := tallyOf(due(s.records, s.from, s.from+500*time.Millisecond))
	return t.late()
}

func (s *stretch) calm() (last float64) {
	const window = 200 * time.Millisecond
	for from := s.from; from < s.to; from += window {
		t := tallyOf(due(s.records, from, from+window))
		if refused := t.n[loadgen.Refused]; refused > 0 && refused >= 0.01*t.total {
			last = (from + window - s.from).Seconds()
		}
	}
	return last
}

// due returns the records that were due from from until before to. Records are in
// the order in which they were due.
func due(records []record, from, to time.Duration) []record {
	at := func(t time.Duration) int {
		i, _ := slices.BinarySearchFunc(records, t, func(r record, t time.Duration) int {
			if r.Due < t {
				return -1
			}
			return 1
		})
		return i
	}
	i := at(from)
	return records[i:max(i, at(to))]
}

// quantile returns the q-quantile in ms, 0 of nothing.
func quantile(d []time.Duration, q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	i := int(math.Ceil(q*float64(len(d)))) - 1
	return float64(d[min(max(i, 0), len(d)-1)].Microseconds()) / 1000
}
