package quota

import (
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// pool keeps a part of the permits that are out. It has as many berths as were ever in
// use at a time.
type pool struct {
	gate   *Quota
	common weir.Slots // its attention stays raised, so that every release comes here

	mu       sync.Mutex // guards what follows
	chunks   [][]berth
	free     uint32 // the first free berth's id, plus 1
	inFlight int64
	issued   uint64
	outcomes [outcomeCount]uint64
}

// berth is a slot with what the gate keeps of its holder. The pool's lock guards it.
type berth struct {
	weir.Slot
	charge charge
	start  time.Duration // set if a hook hears how long work takes
	next   uint32        // on the free list: the next berth's id, plus 1
}

const (
	poolCount  = 8
	berthChunk = 64
)

var (
	_ weir.Holder     = (*pool)(nil)
	_ weir.CostHolder = (*pool)(nil)
)

func (p *pool) init(q *Quota) {
	p.gate = q
	p.common.Attention.Store(1)
}

// issue returns a permit for what has been charged.
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

// PermitCancelled implements [weir.Holder]: it refunds the tokens.
func (p *pool) PermitCancelled(permit weir.Permit) {
	p.mu.Lock()
	c, _, _, ok := p.end(permit)
	if ok {
		p.issued--
	}
	p.mu.Unlock()
	if ok {
		p.gate.refund(&c)
	}
}

// PermitCost implements [weir.CostHolder]: the work has cost units, or nothing if that is
// negative. It refunds the difference, or charges it, into debt if need be.
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
	p.gate.adjust(&c, float64(c.cost)-float64(units))
}

// SlotFreed implements [weir.Holder]. It is never called: attention stays raised.
func (p *pool) SlotFreed(*weir.Slot) {}

// end frees the berth of a permit; ok is false if the permit is not live.
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

func (p *pool) count(o weir.Outcome) {
	if int(o) < len(p.outcomes) {
		p.outcomes[o]++
	}
}

// addTo adds the pool's counters to a snapshot.
func (p *pool) addTo(s *weir.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.InFlight += p.inFlight
	s.Admitted += p.issued
	for o, n := range p.outcomes {
		if n > 0 {
			s.Outcomes[weir.Outcome(o)] += n
		}
	}
}
