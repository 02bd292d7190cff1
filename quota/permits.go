package quota

import (
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// berth is a slot with what the gate keeps of its present holder, guarded by the
// pool's lock.
type berth struct {
	weir.Slot
	charge charge
	start  time.Duration // if somebody is told how long work takes
	next   uint32        // on the free list: the next berth's id, plus 1
}

// pool is a part of the permits that are out. There are as many berths as were
// ever in use at a time.
type pool struct {
	gate   *Quota
	common weir.Slots // attention stays raised: every release comes here

	mu       sync.Mutex // guards what follows
	chunks   [][]berth
	free     uint32 // the first one's id, plus 1
	inFlight int64
	issued   uint64
	outcomes [numOutcomes]uint64
}

const (
	poolCount  = 8
	berthChunk = 64
)

// numOutcomes is room for every weir.Outcome.
const numOutcomes = 8

var (
	_ weir.Holder     = (*pool)(nil)
	_ weir.CostHolder = (*pool)(nil)
)

func (p *pool) init(q *Quota) {
	p.gate = q
	p.common.Attention.Store(1)
}

// issue hands out a permit for what has been charged.
func (q *Quota) issue(c *charge, set *settings) weir.Permit {
	var start time.Duration
	if set.hooks.Done != nil {
		start = q.now()
	}
	p := &q.pools[c.hash%poolCount]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		p.grow()
	}
	b := p.berth(p.free - 1)
	p.free = b.next
	b.charge, b.start = *c, start
	p.inFlight++
	p.issued++
	return b.Issue()
}

func (p *pool) grow() {
	chunk := make([]berth, berthChunk)
	from := uint32(len(p.chunks) * berthChunk)
	p.chunks = append(p.chunks, chunk)
	for i := range chunk {
		b := &chunk[i]
		b.Init(p, &p.common, from+uint32(i))
		b.next, p.free = p.free, b.ID()+1
	}
}

func (p *pool) berth(id uint32) *berth { return &p.chunks[id/berthChunk][id%berthChunk] }

// end takes back a permit; ok is false if it is not live.
func (p *pool) end(permit weir.Permit) (c charge, start time.Duration, sampled, ok bool) {
	s := permit.Slot()
	live, sampled := s.Recall(permit)
	if !live {
		return c, 0, false, false
	}
	b := p.berth(s.ID())
	c, start = b.charge, b.start
	b.charge = charge{}
	b.next, p.free = p.free, s.ID()+1
	p.inFlight--
	return c, start, sampled, true
}

// PermitDone implements [weir.Holder].
func (p *pool) PermitDone(permit weir.Permit, o weir.Outcome) {
	p.mu.Lock()
	_, start, sampled, ok := p.end(permit)
	if ok && !sampled {
		p.count(o)
	}
	p.mu.Unlock()
	if ok && !sampled {
		p.gate.finished(o, start)
	}
}

// PermitSampled implements [weir.Holder].
func (p *pool) PermitSampled(permit weir.Permit, o weir.Outcome) {
	p.mu.Lock()
	ok := permit.Slot().MarkSampled(permit)
	var start time.Duration
	if ok {
		start = p.berth(permit.Slot().ID()).start
		p.count(o)
	}
	p.mu.Unlock()
	if ok {
		p.gate.finished(o, start)
	}
}

// PermitCancelled implements [weir.Holder]: the tokens go back.
func (p *pool) PermitCancelled(permit weir.Permit) {
	p.mu.Lock()
	c, _, _, ok := p.end(permit)
	if ok {
		p.issued--
	}
	p.mu.Unlock()
	if ok {
		p.gate.giveBack(&c)
	}
}

// PermitCost implements [weir.CostHolder]: from now on the work has cost units,
// nothing if that is negative. What was charged too much goes back, what was too
// little is charged, into debt if need be.
func (p *pool) PermitCost(permit weir.Permit, gate string, units int64) {
	if gate != p.gate.name && (gate != "" || p.gate.settings.Load().fixed) {
		return
	}
	units = max(units, 0)
	p.mu.Lock()
	if !permit.Live() {
		p.mu.Unlock()
		return
	}
	b := p.berth(permit.Slot().ID())
	c := b.charge
	b.charge.cost = units
	p.mu.Unlock()
	p.gate.give(&c, float64(c.cost)-float64(units))
}

// SlotFreed implements [weir.Holder]; a berth is never freed inline.
func (p *pool) SlotFreed(*weir.Slot) {}

func (p *pool) count(o weir.Outcome) {
	if int(o) < len(p.outcomes) {
		p.outcomes[o]++
	}
}
