package gate

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// Queue is the settings of a wait room that decide who goes first. Package limit
// documents each.
type Queue struct {
	Order          room.Order
	Shares         map[weir.Priority]float64
	Users, Tenants map[string]float64
}

// The bounds of a weight.
const (
	MinWeight = 0.001
	MaxWeight = 1000
)

// Faults lists every setting out of range, in a fixed order.
func (q *Queue) Faults() (faults []error) {
	if q.Order > room.EDF {
		faults = append(faults, fmt.Errorf("Queue.Order %d: must be Adaptive, FIFO, LIFO or EDF", q.Order))
	}
	sum := 0.0
	for _, p := range slices.Sorted(maps.Keys(q.Shares)) {
		share := q.Shares[p]
		switch {
		case p < weir.Background || p > weir.Critical:
			faults = append(faults, fmt.Errorf("Queue.Shares[%v]: no such priority, use Background to Critical", p))
		case !(share >= 0 && share <= 1):
			faults = append(faults, fmt.Errorf("Queue.Shares[%v] %v: must be from 0 to 1", p, share))
		default:
			sum += share
		}
	}
	if sum > 1+1e-9 { // .7, .2 and .1 add up to a little more
		faults = append(faults, fmt.Errorf("Queue.Shares: %v together, which is more than 1", sum))
	}
	faults = append(faults, weightFaults("Users", q.Users)...)
	return append(faults, weightFaults("Tenants", q.Tenants)...)
}

func weightFaults(field string, weights map[string]float64) (faults []error) {
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if w := weights[name]; !(w >= MinWeight && w <= MaxWeight) {
			faults = append(faults, fmt.Errorf("Queue.Weights.%s[%q] %v: must be from %v to %v", field, name, w, MinWeight, float64(MaxWeight)))
		}
	}
	return faults
}

// Places returns how many may wait with this Queue.Len.
func Places(n, byDefault int) int {
	if n == 0 {
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

// Parts returns what the settings say, as it is now: changing their maps afterwards
// changes nothing.
func (q *Queue) Parts() *Parts {
	p := &Parts{users: maps.Clone(q.Users), tenants: maps.Clone(q.Tenants)}
	for priority, share := range q.Shares {
		p.shares[priority.Class()] = share
	}
	p.of = p.Weights
	return p
}

// Apply brings a room to these parts, and those that wait in it.
func (p *Parts) Apply(r *room.Room) {
	r.SetShares(p.shares)
	r.Reweigh(p.of)
}

// PushWhole is Room.Push for a room whose places are what other rooms have left,
// perhaps one. A share keeps only whole places, and none if it is less than one.
// Otherwise background work with a small share would keep the only place.
func (p *Parts) PushWhole(r *room.Room, now time.Duration, w *room.Waiter) (displaced *room.Waiter, ok bool) {
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
