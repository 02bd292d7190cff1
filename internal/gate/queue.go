package gate

import (
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/room"
)

// The bounds of a weight.
const (
	MinWeight = 0.001
	MaxWeight = 1000
)

// CheckQueue adds the faults of the settings of a wait room that decide who goes first.
func CheckQueue(f *fault.List, order room.Order, shares map[weir.Priority]float64, users, tenants map[string]float64) {
	at := fault.Path{"Queue"}
	f.Check(order <= room.EDF, at.At("Order"), order, "must be Adaptive, FIFO, LIFO or EDF")
	sum := 0.0
	for _, p := range slices.Sorted(maps.Keys(shares)) {
		at, share := at.At("Shares", p.String()), shares[p]
		switch {
		case p < weir.Background || p > weir.Critical:
			f.Add(at, "no such priority", "use Background to Critical")
		case !(share >= 0 && share <= 1):
			f.Check(false, at, share, "must be from 0 to 1")
		default:
			sum += share
		}
	}
	f.Check(sum <= 1+1e-9, at.At("Shares"), sum, "must be at most 1 together") // 0.7, 0.2 and 0.1 add up to a little more
	checkWeights(f, at.At("Weights", "Users"), users)
	checkWeights(f, at.At("Weights", "Tenants"), tenants)
}

func checkWeights(f *fault.List, at fault.Path, weights map[string]float64) {
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		w := weights[name]
		f.Check(w >= MinWeight && w <= MaxWeight, at.At(name), w, "must be from %v to %v", MinWeight, MaxWeight)
	}
}

// Places returns how many may wait with this Queue.Len and Queue.MaxWait.
func Places(n int, longest time.Duration, byDefault int) int {
	switch {
	case longest == weir.NoWait:
		return 0
	case n == 0:
		return byDefault
	}
	return max(0, n)
}

// Longest returns how long work may wait with this Queue.MaxWait.
func Longest(d, byDefault time.Duration) time.Duration {
	switch {
	case d == 0:
		return byDefault
	case d < 0:
		return room.Never
	}
	return d
}

// Parts say which part of what is served a class, a user, a tenant gets. They are
// never written to, so any number of rooms may have the same.
type Parts struct {
	shares         [room.Classes]float64
	users, tenants map[string]float64
	of             func(user, tenant string) (userWeight, tenantWeight float64)
}

// The room knows as many classes as there are.
var _ [room.Classes]struct{} = [weir.Classes]struct{}{}

// NewParts returns what the settings say, as it is now: changing the maps afterwards
// changes nothing.
func NewParts(shares map[weir.Priority]float64, users, tenants map[string]float64) *Parts {
	p := &Parts{users: maps.Clone(users), tenants: maps.Clone(tenants)}
	for priority, share := range shares {
		p.shares[priority.Class()] = share
	}
	p.of = p.Weights
	return p
}

// Apply brings a room to these parts, and those that wait in it. before is what it had, nil for a new room. Under
// the same weights debts are kept.
func (p *Parts) Apply(r *room.Room, before *Parts) {
	r.SetShares(p.shares)
	if before == nil || !maps.Equal(p.users, before.users) || !maps.Equal(p.tenants, before.tenants) {
		r.Reweigh(p.of)
	}
}

// pushWhole is Room.Push for a room whose places are what other rooms have left,
// perhaps one. A share keeps only whole places, and none if it is less than one.
// Otherwise background work with a small share would keep the only place.
func (p *Parts) pushWhole(r *room.Room, now time.Duration, w *room.Waiter) (displaced *room.Waiter, ok bool) {
	whole := p.shares
	for class, share := range whole {
		if share*float64(r.Size()) < 1 {
			whole[class] = 0
		}
	}
	if whole == p.shares {
		return r.Push(now, w)
	}
	r.SetShares(whole)
	displaced, ok = r.Push(now, w)
	r.SetShares(p.shares)
	return displaced, ok
}

// Weights returns the weights of a user and of a tenant.
func (p *Parts) Weights(user, tenant string) (userWeight, tenantWeight float64) {
	userWeight, tenantWeight = 1, 1
	if len(p.users)+len(p.tenants) == 0 { // the rule
		return userWeight, tenantWeight
	}
	if v, ok := p.users[user]; ok {
		userWeight = v
	}
	if v, ok := p.tenants[tenant]; ok {
		tenantWeight = v
	}
	return userWeight, tenantWeight
}

// The rules of a Rejection for a waiter that lost its place to a newcomer.
const (
	RuleOutranked = "displaced by a higher priority"
	RuleUnfair    = "displaced by a shorter queue"
	RuleShare     = "displaced by a guaranteed share"
)

// Rule says why w lost its place to by: "" if it is nothing between priorities,
// users or tenants.
func Rule(w, by *room.Waiter) string {
	switch {
	case w.Class < by.Class:
		return RuleOutranked
	case w.Class > by.Class:
		return RuleShare
	case w.User != by.User || w.Tenant != by.Tenant:
		return RuleUnfair
	}
	return ""
}
