package control

import (
	"math"
	"time"
)

// shift looks for sudden changes of the backend: a level of ln(n/W), which by
// Little's law is throughput, that the last two windows have both left on the
// same side.
type shift struct {
	level   [2]float64 // in the lower arm, in the upper one
	known   [2]bool
	streak  int // windows off the level in a row, below zero for slower
	before  float64
	beforeT time.Duration
}

// The constants: what counts as off the level, besides the scatter; how fast the
// level follows; how long it is remembered where the limit was.
const (
	offLevel   = 0.25
	levelGain  = 0.3
	shiftCount = 8
	remembered = 5 * time.Minute
)

// broken forgets the levels, because what comes next is not comparable.
func (s *shift) broken() { s.known, s.streak = [2]bool{}, 0 }

// observe takes the next value in the lower arm (0) or the upper one (1), and
// reports a shift: -1 slower, +1 faster.
func (s *shift) observe(side int, value, scatter float64) int {
	if !s.known[side] {
		s.level[side], s.known[side] = value, true
	}
	off := value - s.level[side]
	switch {
	case math.Abs(off) <= offLevel+scatter:
		s.streak = 0
		s.level[side] += levelGain * off
	case off > 0:
		s.streak = max(0, s.streak) + 1
	default:
		s.streak = min(0, s.streak) - 1
	}
	if s.streak > -2 && s.streak < 2 {
		return 0
	}
	direction := s.streak / 2
	s.broken()
	s.level[side], s.known[side] = value, true
	return direction
}

// move takes along what is expected to change.
func (s *shift) move(by float64) {
	s.level[0] += by
	s.level[1] += by
}

// shifted starts the comparison afresh after a sudden change, and returns what
// it was, empty if there was none. Where the limit was before the backend became
// slower is the first guess when it becomes faster.
func (k *Knee) shifted(w *Window) string {
	if len(w.Samples) < shiftCount {
		return ""
	}
	var one arm
	for _, s := range w.Samples {
		one.add(s, clipAt*k.mid)
	}
	side := 0
	if k.high {
		side = 1
	}
	throughput := one.lnN/one.n - math.Log(one.cost/one.n)
	direction := k.shift.observe(side, throughput, math.Sqrt(k.gap.noise/one.n))
	if direction == 0 || direction > 0 && one.good < one.n/2 { // failing fast is no faster backend
		return ""
	}
	k.restart(w.Now)
	k.gap.reopen()
	if direction < 0 {
		k.remember(w.Now)
		return "the backend became slower"
	}
	if k.shift.before > k.at && w.Now-k.shift.beforeT < remembered {
		k.at = k.shift.before
	}
	k.shift.before = 0
	return "the backend became faster"
}

func (k *Knee) remember(now time.Duration) {
	if k.at >= k.shift.before || now-k.shift.beforeT >= remembered {
		k.shift.before, k.shift.beforeT = k.at, now
	}
}
