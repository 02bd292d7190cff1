package room

import "time"

// Service estimates the median time that work takes, from admission to answer.
// Each sample moves the estimate by a twentieth towards itself, which settles
// where half of the samples are above and half below.
type Service struct {
	estimate time.Duration
	samples  int // up to serviceMin
}

// serviceMin is how many samples make an estimate: fewer are a guess.
const serviceMin = 8

// Add takes a sample, which is not negative. Whether it is above or below is as
// good as tossed, and a processor that guesses wrong loses more time than all of
// this takes: so there is no branch.
func (s *Service) Add(sample time.Duration) {
	if s.samples < serviceMin {
		if s.samples++; s.samples == 1 {
			s.estimate = sample
		}
	}
	step := time.Duration(uint64(s.estimate)/20) + 1
	above, below := (s.estimate-sample)>>63, (sample-s.estimate)>>63 // all bits, or none
	s.estimate += step&above - step&below
}

// Median returns the estimate, 0 while there is none.
func (s *Service) Median() time.Duration {
	if s.samples < serviceMin {
		return 0
	}
	return s.estimate
}
