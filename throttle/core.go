package throttle

import (
	"time"

	"github.com/weir-go/weir"
)

// bins is the number of parts of a window. The newest tenth also has a window of its own.
const (
	bins  = 100
	tenth = 10
)

// The counts of each class of priority. Requests are both together.
const (
	accepted = iota
	refused  // by the server, or by the throttle itself
	kinds
)

// core is a throttle without a clock, a lock or a source of random numbers.
type core struct {
	window     window
	recent     window // the newest tenth
	run        int    // requests that the server has accepted since its last refusal
	k, padding float64
	silent     [weir.Classes]float64 // the part of the work sent lately whose end says nothing of the server
}

// silentOver is over how many ends silent is a mean.
const silentOver = 16

func newCore(cfg *Config, bins int) core {
	return core{
		window: newWindow(cfg.Window, bins, weir.Classes*kinds),
		recent: newWindow(cfg.Window/tenth, max(1, bins/tenth), weir.Classes*kinds),
		k:      cfg.K, padding: cfg.Padding,
	}
}

// decide reports whether work of a class is sent, given a random number from 0 up to 1. Work that is not sent
// counts as a refused request, if it counts. Otherwise the window of a client that sends little would soon have
// accepted requests only.
//
// If most callers leave before their answer, or ask for an upgrade, few results are left to outweigh the throttle's own
// refusals. It would refuse for ever where fewer than one in K has a result. So the refusals count less often there.
// An overloaded server gets K times what it takes. Even if all the rest leaves, one in K has a result, and they count in full.
func (c *core) decide(now time.Duration, class int, random float64, counts bool) (share float64, sent bool) {
	c.advance(now)
	share = c.share(class)
	if share <= random {
		return share, true
	}
	if counts && random < share*c.k*(1-c.silent[class]) { // random is below share, so this is a draw of its own
		c.add(now, kinds*class+refused)
	}
	return share, false
}

func (c *core) advance(now time.Duration) {
	c.window.advance(now)
	c.recent.advance(now)
}

func (c *core) add(now time.Duration, kind int) {
	c.window.add(now, kind)
	c.recent.add(now, kind)
}

// record counts the result of work that was sent, when it ends.
func (c *core) record(now time.Duration, class, result int) {
	c.add(now, kinds*class+result)
	if c.run++; result == refused {
		c.run = 0
	}
}

// hear notes that work that was sent has ended, and whether its end says nothing of the server.
func (c *core) hear(class int, silent float64) {
	c.silent[class] += (silent - c.silent[class]) / silentOver
}

// count returns the requests of a class in a window, and how many of them were accepted.
func (w *window) count(class int) (requests, accepts float64) {
	accepts = float64(w.sums[kinds*class+accepted])
	return accepts + float64(w.sums[kinds*class+refused]), accepts
}

// share is the probability that work of a class is refused here. As a rule the whole window decides. The newest
// tenth decides if its share is smaller, and if the server has just accepted half of Padding in a row.
//
// After an outage the whole window is full of the throttle's own refusals. By the whole window, the requests
// sent grow by the factor e every half window. By the newest tenth, they grow ten times as fast. A server that
// refuses half of the requests seldom accepts four in a row, so this rule hardly ever applies to it
// (TestSendsKTimesWhatIsTaken, TestRecoversFromAnOutage).
func (c *core) share(class int) float64 {
	share := c.shareBy(&c.window, class, c.padding)
	if share > 0 && 2*float64(c.run) >= c.padding {
		share = min(share, c.shareBy(&c.recent, class, c.padding/tenth))
	}
	return share
}

// shareBy is the share by the counts of one window.
//
// The excess of a class is its requests less K times those accepted. With one class, the share is the excess
// divided by the requests. With several classes, the excess of all is taken from the lowest class first, as far
// as its requests go, then from the next. No class has a smaller share than a higher class. So if the server
// refuses without regard to priority, the lower classes make room for the higher ones. If it refuses low
// classes only, high classes are not affected.
func (c *core) shareBy(w *window, class int, padding float64) float64 {
	var excess float64
	var asked [weir.Classes]float64
	for i := range asked {
		requests, accepts := w.count(i)
		asked[i] = requests
		excess += max(0, requests-float64(c.k*accepts))
	}
	if excess == 0 {
		return 0
	}
	var share float64
	for i := range asked {
		taken := min(excess, asked[i])
		excess -= taken
		if i >= class {
			share = max(share, taken/(asked[i]+padding))
		}
	}
	return share
}
