package control

import (
	"fmt"
	"math"
)

// lagReader reads lag out of a window's readings, and says what is to be done
// while it is unknown.
type lagReader struct {
	signal  string // empty: the first reading
	hold    int    // intervals for which unknown lag leaves the limit; negative: none
	safe    int64  // the limit after that
	unknown int    // intervals in a row
}

func (l lagReader) check(f *faults, low, high int64) {
	f.check(l.hold >= -1, "Hold %d: must be at least 1, or -1 for none", l.hold)
	f.check(l.safe >= low && l.safe <= high, "Safe %d: must be from Min %d to Max %d", l.safe, low, high)
}

// read returns the lag and the name of the signal, and whether it is known.
// Negative lag is 0: somebody has committed beyond the end.
func (l *lagReader) read(w *Window) (lag float64, name string, known bool) {
	for _, r := range w.Readings {
		if l.signal != "" && r.Name != l.signal {
			continue
		}
		known = r.Known && !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0)
		if known {
			l.unknown = 0
		}
		return max(0, r.Value), r.Name, known
	}
	return 0, l.signal, false
}

// without returns the limit to take for want of a reading, and why.
func (l *lagReader) without(limit float64) (float64, string) {
	if l.unknown < l.hold {
		l.unknown++
		return limit, fmt.Sprintf("lag unknown for %d of %d intervals: held", l.unknown, l.hold)
	}
	return float64(l.safe), fmt.Sprintf("lag unknown for more than %d intervals: safe limit %d", max(0, l.hold), l.safe)
}
