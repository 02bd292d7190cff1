package keyed

import "time"

// service estimates the median time that work takes. Each sample moves the
// estimate by a twentieth towards itself, which settles where half of the samples
// are above and half below.
type service struct {
	estimate time.Duration
	samples  int // up to serviceMin
}

// serviceMin is how many samples make an estimate.
const serviceMin = 8

func (s *service) add(sample time.Duration) {
	if s.samples < serviceMin {
		if s.samples++; s.samples == 1 {
			s.estimate = sample
		}
	}
	step := s.estimate/20 + 1
	switch {
	case sample > s.estimate:
		s.estimate += step
	case sample < s.estimate:
		s.estimate -= step
	}
}

// median returns the estimate, 0 while there is none.
func (s *service) median() time.Duration {
	if s.samples < serviceMin {
		return 0
	}
	return s.estimate
}
