package demo

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/gateway/internal/loadgen"
)

// The load, as multiples of the upstream's capacity. The last step shows who
// recovers.
var steps = []float64{0.5, 0.9, 2, 3, 0.5}

// second is what became of the requests that were due in one second, on both
// sides.
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
	return s.with.Void() || s.without.Void() || s.unborn(&s.with)+s.unborn(&s.without) > 0
}

// behind is the share of requests that left too late, on the worse side.
func (s *second) behind() float64 {
	return max(s.with.Behind(), s.without.Behind(), s.unborn(&s.with), s.unborn(&s.without))
}

// unborn is the share of requests that a generator which stood still had not come
// to when the account was closed; 0 if as many were offered as chance allows.
func (s *second) unborn(t *loadgen.Tally) float64 {
	offered := float64(t.Offered)
	if offered >= max(min(1, s.due), s.due-6*math.Sqrt(s.due)) {
		return 0
	}
	return 1 - offered/s.due
}

// account adds seconds up by step of the load.
type account struct {
	capacity float64
	patience time.Duration
	steps    []stepAccount
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
		st.void++
		return
	}
	st.seconds++
	st.limit = s.limit
	st.with.Add(&s.with)
	st.without.Add(&s.without)
}

// side is one side's figures over some seconds, as they are shown.
type side struct {
	offered, goodput float64 // a second
	ofCapacity       float64 // goodput over capacity, in percent
	refused, gaveUp  float64 // percent of offered
	failed           int64
	p99              string
}

func (a *account) side(t *loadgen.Tally, seconds int) side {
	s := side{p99: "-", failed: t.Failed}
	if seconds == 0 || t.Offered == 0 {
		return s
	}
	s.offered = float64(t.Offered) / float64(seconds)
	s.goodput = float64(t.OK) / float64(seconds)
	s.ofCapacity = 100 * s.goodput / a.capacity
	s.refused = 100 * float64(t.Refused) / float64(t.Offered)
	s.gaveUp = 100 * float64(t.GaveUp) / float64(t.Offered)
	s.p99 = a.quantile(&t.Admitted, .99)
	return s
}

// quantile shows a latency; those who gave up waited for longer than their
// patience, nobody knows how much.
func (a *account) quantile(h *loadgen.Histogram, q float64) string {
	switch d := h.Quantile(q); {
	case d == 0:
		return "-"
	case d >= a.patience:
		return fmt.Sprintf(">%d ms", a.patience.Milliseconds())
	default:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
}

// voided counts the seconds that do not count, and all.
func (a *account) voided() (void, all int) {
	for i := range a.steps {
		void += a.steps[i].void
		all += a.steps[i].void + a.steps[i].seconds
	}
	return void, all
}
