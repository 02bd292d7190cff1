// Package room is the wait room of a gate. It holds a bounded number of waiters,
// each with a class, a user, a tenant and an expiry, on explicit time. It holds
// no lock, starts no goroutine and wakes nobody: the gate does.
//
// Who is served next ([Room.Next]) and who is displaced for want of a place
// ([Room.Push]) are decided here and nowhere else:
//
//   - between classes by strict priority, except for guaranteed shares (fair.go);
//   - in a class between users, and between the tenants of a user, by start-time fair
//     queueing with weights and costs (fair.go). So a user gains nothing by inventing
//     tenants;
//   - among a tenant's waiters by the [Order] (order.go);
//   - in a full room a waiter of the class that losingClass names is displaced. It is the
//     last one of the user and tenant with the greatest load (displace.go).
//
// The room remembers the users and tenants that wait. It also remembers those
// who were served ahead of others that still wait: at most as many as there are
// places, or 64.
//
// Work of one class that names nobody is a single queue in the order. Whether a
// queue stands (standing.go) is decided for the whole room.
package room

import (
	"math"
	"time"
)

// Never is the expiry of a waiter without one.
const Never = time.Duration(math.MaxInt64)

// Room is a wait room. The zero value has no places; set the size first.
//
// A newcomer is counted by CountArrival and enters by Push. A waiter leaves by the
// method that says why: Serve, GiveUp, Expire, or Remove for any other reason. The
// room learns from it.
type Room struct {
	size     int
	order    Order
	bound    int // what the last Push was judged by
	pace     Pace
	standing standing

	classes   [Classes]class
	users     flows
	inner     []level // of each user, its tenants
	tenants   flows
	deadlines deadlines
	ties      int32 // the last number drawn for entry.tie

	meanUnits, meanUser, meanTenant mean // of those served

	weights func(user, tenant string) (userWeight, tenantWeight float64)

	units  int64
	expiry []*Waiter
}

// How many may wait:
//
//	Size            the places configured
//	Kept            while a queue stands, if it is cut
//	places          now: Size, or Kept in a queue that stands
//	placesFor       now, for one newcomer: Size if the cut spares it, else places
//	placesForSmall  now, for a tenant with few waiters: Kept, but never cut to those with a chance
//	Bound           placesFor of the last newcomer
//	reserved        of places, those that only one class may fill

// Configure sets the number of places and the order. Waiters beyond a smaller
// size stay; only newcomers are refused.
func (r *Room) Configure(size int, order Order) {
	r.size = max(0, size)
	r.reorder(order)
}

// SetPace says how fast the gate is, as far as anybody knows.
func (r *Room) SetPace(p Pace) { r.pace = p }

// Len returns how many wait.
func (r *Room) Len() int { return len(r.expiry) }

// Units returns what all that wait will take together.
func (r *Room) Units() int64 { return r.units }

// Size returns the number of places.
func (r *Room) Size() int { return r.size }

// Kept returns how many may wait while a queue stands.
func (r *Room) Kept() int {
	kept := r.size
	if r.order == Adaptive && r.pace.Keep > 0 {
		kept = min(kept, r.pace.Keep)
		if r.standing.is && r.oneTenant() {
			kept = min(kept, r.standing.promising)
		}
	}
	return kept
}

// oneTenant reports whether all waiters are one tenant's. Chances are counted over all
// arrivals. With several tenants, perhaps only the one with many waiters has no
// chance. The fair queues know better which one that is.
func (r *Room) oneTenant() bool {
	seen := false
	for i := range r.classes {
		users := r.classes[i].longest
		if len(users) == 0 {
			continue
		}
		if seen || len(users) > 1 || len(r.inner[users[0]].longest) > 1 {
			return false
		}
		seen = true
	}
	return true
}

// placesForSmall returns up to how many waiters a tenant with few still finds a place.
func (r *Room) placesForSmall() int {
	if r.order == Adaptive && r.pace.Keep > 0 {
		return min(r.size, r.pace.Keep)
	}
	return r.size
}

// places returns how many may wait now.
func (r *Room) places() int {
	if r.standing.is {
		return r.Kept()
	}
	return r.size
}

// placesFor returns how many may wait when w comes: all places if the cut spares w.
func (r *Room) placesFor(w *Waiter) int {
	c := &r.standing.flood
	if !c.class[w.Class] || !c.many && r.answering(w, floodFrom) < floodFrom {
		return r.size
	}
	return r.places()
}

// NewestFirst reports whether the newest is served first now. That holds among the waiters
// of a tenant that has given a reason. If enough have, it holds among tenants with equal tags.
func (r *Room) NewestFirst() bool {
	return r.order == LIFO || r.order == Adaptive && (r.standing.newest || r.standing.impatient)
}

// PreferNewest puts the newest first if the order is Adaptive. The gate calls it when
// w, a newcomer, could not be served in time at the back of the queue. It reports
// whether the newest is served first.
func (r *Room) PreferNewest(w *Waiter) bool {
	r.putNewestFirst()
	if tenant := r.findTenant(w); tenant != 0 {
		r.mark(tenant)
	} else {
		r.standing.last = joined(hash(w.User), hash(w.Tenant))
		r.countGiver(w)
	}
	return r.NewestFirst()
}

