package sim

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets that are a fixed share of their value
// wide: 1/2^precision. Its size is bounded whatever it is given.
type histogram struct {
	precision uint
	counts    []uint32
	total     uint64
}

func newHistogram(precision uint) histogram { return histogram{precision: precision} }

// bucket: values below 2^precision have one each; above that, each doubling
// has 2^precision.
func (h *histogram) bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 1<<h.precision {
		return int(v)
	}
	shift := uint(bits.Len64(v)) - h.precision - 1
	return int(shift+1)<<h.precision + int(v>>shift) - 1<<h.precision
}

// value is the middle of a bucket.
func (h *histogram) value(bucket int) time.Duration {
	if bucket < 1<<h.precision {
		return time.Duration(bucket)
	}
	shift := uint(bucket>>h.precision) - 1
	low := uint64(bucket&(1<<h.precision-1)|1<<h.precision) << shift
	return time.Duration(low + (uint64(1)<<shift)/2)
}

func (h *histogram) add(d time.Duration) {
	i := h.bucket(d)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint32, i+1-len(h.counts))...)
	}
	h.counts[i]++
	h.total++
}

// quantile returns the p-quantile by rank, 0 for an empty histogram.
func (h *histogram) quantile(p float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := min(uint64(p*float64(h.total)), h.total-1)
	for i, n := range h.counts {
		if uint64(n) > rank {
			return h.value(i)
		}
		rank -= uint64(n)
	}
	return h.value(len(h.counts) - 1)
}

func (h *histogram) reset() {
	clear(h.counts)
	h.total = 0
}
