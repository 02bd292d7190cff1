package policy

import (
	"fmt"
	"time"
)

// Bounds of a concurrency gate: far above what one process can use, and low
// enough that a slip of the finger cannot ask for terabytes.
const (
	maxLimit    = 1_000_000
	maxQueueLen = 1_000_000
)

// Defaults of control.AIMDConfig that other fields are compared with.
const (
	aimdMin, aimdMax = 1, 1000
	aimdMinWindow    = 10 * time.Millisecond
)

func (c *compiler) checkGate(name string) {
	at := place{"gates", name}
	g := c.spec.Gates[name]
	c.checkName(at, "gate", name)
	c.checkWord(at.at("mode"), "mode", string(g.Mode), modes)
	if g.Limit == nil {
		c.add(at, "the gate has no mechanism", "give it a limit, such as limit: {limit: 20}")
		return
	}
	c.checkLimit(at.at("limit"), g.Limit)
	c.checkQueue(at.at("limit", "queue"), &g.Limit.Queue)
}

func (c *compiler) checkLimit(at place, l *LimitSpec) {
	for _, f := range []struct {
		key   string
		value int64
	}{{"limit", l.Limit}, {"min", l.Min}, {"max", l.Max}} {
		switch {
		case f.value < 0:
			c.add(at.at(f.key), fmt.Sprintf("%d is negative", f.value), "write 1 or more slots")
		case f.value > maxLimit:
			c.add(at.at(f.key), fmt.Sprintf("%d slots is more than the %d a gate can have", f.value, maxLimit),
				fmt.Sprintf("write at most %d", maxLimit))
		}
	}
	if !c.checkWord(at.at("controller"), "controller", l.Controller, controllers) {
		return
	}
	switch l.Controller {
	case "aimd":
		c.checkAIMD(at, l)
	case "knee":
	default:
		c.checkFixed(at, l)
	}
}

func (c *compiler) checkFixed(at place, l *LimitSpec) {
	if l.Limit == 0 {
		c.add(at.at("limit"), "the controller fixed has no limit to keep",
			"write the number of slots, 1 or more, or choose a controller that finds it")
	}
	for _, f := range []struct {
		key string
		set bool
	}{
		{"min", l.Min != 0},
		{"max", l.Max != 0},
		{"threshold", l.Threshold != 0},
		{"percentile", l.Percentile != 0},
		{"backoff", l.Backoff != 0},
		{"window", l.Window != 0},
		{"min_samples", l.MinSamples != 0},
	} {
		if f.set {
			c.add(at.at(f.key), "means nothing to the controller fixed, whose limit does not move",
				"leave it out, or write controller: aimd")
		}
	}
}

func (c *compiler) checkAIMD(at place, l *LimitSpec) {
	low, high := orDefault(l.Min, aimdMin), orDefault(l.Max, aimdMax)
	switch {
	case low > 0 && high > 0 && low > high:
		key, note := "min", ""
		if l.Max == 0 {
			note = ", the default"
		}
		c.add(at.at(key), fmt.Sprintf("%d is above max (%d%s)", low, high, note),
			"write a min that is not above max, or a higher max")
	case l.Limit > 0 && low > 0 && high > 0 && (l.Limit < low || l.Limit > high):
		c.add(at.at("limit"), fmt.Sprintf("%d is not between min (%d) and max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	}
	if l.Threshold < 0 {
		c.add(at.at("threshold"), fmt.Sprintf("%v is negative", time.Duration(l.Threshold)),
			"write the latency above which a window counts as overloaded, such as 500ms")
	}
	if p := l.Percentile; p != 0 && !(p > 0 && p <= 1) {
		instead := "write a share above 0 and at most 1, such as 0.95"
		if p > 1 && p <= 100 {
			instead = fmt.Sprintf("write %g", p/100)
		}
		c.add(at.at("percentile"), fmt.Sprintf("%g is not a share in (0, 1]", p), instead)
	}
	if b := l.Backoff; b != 0 && !(b >= 0.5 && b < 1) {
		c.add(at.at("backoff"), fmt.Sprintf("%g is not in [0.5, 1)", b),
			"write what to multiply the limit by on overload, such as 0.9")
	}
	if w := time.Duration(l.Window); w != 0 && w < aimdMinWindow {
		c.add(at.at("window"), fmt.Sprintf("%v is too short to measure anything", w),
			fmt.Sprintf("write at least %v", aimdMinWindow))
	}
	if l.MinSamples < 0 {
		c.add(at.at("min_samples"), fmt.Sprintf("%d is negative", l.MinSamples), "write 1 or more outcomes")
	}
}

func (c *compiler) checkQueue(at place, q *QueueSpec) {
	switch {
	case q.Len < -1:
		c.add(at.at("len"), fmt.Sprintf("%d is negative", q.Len),
			"write how many may wait, or -1 for a gate where nothing waits")
	case q.Len > maxQueueLen:
		c.add(at.at("len"), fmt.Sprintf("room for %d is more than the %d a gate can have", q.Len, maxQueueLen),
			fmt.Sprintf("write at most %d", maxQueueLen))
	}
	if q.MaxWait < 0 && q.MaxWait != NoDuration {
		c.add(at.at("max_wait"), fmt.Sprintf("%v is negative", time.Duration(q.MaxWait)),
			"write the longest wait, such as 500ms, or -1 for none but the deadline of the work")
	}
	c.checkWord(at.at("order"), "order", q.Order, orders)
}

func orDefault(value, def int64) int64 {
	if value == 0 {
		return def
	}
	return value
}

// ceiling is the highest limit a gate can ever have, 0 if the spec does not say.
func (l *LimitSpec) ceiling() int64 {
	if l.Controller == "aimd" {
		return orDefault(l.Max, aimdMax)
	}
	return l.Limit
}
