package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir"
)

// Summary is what one run was over one stretch of time.
type Summary struct {
	// From and To are the stretch.
	From time.Duration `json:"from_ns"`
	To   time.Duration `json:"to_ns"`

	// Offered counts new requests, Attempts these and their retries.
	Offered  uint64 `json:"offered"`
	Attempts uint64 `json:"attempts"`
	// Admitted counts grants; Answered what the backend finished, Good what of
	// it came in time to a client that was still there.
	Admitted uint64 `json:"admitted"`
	Answered uint64 `json:"answered"`
	Good     uint64 `json:"good"`
	// Refused counts refusals by reason, GaveUp clients that left the wait
	// room, Abandoned clients that left while the backend worked for them.
	Refused   map[weir.Reason]uint64 `json:"refused,omitempty"`
	GaveUp    uint64                 `json:"gave_up,omitempty"`
	Abandoned uint64                 `json:"abandoned,omitempty"`

	// Capacity is the backend's mean capacity, Goodput the rate of Good, both
	// in requests a second; Ratio is the one over the other.
	Capacity float64 `json:"capacity_rps"`
	Goodput  float64 `json:"goodput_rps"`
	Ratio    float64 `json:"goodput"`
	// RefusedShare is refusals over attempts, LateShare the share of answers
	// that were no use any more, WastedShare the share of work that went into
	// them.
	RefusedShare float64 `json:"refused_share"`
	LateShare    float64 `json:"late_share"`
	WastedShare  float64 `json:"wasted_share"`
	// WorkRatio is the same as Ratio by work: good work over what the backend
	// could have done.
	WorkRatio float64 `json:"goodput_work"`
	// Hits counts requests that a cache answered, which are not among Offered.
	Hits uint64 `json:"hits,omitempty"`
	// Classes are the classes of requests, Inversions how often one was let in
	// while one of a higher priority waited, and UserError and ShareError by how
	// much of its max-min fair share the user, and the tenant, who is farthest
	// from it is off: of scenarios that have goals about such things.
	Classes    []ClassSummary `json:"classes,omitempty"`
	Inversions uint64         `json:"inversions,omitempty"`
	UserError  float64        `json:"user_error,omitempty"`
	ShareError float64        `json:"share_error,omitempty"`
	// OverLimit is the most by which an admission brought the backend over the
	// limit in force. It is above 0 only where slots of abandoned work are given
	// back at once.
	OverLimit float64 `json:"over_limit,omitempty"`

	// P50, P99 and P999 are the latencies of admitted work, from the moment its
	// attempt was meant to be sent to the backend's answer. WaitP99 is the time
	// in the wait room of it, RefusalP99 the time until a refusal.
	P50        time.Duration `json:"p50_ns"`
	P99        time.Duration `json:"p99_ns"`
	P999       time.Duration `json:"p999_ns"`
	WaitP99    time.Duration `json:"wait_p99_ns"`
	RefusalP99 time.Duration `json:"refusal_p99_ns"`

	// Limit is the sum of the gateways' limits of the gate that bounds the
	// concurrency of the first class; Inside is the concurrency in the backend.
	Limit  Level `json:"limit"`
	Inside Level `json:"inside"`
}

// Level is a value over time.
type Level struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

func (w *window) summary() Summary {
	s := Summary{
		From: w.from, To: w.to,
		Offered: w.offered, Attempts: w.attempts, Admitted: w.admitted,
		Answered: w.answered, Good: w.good, GaveUp: w.gaveUp, Abandoned: w.abandoned,
		Capacity: w.capacity.mean(),
		P50:      w.latency.quantile(.5), P99: w.latency.quantile(.99), P999: w.latency.quantile(.999),
		WaitP99: w.wait.quantile(.99), RefusalP99: w.refusal.quantile(.99),
		Limit: w.limit.public(), Inside: w.inside.public(),
	}
	var refused uint64
	for _, n := range w.refused {
		refused += n
	}
	s.Refused = byReason(&w.refused)
	s.Goodput = share(float64(w.good), (w.to - w.from).Seconds())
	s.Ratio = share(s.Goodput, s.Capacity)
	s.RefusedShare = share(float64(refused), float64(w.attempts))
	s.LateShare = share(float64(w.late), float64(w.answered))
	s.WastedShare = share(w.wasted, w.work)
	s.WorkRatio = share(share(w.work-w.wasted, (w.to-w.from).Seconds()), w.power.mean())
	s.Hits, s.OverLimit = w.hits, w.over
	return s
}

