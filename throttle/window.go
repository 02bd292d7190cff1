package throttle

import "time"

// window counts what happened lately: several kinds of events, in bins of equal width. An event leaves the sums
// with its bin: after between bins-1 and bins times the width. Nearly every event belongs in the newest bin, so
// that bin is kept at hand: to find one takes three divisions.
type window struct {
	width  time.Duration // of a bin
	kinds  int
	bins   []uint32      // a ring; the kinds of one bin are adjacent
	sums   []uint64      // by kind
	head   int64         // the number of the newest bin, counted from time 0
	newest []uint32      // that bin
	full   time.Duration // when it ends
}

func newWindow(length time.Duration, bins, kinds int) window {
	w := window{
		width: max(1, length/time.Duration(bins)), kinds: kinds,
		bins: make([]uint32, bins*kinds), sums: make([]uint64, kinds),
	}
	w.begin(0)
	return w
}

// begin makes a bin the newest. What the ring has in its place must have left the sums.
func (w *window) begin(number int64) {
	w.head, w.newest, w.full = number, w.bin(number), time.Duration(number+1)*w.width
	clear(w.newest)
}

// advance makes now the newest moment. Time that goes backwards counts as no time: events then count in the
// newest bin.
func (w *window) advance(now time.Duration) {
	if now < w.full {
		return
	}
	to := int64(now / w.width)
	if to-w.head >= w.len() {
		w.forget()
		w.begin(to)
		return
	}
	for w.head < to {
		for kind, n := range w.bin(w.head + 1) {
			w.sums[kind] -= uint64(n)
		}
		w.begin(w.head + 1)
	}
}

// add counts one event and returns the bin that it is in.
func (w *window) add(now time.Duration, kind int) (bin int64) {
	w.advance(now)
	w.newest[kind]++
	w.sums[kind]++
	return w.head
}

// remove removes an event that add has counted in a bin. It does nothing if the bin has left the window.
func (w *window) remove(now time.Duration, kind int, bin int64) {
	w.advance(now)
	if bin > w.head || w.head-bin >= w.len() || w.bin(bin)[kind] == 0 {
		return
	}
	w.bin(bin)[kind]--
	w.sums[kind]--
}

func (w *window) len() int64 { return int64(len(w.bins) / w.kinds) }

func (w *window) bin(number int64) []uint32 {
	i := int(number%w.len()) * w.kinds
	return w.bins[i : i+w.kinds]
}

// forget drops all that was counted.
func (w *window) forget() {
	clear(w.bins)
	clear(w.sums)
}
