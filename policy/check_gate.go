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

func (c *compiler) checkGate(name string) {
	at := place{"gates", name}
	g := c.spec.Gates[name]
	c.checkName(at, "gate", name)
	c.checkWord(at.at("mode"), "mode", string(g.Mode), modes)
	if g.Limit == nil {
		c.add(at, "the gate has no mechanism", "write limit: {limit: 20}, or limit: {} for one that is found by itself")
		return
	}
	c.checkLimit(at.at("limit"), g.Limit)
	c.checkQueue(at.at("limit", "queue"), &g.Limit.Queue)
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
