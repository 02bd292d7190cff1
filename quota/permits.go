package quota

import (
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/slot"
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
	bill  bill
	start time.Duration // set if a hook hears how long work takes
}

// issue returns a permit for what has been charged.
func (q *Quota) issue(c *bill) weir.Permit {
	var start time.Duration
	if q.front.Hooks().Done != nil {
		start = q.front.Now()
	}
	p := &q.pools[c.hash%poolCount]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight++
	p.issued++
	return weir.NewPermit(p.permits.Issue(&use{*c, start}))
}

// Done implements [slot.Holder].
func (p *pool) Done(t slot.Ticket, outcome uint8) {
	o := weir.Outcome(outcome)
	p.mu.Lock()
	var u use
	sampled, ok := p.end(t, &u)
	if ok && !sampled {
		p.count(o)
	}
	p.mu.Unlock()
	if ok && !sampled {
		p.finished(o, u.start)
	}
}

// Sample implements [slot.Holder].
func (p *pool) Sample(t slot.Ticket, outcome uint8) {
	o := weir.Outcome(outcome)
	p.mu.Lock()
	ok := t.MarkSampled()
	var start time.Duration
	if ok {
		start = p.permits.At(t).Use.start
		p.count(o)
	}
	p.mu.Unlock()
	if ok {
		p.finished(o, start)
	}
}

// Release implements [slot.Releaser]: there is no slot to give back, and the charge stays open.
func (p *pool) Release(t slot.Ticket, outcome uint8) slot.Ticket {
	p.Sample(t, outcome)
	if !t.Live() {
		return slot.Ticket{}
	}
	return t
}

// Cancel implements [slot.Holder]: it refunds the tokens.
func (p *pool) Cancel(t slot.Ticket) {
	p.mu.Lock()
	var u use
	_, ok := p.end(t, &u)
	if ok {
		p.issued--
	}
	p.mu.Unlock()
	if ok {
		p.gate.refund(&u.bill)
	}
}

// SetCost implements [slot.Holder]: the work has cost units, or nothing if that is
// negative. It refunds the difference, or charges it, into debt if need be.
func (p *pool) SetCost(t slot.Ticket, name string, units int64) {
	if name != p.gate.Name() && (name != "" || p.gate.settings.Load().fixed) {
		return
	}
	units = min(max(units, 0), MaxTokens)
	p.mu.Lock()
	if !t.Live() {
		p.mu.Unlock()
		return
	}
	u := &p.permits.At(t).Use
	c := u.bill
	u.bill.cost = units
	p.mu.Unlock()
	p.gate.adjust(&c, float64(c.cost)-float64(units))
}

// end takes a ticket back; ok is false if it is not live.
func (p *pool) end(t slot.Ticket, u *use) (sampled, ok bool) {
	if sampled, ok = p.permits.Recall(t, u); ok {
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
		gate.Count(&s.Outcomes, weir.Outcome(o), n)
	}
}