func (r *Room) putNewestFirst() {
	if r.order == Adaptive && !r.standing.newest {
		r.standing.putNewestFirst(len(r.expiry))
	}
}

// markIfStanding puts the newest first because a tenant has too many waiting or one of
// its waiters expired. Both are reasons only in a standing queue.
func (r *Room) markIfStanding(tenant uint32) {
	if r.standing.is {
		r.putNewestFirst()
		r.mark(tenant)
	}
}

// CountArrival counts a newcomer that finds no free slot, whether it will get a place
// or not. Only w's class and units matter.
func (r *Room) CountArrival(now time.Duration, w *Waiter) {
	if len(r.expiry) == 0 && !r.standing.lasts(now, r.pace.Interval) {
		r.standing.begin(now)
	}
	r.standing.judge(now, r.pace.Interval)
	class := max(0, min(w.Class, Classes-1))
	r.standing.arrived++
	r.standing.flood.came[class]++
	if r.standing.judged {
		r.standing.demand.came[class] += cost(w)
	}
}

// findTenant returns w's tenant, 0 if nobody of it waits.
func (r *Room) findTenant(w *Waiter) uint32 {
	user := r.users.find(w.User, uint32(max(0, min(w.Class, Classes-1))))
	if user == 0 {
		return 0
	}
	tenant := r.tenants.find(w.Tenant, user)
	if tenant == 0 || r.tenants.all[tenant].back == nil {
		return 0
	}
	return tenant
}

// Push lets w in, and reports false if there is no place for it. In a full room
// somebody else may lose its place, and has left the room when Push returns.
//
// The class is losingClass(w). In it the user, then the tenant, with the greatest load
// loses its last waiter; a single waiter is no load. If that tenant is w's own, its
// oldest loses when its newest is served first; when not, w is refused.
func (r *Room) Push(now time.Duration, w *Waiter) (displaced *Waiter, ok bool) {
	w.tidy()
	r.bound = r.placesFor(w)
	full := len(r.expiry) >= r.bound
	if full {
		if r.size == 0 {
			return nil, false
		}
		r.standing.flood.countFirst(r.answering(w, 1) == 0)
		spare := len(r.expiry) < r.placesForSmall() && r.waiters(r.findTenant(w), fewest) < fewest
		if displaced = r.victim(w, spare); displaced != nil {
			r.Remove(displaced)
		} else if !spare {
			if r.standing.is {
				r.countGiver(w)
			}
			return nil, false
		}
	}
	w.Arrived = now
	if first := r.enter(w); !full {
		r.standing.flood.countFirst(first)
	}
	r.addExpiry(w)
	return displaced, true
}

// Bound returns how many places the last Push judged by. A queue that stands has
// fewer than Size.
func (r *Room) Bound() int { return r.bound }

// Next returns the waiter to serve next, nil if nobody waits. It stays queued.
func (r *Room) Next(now time.Duration) *Waiter {
	if len(r.expiry) == 0 {
		return nil
	}
	r.standing.judge(now, r.pace.Interval)
	return r.head(r.nextClass())
}

// Oldest returns the oldest waiter of the tenant that is served next, nil if nobody waits.
func (r *Room) Oldest() *Waiter {
	if len(r.expiry) == 0 {
		return nil
	}
	return r.tenants.all[r.next(r.nextClass())].back.next
}

// Dequeue takes out w, whose turn it is.
func (r *Room) Dequeue(w *Waiter) {
	r.countServed(w)
	if class := int(w.Class); class == r.highest() && r.classes[class].share == 0 {
		r.standing.flood.hadItsTurn(class)
	}
	r.Remove(w)
	r.standing.served++
	if r.standing.judged {
		r.standing.demand.served++
		r.standing.demand.went[w.Class] += cost(w)
	}
}

// GiveUp takes out w, which no longer wants to wait, and reports false if it was not
// in.
func (r *Room) GiveUp(now time.Duration, w *Waiter) bool {
	if !w.Queued() {
		return false
	}
	if now-w.Arrived >= r.pace.Service {
		r.standing.gaveUp(now)
		r.mark(w.flow)
	}
	return r.Remove(w)
}

// Expire takes out w, whose time is up.
func (r *Room) Expire(w *Waiter) {
	r.markIfStanding(w.flow)
	r.Remove(w)
}

// Remove takes w out, and reports false if it was not in.
func (r *Room) Remove(w *Waiter) bool {
	if !w.Queued() {
		return false
	}
	r.leave(w)
	r.dropExpiry(int(w.heap) - 1)
	if r.standing.fallTo(len(r.expiry)); len(r.expiry) == 0 {
		for i := range r.classes {
			r.classes[i].arrears = 0
		}
	}
	return true
}