// byReason names the counts that are not 0; nil if all are.
func byReason(counts *[numReasons]uint64) map[weir.Reason]uint64 {
	var m map[weir.Reason]uint64
	for r, n := range counts {
		if n > 0 {
			if m == nil {
				m = map[weir.Reason]uint64{}
			}
			m[weir.Reason(r)] = n
		}
	}
	return m
}

func (l *level) public() Level { return Level{l.min, l.mean(), l.max} }

// share is a over b, 0 if there is no b.
func share(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// metric is a figure that a goal can be about.
type metric struct {
	name, unit, text string
	of               func(*Result, *Goal) float64
}

func ofSummary(f func(*Summary) float64) func(*Result, *Goal) float64 {
	return func(r *Result, g *Goal) float64 { return f(r.window(g)) }
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

var metrics = []metric{
	{"goodput", "", "good answers over what the backend's capacity allows", ofSummary(func(s *Summary) float64 { return s.Ratio })},
	{"goodput_work", "", "the same by work: that of good answers over what the backend could have done", ofSummary(func(s *Summary) float64 { return s.WorkRatio })},
	{"served", "", "good answers over new requests", ofSummary(func(s *Summary) float64 { return share(float64(s.Good), float64(s.Offered)) })},
	{"p50", "ms", "median latency of admitted work", ofSummary(func(s *Summary) float64 { return millis(s.P50) })},
	{"p99", "ms", "99th percentile of it", ofSummary(func(s *Summary) float64 { return millis(s.P99) })},
	{"p999", "ms", "99.9th percentile of it", ofSummary(func(s *Summary) float64 { return millis(s.P999) })},
	{"refusal_p99", "ms", "99th percentile of the time until a refusal", ofSummary(func(s *Summary) float64 { return millis(s.RefusalP99) })},
	{"refused", "", "refusals over attempts", ofSummary(func(s *Summary) float64 { return s.RefusedShare })},
	{"late", "", "share of answers that came too late or to nobody", ofSummary(func(s *Summary) float64 { return s.LateShare })},
	{"wasted", "", "share of the backend's work that went into these", ofSummary(func(s *Summary) float64 { return s.WastedShare })},
	{"attempts", "", "attempts for each new request", ofSummary(func(s *Summary) float64 { return share(float64(s.Attempts), float64(s.Offered)) })},
	{"limit_min", "", "lowest limit", ofSummary(func(s *Summary) float64 { return s.Limit.Min })},
	{"limit_mean", "", "mean limit", ofSummary(func(s *Summary) float64 { return s.Limit.Mean })},
	{"limit_max", "", "highest limit", ofSummary(func(s *Summary) float64 { return s.Limit.Max })},
	{"inside_mean", "", "mean concurrency in the backend", ofSummary(func(s *Summary) float64 { return s.Inside.Mean })},
	{"inside_max", "", "highest concurrency in the backend", ofSummary(func(s *Summary) float64 { return s.Inside.Max })},
	{"over_limit", "", "the most by which an admission brought the backend over the limit", ofSummary(func(s *Summary) float64 { return s.OverLimit })},
	{"limit_rise", "", "highest limit of the stretch over the one it began with", (*Result).limitRise},
	{"settle", "s", "time from the start of the stretch until goodput holds the level (.95 by default) of offered load or capacity, whichever is less", (*Result).settle},
	{"calm", "s", "time from the start of the stretch until refusals stay below the level (.01 by default) of attempts", (*Result).calm},
	{"refill", "s", "time from the start of the stretch until a cache answers at least the level (.9 by default) of requests", (*Result).refill},
}

// Metrics returns the names a [Goal] can use, with what each means.
func Metrics() map[string]string {
	return texts(slices.Concat(metrics, between))
}

func texts(list []metric) map[string]string {
	m := make(map[string]string, len(list))
	for _, d := range list {
		m[d.name] = d.text
		if d.unit != "" {
			m[d.name] += ", " + d.unit
		}
	}
	return m
}

func findMetric(name string) *metric {
	for _, list := range [][]metric{metrics, between} {
		for i := range list {
			if list[i].name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// metric is what the goal is about, nil if there is no such thing.
func (g *Goal) metric() *metric {
	if g.Class != "" {
		return classMetric(g.Metric)
	}
	return findMetric(g.Metric)
}

// Settling is judged over windows that hold this many requests, so that chance
// moves them by a few per cent only, but over no less time than this.
const (
	settleRequests = 400
	settleWindow   = 200 * time.Millisecond
)

// settle finds the first moment from which on goodput holds its level, over a
// window and over the rest of the stretch. It is at most the length of the
// stretch, which also stands for never.
func (r *Result) settle(g *Goal) float64 {
	s := r.window(g)
	level := cmp.Or(g.Level, .95)
	target := math.Min(share(float64(s.Offered), (s.To-s.From).Seconds()), s.Capacity)
	return r.first(s, target, func(b *bin) float64 {
		return float64(b.good) - level*target*r.binWidth.Seconds()
	})
}

// calm finds the first moment from which on refusals stay below their level,
// over a window and over the rest of the stretch.
func (r *Result) calm(g *Goal) float64 {
	s := r.window(g)
	level := cmp.Or(g.Level, .01)
	rate := share(float64(s.Attempts), (s.To - s.From).Seconds())
	return r.first(s, rate, func(b *bin) float64 {
		return level*float64(b.attempts) - float64(b.refused)
	})
}

// refill finds the first moment from which on the cache answers its share.
func (r *Result) refill(g *Goal) float64 {
	s := r.window(g)
	level := cmp.Or(g.Level, .9)
	rate := share(float64(s.Offered+s.Hits), (s.To - s.From).Seconds())
	return r.first(s, rate, func(b *bin) float64 {
		return float64(b.hits) - level*float64(b.hits+b.offered)
	})
}

// limitRise compares the highest limit with that at the start of a stretch.
func (r *Result) limitRise(g *Goal) float64 {
	s := r.window(g)
	before := max(0, int(s.From/r.binWidth)-1)
	if before >= len(r.bins) {
		return 0
	}
	return share(s.Limit.Max, float64(r.bins[before].limit))
}

// first returns how long after the start of a stretch the surplus of its bins
// is no longer negative, summed over a window and summed over the rest.
func (r *Result) first(s *Summary, rate float64, surplus func(*bin) float64) float64 {
	from, to := int(s.From/r.binWidth), min(int(s.To/r.binWidth), len(r.bins))
	length := max(settleWindow, time.Duration(share(settleRequests, rate)*1e9))
	width := max(1, min(int(length/r.binWidth), to-from))
	sums := make([]float64, max(0, to-from)+1) // of the bins before
	for i := range to - from {
		sums[i+1] = sums[i] + surplus(&r.bins[from+i])
	}
	const rounding = 1e-6
	rest := sums[len(sums)-1]
	for i := 0; i+width < len(sums); i++ {
		if sums[i+width]-sums[i] >= -rounding && rest-sums[i] >= -rounding {
			return float64(i) * r.binWidth.Seconds()
		}
	}
	return (s.To - s.From).Seconds()
}
