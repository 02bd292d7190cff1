package signal

import (
	"slices"
	"time"
)

// span takes the growth of two counters over a sliding span of time, however
// often they are read: a reading is compared with the youngest one that is at
// least that old, or with the oldest there is.
type span struct {
	over  time.Duration
	marks []mark // oldest first
}

type mark struct {
	at   time.Time
	a, b uint64
}

// marksASpan bounds what a span remembers.
const marksASpan = 32

// growth is what the counters grew by.
type growth struct {
	elapsed time.Duration
	a, b    float64
}

// next takes a reading and returns the growth up to it, or ErrNoValue if there
// is nothing to compare it with: it is the first, no time has passed, or a
// counter went backwards (the process moved to another group), which starts
// afresh.
func (s *span) next(at time.Time, a, b uint64) (growth, error) {
	now := mark{at, a, b}
	if n := len(s.marks); n > 0 {
		if last := s.marks[n-1]; a < last.a || b < last.b || at.Before(last.at) {
			s.marks = s.marks[:0]
		}
	}
	if len(s.marks) == 0 {
		s.marks = append(s.marks, now)
		return growth{}, ErrNoValue
	}
	old := 0
	for old+1 < len(s.marks) && at.Sub(s.marks[old+1].at) >= s.over {
		old++
	}
	s.marks = slices.Delete(s.marks, 0, old)
	base, last := s.marks[0], s.marks[len(s.marks)-1]
	elapsed := at.Sub(base.at)
	if elapsed <= 0 {
		return growth{}, ErrNoValue
	}
	if at.Sub(last.at) >= s.over/marksASpan {
		s.marks = append(s.marks, now)
	}
	return growth{elapsed, float64(a - base.a), float64(b - base.b)}, nil
}