// Expired returns a waiter whose time is up, nil if there is none. It stays
// queued.
func (r *Room) Expired(now time.Duration) *Waiter {
	if len(r.expiry) == 0 || r.expiry[0].Expires > now {
		return nil
	}
	return r.expiry[0]
}

// Expiry returns when the next waiter expires, Never if none does.
func (r *Room) Expiry() time.Duration {
	if len(r.expiry) == 0 {
		return Never
	}
	return r.expiry[0].Expires
}

// Waiter is one place in the room. Its owner embeds it, sets the exported
// fields, and points Owner back at itself. It must not change them while it waits.
type Waiter struct {
	// Expires is when the waiter has to leave unserved.
	Expires time.Duration
	// Units is what the waiter will take of the gate.
	Units int64
	// Arrived is set by Push.
	Arrived time.Duration
	// Owner is what the waiter stands for.
	Owner any
	// User answers for what it sends, and Tenant is one of those it sends for.
	// All without a user name are one user; likewise tenants.
	User, Tenant string
	// UserWeight and TenantWeight say what a user gets beside other users, and a
	// tenant beside others of its user. 0 means 1. The weight of a user is that of
	// whoever came last.
	UserWeight, TenantWeight float64
	// Deadline is by when it has to be done, for the order EDF; Never without one.
	Deadline time.Duration

	prev, next *Waiter // among those of its tenant

	// Class is its priority, from 0, which is served last, to Classes-1.
	Class int8
	phase uint16 // set on the tenant's newest waiter only, see reasons

	heap int32  // index in the room's heap, plus 1; 0 while not in a room
	flow uint32 // its tenant's
	node uint32 // its place among the deadlines
}

// Queued reports whether the waiter is in a room.
func (w *Waiter) Queued() bool { return w.heap != 0 }

// These are bounds so that sums do not overflow and a small waiter is not rounded away
// beside a large one.
const (
	maxUnits  = 1 << 40
	maxWeight = 1 << 10
)

// tidy brings values into range. A weight that is not a positive number counts as
// 1, others as 1/1024 to 1024, and units as at most 2^40.
func (w *Waiter) tidy() {
	w.Class = max(0, min(w.Class, Classes-1))
	w.Units = max(0, min(w.Units, maxUnits))
	w.UserWeight, w.TenantWeight = weight(w.UserWeight), weight(w.TenantWeight)
}

func weight(of float64) float64 {
	if of <= 0 || math.IsNaN(of) {
		return 1
	}
	return max(1./maxWeight, min(of, maxWeight))
}

// cost is what a waiter counts in fair queueing. Nobody is served for nothing.
func cost(w *Waiter) float64 { return max(1, float64(w.Units)) }

// Full reports whether a newcomer without names, of class 0 or 1, is refused for certain.
// It is false while the newcomer might displace somebody or turn the queue.
func (r *Room) Full() bool {
	if len(r.expiry) < r.size {
		return false
	}
	if r.size == 0 {
		return true
	}
	if r.NewestFirst() || r.order == Adaptive && r.standing.is {
		return false
	}
	return r.classes[0].n == 0 && r.reserved(0) == 0 && r.classes[1].n >= r.reserved(1) && r.nameless()
}

// nameless reports whether nobody in class 1 has a name.
func (r *Room) nameless() bool {
	users := r.classes[1].longest
	if len(users) != 1 {
		return len(users) == 0
	}
	tenants := r.inner[users[0]].longest
	w := r.tenants.all[tenants[0]].back
	return len(tenants) == 1 && w.User == "" && w.Tenant == ""
}

// The waiters are also in a binary heap, with the soonest expiry at the
// root. Each knows its index, so any of them can leave in O(log n).

func (r *Room) addExpiry(w *Waiter) {
	r.expiry = append(extend(r.expiry, r.size), w)
	w.heap = int32(len(r.expiry))
	r.up(len(r.expiry) - 1)
}

func (r *Room) dropExpiry(i int) {
	last := len(r.expiry) - 1
	r.expiry[i].heap = 0
	if i != last {
		moved := r.expiry[last]
		r.expiry[i] = moved
		moved.heap = int32(i + 1)
	}
	r.expiry[last] = nil
	r.expiry = r.expiry[:last]
	if i < last {
		r.up(i)
		r.down(i)
	}
}

func (r *Room) up(i int) {
	w := r.expiry[i]
	for i > 0 {
		parent := (i - 1) / 2
		if r.expiry[parent].Expires <= w.Expires {
			break
		}
		r.put(i, r.expiry[parent])
		i = parent
	}
	r.put(i, w)
}

func (r *Room) down(i int) {
	w := r.expiry[i]
	for {
		least, at := i, w.Expires
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.expiry); child++ {
			if e := r.expiry[child].Expires; e < at {
				least, at = child, e
			}
		}
		if least == i {
			break
		}
		r.put(i, r.expiry[least])
		i = least
	}
	r.put(i, w)
}

func (r *Room) put(i int, w *Waiter) {
	r.expiry[i] = w
	w.heap = int32(i + 1)
}
