package quota

import "time"

// Decide does t on windows that hold these tokens at this time, one window for
// each limit, and leaves in tokens what they hold afterwards. It is for a [Store]
// whose buckets are elsewhere: it says of them what [Memory] would.
func (t *Take) Decide(tokens []float64, now time.Time) Result {
	var room [MaxWindows]bucket
	buckets := room[:len(t.Limits)]
	for i := range buckets {
		buckets[i].tokens = tokens[i]
	}
	r := t.decide(buckets, moment{epoch: now})
	for i := range buckets {
		tokens[i] = buckets[i].tokens
	}
	return r
}
