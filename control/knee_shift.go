package control

import (
	"math"
	"time"
)

// shift looks for sudden changes of the backend: a level of ln(n/W), which by
// Little's law is throughput, that the last two windows have both left on the
// same side.
type shift struct {
	level   float64
	known   bool
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

func (s *shift) broken() { s.known, s.streak = false, 0 }

// observe takes the next value, and reports a shift: -1 slower, +1 faster.
func (s *shift) observe(value, scatter float64) int {
	if !s.known {
		s.level, s.known = value, true
	}
	switch off := value - s.level; {
	case math.Abs(off) <= offLevel+scatter:
		s.streak = 0
		s.level += levelGain * off
	case off > 0:
		s.streak = max(0, s.streak) + 1
	default:
		s.streak = min(0, s.streak) - 1
	}
	if s.streak > -2 && s.streak < 2 {
		return 0
	}
	direction := s.streak / 2
	s.level, s.streak = value, 0
	return direction
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
	direction := k.shift.observe(one.lnN/one.n-math.Log(one.cost/one.n), math.Sqrt(k.gap.noise/one.n))
	if direction == 0 {
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

// yield counts what became of work, over enough of it to judge.
type yield struct {
	good, bad int64
	cuts      int  // in a row
	out       bool // nothing at all was good
}

// The constants of a cut: how much has to have finished, by how much the limit is
// cut in ln, how often in a row while some of it is good.
const (
	cutCount = 8
	cutBy    = 0.35
	mostCuts = 4
)

// cut lowers the limit while most of what finishes is of no use, and returns why,
// empty if it does not. When good answers come back after there were none, it
// climbs.
func (k *Knee) cut(w *Window) string {
	y := &k.yield
	y.good += w.OK
	y.bad += w.Dropped()
	total := y.good + y.bad
	if total < cutCount {
		return ""
	}
	good, bad := y.good, y.bad
	y.good, y.bad = 0, 0
	switch {
	case good > total*7/10:
		out := y.out
		y.cuts, y.out = 0, false
		if out && k.mode == tracking {
			k.mode, k.climb = climbing, climb{}
			return "good answers again"
		}
		return ""
	case good > 0 && (bad <= total/2 || y.cuts >= mostCuts):
		return ""
	}
	k.remember(w.Now)
	y.cuts++
	y.out = y.out || good == 0
	k.at -= cutBy
	k.gap.reopen()
	k.shift.broken()
	k.restart(w.Now)
	if good == 0 {
		return "nothing that finished was of use"
	}
	return "less than half of what finished was of use"
}
