package limit

import (
	"github.com/weir-go/weir"
)

// account says whose share the work in a slot is part of, and how much it has
// been charged. It counts while the slot is held with the permit it names. The
// strings live on until the slot is used again, or the limiter shifts up.
type account struct {
	permit       weir.Permit
	user, tenant string
	cost         int64   // in units
	ratio        float64 // how many times that it has been charged; 1 but for ByTime
	class        int8
}

// largestCost bounds what a cost known afterwards may say: beyond it the share is
// gone for longer than anybody waits, and sums must not overflow.
const largestCost = MaxLimit

// open notes whom p was granted to. In the fast gear, and until somebody who
// names a user or a tenant has had to wait, nobody knows: nobody's share is short
// then, and the path of all work must not pay for it.
func (l *Limiter) open(p weir.Permit, class int8, user, tenant string, cost int64) {
	id := int(p.Slot().ID())
	if id >= len(l.accounts) {
		l.accounts = append(l.accounts, make([]account, len(*l.table.Load())-len(l.accounts))...)
	}
	l.accounts[id] = account{permit: p, class: class, user: user, tenant: tenant, cost: cost, ratio: 1}
}

// closeAccounts forgets whose work is in flight, because the core has shifted up
// and will no longer tell.
func (l *Limiter) closeAccounts() { l.accounting, l.accounts = false, nil }

// PermitCost implements [weir.CostHolder]: what work has really cost, in the unit
// of Work.Cost, is settled against the share of its tenant, who has to wait the
// longer for the next turn, or less long. The slots it holds stay what they are.
// Nothing is free: what says that it has cost less than 1 is charged 1. It does
// nothing once the permit is done.
func (l *Limiter) PermitCost(p weir.Permit, gate string, units int64) {
	if gate != "" && gate != l.name {
		return
	}
	now := l.now()
	var answered answers
	l.mu.Lock()
	if a := l.account(p); a != nil {
		units = min(max(units, 1), largestCost)
		l.room.Settle(int(a.class), a.user, a.tenant, float64(units-a.cost)*a.ratio)
		a.cost = units
		answered = l.settle(now) // somebody else may go next now, who fits
	}
	l.mu.Unlock()
	answered.Deliver()
}

// account returns what is known of a live permit, nil if nothing is.
func (l *Limiter) account(p weir.Permit) *account {
	id := int(p.Slot().ID())
	if !l.slow || id >= len(l.accounts) || l.accounts[id].permit != p || !p.Live() {
		return nil
	}
	return &l.accounts[id]
}

// PermitCost implements [weir.CostHolder].
func (t *tracer) PermitCost(p weir.Permit, gate string, units int64) {
	if p.Live() {
		t.inner.SetCost(gate, units)
	}
}
