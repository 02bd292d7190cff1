package loadgen

import (
	"math/bits"
	"time"
)

// Histogram counts latencies in buckets whose width grows with their value:
// 32 to each doubling, so that a quantile is at most 1/32 too high. It covers
// 1 µs to about a minute; longer ones count as the longest. The zero value is
// empty. It is not safe for concurrent use.
type Histogram struct {
	counts [buckets]uint32
	total  uint64
}

const (
	subBits = 5
	subs    = 1 << subBits
	octaves = 22
	buckets = octaves * subs
)

// Record counts one latency.
func (h *Histogram) Record(d time.Duration) {
	h.counts[bucket(d)]++
	h.total++
}

// Add counts all that o has counted.
func (h *Histogram) Add(o *Histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// Count is the number of latencies recorded.
func (h *Histogram) Count() uint64 { return h.total }

// Quantile returns a latency that the share q of all does not exceed, 0 if
// there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := max(1, uint64(q*float64(h.total)+0.5))
	var seen uint64
	for i, n := range h.counts {
		if seen += uint64(n); seen >= rank {
			return upper(i)
		}
	}
	return upper(buckets - 1)
}

// bucket finds the bucket of d. The first 2·subs buckets are a microsecond
// wide; from there on each doubling has subs of them.
func bucket(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	shift := max(0, bits.Len64(us)-subBits-1)
	return min(shift<<subBits+int(us>>shift), buckets-1)
}

// upper is the end of bucket i.
func upper(i int) time.Duration {
	shift := max(0, i>>subBits-1)
	us := uint64(i-shift<<subBits) + 1
	return time.Duration(us<<shift) * time.Microsecond
}
