package quota

import (
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
)

// poolCount is how many parts the permits are kept in, each with a lock of its own.
const poolCount = 8

// pool keeps a part of the permits that are out.
type pool struct {
	gate *Quota

	mu       sync.Mutex // guards what follows
	permits  gate.Pool[use]
	inFlight int64
	issued   uint64
	outcomes [outcomeCount]uint64
}

// use is what the gate keeps about a permit.
type use struct {
	charge charge
	start  time.Duration // set if a hook hears how long work takes
}

var (
	_ weir.Holder     = (*pool)(nil)
	_ weir.CostHolder = (*pool)(nil)
)

// issue returns a permit for what has been charged.
func (q *Quota) issue(c *charge) weir.Permit {
	var start time.Duration
	if q.front.Hooks().Done != nil {
		start = q.front.Now()
	}
	p := &q.pools[c.hash%poolCount]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight++
	p.issued++
	return p.permits.Issue(&use{*c, start})
}

// PermitDone implements [weir.Holder].
func (p *pool) PermitDone(permit weir.Permit, o weir.Outcome) {
	p.mu.Lock()
	var u use
	sampled, ok := p.end(permit, &u)
	if ok && !sampled {
		p.count(o)
	}
	p.mu.Unlock()
	if ok && !sampled {
		p.finished(o, u.start)
	}
}

// PermitSampled implements [weir.Holder].
func (p *pool) PermitSampled(permit weir.Permit, o weir.Outcome) {
	p.mu.Lock()
	ok := permit.Slot().MarkSampled(permit)
	var start time.Duration
	if ok {
		start = p.permits.At(permit).Use.start
		p.count(o)
	}
	p.mu.Unlock()
	if ok {
		p.finished(o, start)
	}
}

// PermitCancelled implements [weir.Holder]: it refunds the tokens.
func (p *pool) PermitCancelled(permit weir.Permit) {
	p.mu.Lock()
	var u use
	_, ok := p.end(permit, &u)
	if ok {
		p.issued--
	}
	p.mu.Unlock()
	if ok {
		p.gate.refund(&u.charge)
	}
}

// PermitCost implements [weir.CostHolder]: the work has cost units, or nothing if that is
// negative. It refunds the difference, or charges it, into debt if need be.
func (p *pool) PermitCost(permit weir.Permit, name string, units int64) {
	if name != p.gate.Name() && (name != "" || p.gate.settings.Load().fixed) {
		return
	}
	units = max(units, 0)
	p.mu.Lock()
	if !permit.Live() {
		p.mu.Unlock()
		return
	}
	u := &p.permits.At(permit).Use
	c := u.charge
	u.charge.cost = units
	p.mu.Unlock()
	p.gate.adjust(&c, float64(c.cost)-float64(units))
}

// SlotFreed implements [weir.Holder]. It is never called: attention stays raised.
func (p *pool) SlotFreed(*weir.Slot) {}

// end takes a permit back; ok is false if the permit is not live.
func (p *pool) end(permit weir.Permit, u *use) (sampled, ok bool) {
	if sampled, ok = p.permits.Recall(permit, u); ok {
		p.inFlight--
	}
	return sampled, ok
}

func (p *pool) finished(o weir.Outcome, start time.Duration) {
	if f := &p.gate.front; f.Hooks().Done != nil {
		f.Finished(o, f.Now()-start)
	}
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
