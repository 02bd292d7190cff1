package policy

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir/limit"
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
	if g.Each != nil {
		c.checkEach(at.at("each"), &g)
	}
	if g.Shed != nil {
		c.checkShed(at.at("shed"), g.Shed)
	}
	if g.Quota != nil {
		c.checkQuota(at.at("quota"), g.Quota)
	}
	switch {
	case g.Quota != nil && (g.Limit != nil || g.Shed != nil):
		c.add(at.at("quota"), "the gate has a limit or sheds too", "write two gates, and name the one with the quota first in the routes")
	case g.Quota != nil:
		return
	case g.Shed != nil && g.Limit != nil:
		c.add(at.at("shed"), "the gate has a limit too", "write two gates, and name the one that sheds first in the routes")
	case g.Shed != nil:
		return
	case g.Limit == nil:
		if g.Each == nil {
			c.add(at, "the gate has no mechanism", "write limit: {limit: 20}, or limit: {} for one that is found by itself")
		}
		return
	}
	c.checkLimit(at.at("limit"), g.Limit)
	c.checkPair(at, &g)
	if e := g.Limit.Exempt; e < -1 || e > maxLimit {
		c.add(at.at("limit", "exempt"), fmt.Sprintf("%d is no bound", e),
			fmt.Sprintf("write how much exempt work there may be at once, at most %d, or -1 for none", maxLimit))
	}
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
	c.checkClassShares(at.at("shares"), q.Shares)
	c.checkWeights(at.at("weights", "users"), "user", q.Weights.Users)
	c.checkWeights(at.at("weights", "tenants"), "tenant", q.Weights.Tenants)
}

// checkClassShares checks what priorities are promised.
func (c *compiler) checkClassShares(at place, shares map[string]float64) {
	sum := 0.0
	for _, class := range slices.Sorted(maps.Keys(shares)) {
		share := shares[class]
		if !slices.Contains(priorities, class) {
			c.add(at.at(class), fmt.Sprintf("%q is no priority", class), suggest(class, priorities, "priorities"))
		}
		if !(share >= 0 && share <= 1) {
			c.add(at.at(class), fmt.Sprintf("%g is no share", share), shareInstead(share, "write a share from 0 to 1, such as 0.05"))
			continue
		}
		sum += share
	}
	if sum > 1+1e-9 { // 0.7, 0.2 and 0.1 add up to a little more than 1
		c.add(at, fmt.Sprintf("the shares are %.4g together", sum), "write shares that are no more than 1 together")
	}
}

// shareInstead is what to write in the place of what is no share. Above 2 it can only be
// meant in percent; just above 1 it may be that, or too much.
func shareInstead(share float64, usual string) string {
	switch {
	case share > 1 && share < 2:
		return fmt.Sprintf("write 1 for all, or %g for %g %%", share/100, share)
	case share >= 2 && share <= 100:
		return fmt.Sprintf("write %g", share/100)
	}
	return usual
}

// mostWeights bounds those of a gate: a list that people write.
const mostWeights = 10_000

func (c *compiler) checkWeights(at place, who string, weights map[string]float64) {
	if len(weights) > mostWeights {
		c.add(at, fmt.Sprintf("weights of %d %ss", len(weights), who), fmt.Sprintf("write at most %d", mostWeights))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if bounded(name) != name {
			c.add(at.at(name), fmt.Sprintf("no %s has this name: longer ones, and such with signs that cannot be printed, are told apart by a hash", who),
				fmt.Sprintf("write %q", bounded(name)))
		}
		if w := weights[name]; !(w >= limit.MinWeight && w <= limit.MaxWeight) {
			c.add(at.at(name), fmt.Sprintf("the weight %g is out of range", w),
				fmt.Sprintf("write a number from %g to %.0f; who is not named has 1", limit.MinWeight, float64(limit.MaxWeight)))
		}
	}
}
