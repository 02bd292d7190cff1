// Package hist counts durations: in the simulator, the demo and the benchmarks.
package hist

import (
	"math/bits"
	"slices"
	"time"
)

// Histogram counts durations in buckets. A bucket's width is a fixed share of
// its value, so the size is bounded. The zero value has buckets of 1/32. It is
// not safe for concurrent use.
type Histogram struct {
	precision uint
	counts    []uint32
	total     uint64
}

// New returns a histogram with buckets of 1/2^precision of their value.
func New(precision uint) Histogram { return Histogram{precision: precision} }

// Record counts one duration; what is below 0 counts as 0.
func (h *Histogram) Record(d time.Duration) {
	i := h.bucket(d)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint32, i+1-len(h.counts))...)
	}
	h.counts[i]++
	h.total++
}

// bucket returns the number of a duration's bucket. Values below 2^precision
// have a bucket each; above that, each doubling has 2^precision of them.
func (h *Histogram) bucket(d time.Duration) int {
	if h.precision == 0 {
		h.precision = 5
	}
	v := uint64(max(d, 0))
	if v < 1<<h.precision {
		return int(v)
	}
	shift := uint(bits.Len64(v)) - h.precision - 1
	return int(shift+1)<<h.precision + int(v>>shift) - 1<<h.precision
}

// Count returns the number of durations recorded.
func (h *Histogram) Count() uint64 { return h.total }

// Quantile returns the q-quantile by rank, or 0 for an empty histogram. It is
// the middle of a bucket, so at most half a bucket's width off.
func (h *Histogram) Quantile(q float64) time.Duration {
	low, width := h.quantile(q)
	return low + width/2
}

// Bound returns a duration that the share q of all does not exceed: the end of
// the quantile's bucket. It is 0 for an empty histogram.
func (h *Histogram) Bound(q float64) time.Duration {
	low, width := h.quantile(q)
	return low + width
}

// quantile returns the bucket of the q-quantile: its start and its width.
func (h *Histogram) quantile(q float64) (low, width time.Duration) {
	if h.total == 0 {
		return 0, 0
	}
	i, rank := 0, min(uint64(q*float64(h.total)), h.total-1)
	for ; uint64(h.counts[i]) <= rank; i++ {
		rank -= uint64(h.counts[i])
	}
	if i < 1<<h.precision {
		return time.Duration(i), 0
	}
	shift := uint(i>>h.precision) - 1
	return time.Duration(uint64(i&(1<<h.precision-1)|1<<h.precision) << shift), 1 << shift
}

// Add counts all that o has counted. Both must have the same precision.
func (h *Histogram) Add(o *Histogram) {
	h.precision = max(h.precision, o.precision)
	if extra := len(o.counts) - len(h.counts); extra > 0 {
		h.counts = append(h.counts, make([]uint32, extra)...)
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// Clone returns a copy that shares nothing with h.
func (h *Histogram) Clone() Histogram {
	return Histogram{h.precision, slices.Clone(h.counts), h.total}
}

// Reset forgets everything and keeps the memory.
func (h *Histogram) Reset() {
	clear(h.counts)
	h.total = 0
}
