package loadgen

import (
	"sync"
	"time"
)

// VoidAbove is the share of late and unsent requests above which a second says
// more about the generator than about what it measures.
const VoidAbove = 0.02

// Tally is the account of the requests that were due in some stretch of time.
// Once all have ended, Offered = OK + Refused + Failed + GaveUp + Unsent.
type Tally struct {
	Offered int64
	OK      int64 // answered within the client's patience: the goodput
	Refused int64
	Failed  int64
	GaveUp  int64
	Unsent  int64 // never left: too many were open already

	LateSends int64 // left later than LateAfter allows

	// Admitted holds the latencies of OK, Failed and GaveUp requests, from the
	// moment they were due; GaveUp counts with the client's whole patience.
	Admitted Histogram
}

// Add adds the account o to t.
func (t *Tally) Add(o *Tally) {
	t.Offered += o.Offered
	t.OK += o.OK
	t.Refused += o.Refused
	t.Failed += o.Failed
	t.GaveUp += o.GaveUp
	t.Unsent += o.Unsent
	t.LateSends += o.LateSends
	t.Admitted.Add(&o.Admitted)
}

// Open counts the requests that have not ended yet.
func (t *Tally) Open() int64 {
	return t.Offered - t.OK - t.Refused - t.Failed - t.GaveUp - t.Unsent
}

// Void reports whether the generator fell behind so far that the figures mean
// nothing.
func (t *Tally) Void() bool { return t.Behind() > VoidAbove }

// Behind is the share of the requests that left too late or not at all.
func (t *Tally) Behind() float64 {
	return float64(t.LateSends+t.Unsent) / float64(max(1, t.Offered))
}

// Meter keeps the account of a load, second by second. It is safe for
// concurrent use.
type Meter struct {
	done chan struct{}

	mu      sync.Mutex
	seconds []Tally
}

// Done is closed when the load has ended and every request with it.
func (m *Meter) Done() <-chan struct{} { return m.done }

// Seconds is the number of seconds the load lasts, rounded up.
func (m *Meter) Seconds() int { return len(m.seconds) }

// Second returns the account of the requests that were due in second i, from 0.
// It is final once the clients' patience has passed after the second's end.
func (m *Meter) Second(i int) Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seconds[i]
}

func (m *Meter) sent(due time.Duration, late bool) {
	m.update(due, func(t *Tally) {
		t.Offered++
		if late {
			t.LateSends++
		}
	})
}

func (m *Meter) unsent(due time.Duration) {
	m.update(due, func(t *Tally) {
		t.Offered++
		t.Unsent++
	})
}

func (m *Meter) ended(due time.Duration, a Answer, latency time.Duration) {
	m.update(due, func(t *Tally) {
		switch a {
		case OK:
			t.OK++
		case Refused:
			t.Refused++
			return
		case Failed:
			t.Failed++
		case GaveUp:
			t.GaveUp++
		}
		t.Admitted.Record(latency)
	})
}

func (m *Meter) update(due time.Duration, f func(*Tally)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.seconds[due/time.Second])
}
