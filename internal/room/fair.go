package room

import (
	"math"
)

// Classes is how many classes of priority there are. Class 0 goes last.
const Classes = 4

// class is the waiters of one priority.
type class struct {
	level         // its users
	n       int   // waiters
	units   int64 // that they wait for
	share   float64
	arrears float64 // units that it may be served out of turn
}

// SetShares guarantees classes a share of the units served. It holds while somebody
// waits in the class and somebody above it. Units served while nothing waits above
// the class do not count. A class with a share also keeps that share of the places.
// The default is 0, strict priority. A share that is negative or not a number counts
// as 0. Shares that exceed 1 together are cut in proportion.
func (r *Room) SetShares(shares [Classes]float64) {
	sum := 0.
	for i, s := range shares {
		shares[i] = max(0, min(s, 1))
		if math.IsNaN(s) {
			shares[i] = 0
		}
		sum += shares[i]
	}
	for i, s := range shares {
		r.classes[i].share = s / max(1, sum)
	}
}

// ByClass returns how many wait by class.
func (r *Room) ByClass() (n [Classes]int) {
	for i := range r.classes {
		n[i] = r.classes[i].n
	}
	return n
}

// highest returns the highest class that somebody waits in.
func (r *Room) highest() int {
	for i := Classes - 1; i > 0; i-- {
		if r.classes[i].n > 0 {
			return i
		}
	}
	return 0
}

// nextClass returns which class goes next. Somebody must be waiting.
func (r *Room) nextClass() int {
	highest := r.highest()
	for i := highest - 1; i >= 0; i-- {
		c := &r.classes[i]
		if c.n == 0 || c.share == 0 {
			continue
		}
		const rounding = 1e-9 // sums of shares are not exact
		if units := cost(r.head(i)); c.arrears >= (1-c.share)*units-rounding {
			return i
		}
	}
	return highest
}

// account counts w, which still waits, as served.
func (r *Room) account(w *Waiter) {
	units := cost(w)
	for i := range r.highest() {
		c := &r.classes[i]
		if c.n == 0 || c.share == 0 {
			continue
		}
		c.arrears += c.share * units
		if i == int(w.Class) {
			c.arrears = max(0, c.arrears-units)
		}
	}
}

// reserved is how many of the places are a class's own. It is at least one. But
// it is never the only place there is: a low class would keep that from all
// above it.
func (r *Room) reserved(class int) int {
	share, places := r.classes[class].share, r.places()
	if share == 0 || places < 2 {
		return 0
	}
	return max(1, int(share*float64(places)))
}

// losingClass returns the class that has to give a place to w. It is the lowest
// class below w's that has more than its own places. If w's class has fewer
// than its own, classes above it count too. If there is no such class, it is
// w's own.
func (r *Room) losingClass(w *Waiter) int {
	own := int(w.Class)
	below := own
	if r.classes[own].n < r.reserved(own) {
		below = Classes
	}
	for i := range below {
		if i != own && r.classes[i].n > r.reserved(i) {
			return i
		}
	}
	return own
}

// The hierarchy: a class has users, a user has tenants, a tenant has waiters. What
// changes at one level changes those above.

// next returns the tenant that goes next in a class. Somebody must be waiting there.
func (r *Room) next(class int) uint32 {
	return r.inner[r.classes[class].ready[0].flow].ready[0].flow
}

// head returns the waiter that goes next in a class. Somebody must be waiting there.
func (r *Room) head(class int) *Waiter { return r.first(r.next(class)) }

// enter adds w to its tenant, user and class. Among equal tags newcomers go last, or
// first where the newest goes first. They also go last if more flows pass through
// than the room can remember. Otherwise those who come back would never have a turn.
// It reports whether nobody of w's user waited before; of its tenant, if the user has no
// name.
func (r *Room) enter(w *Waiter) (first bool) {
	c, turn := &r.classes[w.Class], r.nextTurn()
	user := r.user(w.User, int(w.Class))
	w.flow = r.tenants.get(w.Tenant, user, r.size)
	ofUser, ofTenant := r.userLoad(user), r.tenantLoad(w.flow)
	r.link(w)
	if r.NewestFirst() && r.users.idle+r.tenants.idle < r.memory() {
		turn = -turn
	}
	inner := &r.inner[user]
	r.join(inner, &r.tenants, w.flow, ofTenant+cost(w)/w.TenantWeight, turn)
	inner.weight = w.UserWeight
	r.join(&c.level, &r.users, user, ofUser+cost(w)/w.UserWeight, turn)
	c.n++
	c.units += w.Units
	r.units += w.Units
	if w.User != "" {
		return ofUser == 0
	}
	return ofTenant == 0
}

// user returns the user of that name in a class, known or new.
func (r *Room) user(name string, class int) uint32 {
	i := r.users.get(name, uint32(class), r.size)
	if int(i) == len(r.inner) {
		r.inner = append(extend(r.inner, cap(r.users.spots)), level{})
	} else if len(r.inner) == 0 {
		r.inner = make([]level, i+1, cap(r.users.spots))
	}
	return i
}

// nextTurn draws the next turn among equal tags.
func (r *Room) nextTurn() int32 {
	if r.turns++; r.turns == math.MaxInt32 {
		r.turns = 1
	}
	return r.turns
}

// memory returns how many users without waiters are remembered. It is the same number
// for tenants.
func (r *Room) memory() int { return max(64, r.size) }

// join adds a newcomer to a flow. load is the flow's new load if it is not alone.
func (r *Room) join(l *level, f *flows, i uint32, load float64, turn int32) {
	at := &f.spots[i]
	if at.longest != 0 {
		at.load = load
	} else {
		if at.ready != 0 {
			f.idle--
		}
		l.join(f.spots, i, turn, r.size)
	}
	l.weigh(f.spots, i, r.size)
}

// charge counts w as served.
func (r *Room) charge(w *Waiter) {
	if !w.Queued() {
		return
	}
	r.account(w)
	units, turn := cost(w), r.nextTurn()
	r.usual.add(units)
	behind := credit * float64(r.usual)
	user := r.tenants.all[w.flow].in
	r.inner[user].charge(r.tenants.spots, w.flow, units/w.TenantWeight, turn, behind)
	r.classes[w.Class].charge(r.users.spots, user, units/w.UserWeight, turn, behind)
}

// leave is the reverse of enter.
func (r *Room) leave(w *Waiter) {
	c, user, tenant := &r.classes[w.Class], r.tenants.all[w.flow].in, w.flow
	inner := &r.inner[user]
	r.unlink(w)
	load, last := 0., r.tenants.all[tenant].back == nil
	if !last && r.aloneOf(tenant) == nil {
		load = max(leastLoad, r.tenants.spots[tenant].load-cost(w)/w.TenantWeight)
	}
	r.part(inner, &r.tenants, tenant, load, last)
	load, last = 0, len(inner.longest) == 0
	if !last && r.alone(user) == nil {
		load = max(leastLoad, r.users.spots[user].load-cost(w)/w.UserWeight)
	}
	r.part(&c.level, &r.users, user, load, last)
	c.units -= w.Units
	r.units -= w.Units
	c.n--
}

// part is called when a waiter has left a flow. load is the flow's load now. After the
// last waiter the flow leaves its level, but its tag is kept while it is ahead of
// virtual time. Otherwise a flow that comes back before that would go before its turn.
// A tag that is not ahead can be forgotten.
func (r *Room) part(l *level, f *flows, i uint32, load float64, gone bool) {
	at := &f.spots[i]
	if !gone {
		at.load = load
		l.weigh(f.spots, i, r.size)
		r.sweep(l, f) // if it was served, its tag may have passed that of one nobody waits of
		return
	}
	l.unload(f.spots, i)
	e := l.ready.drop(f.spots, i)
	switch {
	case len(l.ready) == 0:
		r.forget(f, i)
	case e.tag > l.now && f.idle < r.memory():
		l.idle.push(f.spots, e, r.memory())
		f.idle++
	default:
		r.forget(f, i)
		l.now = max(l.now, min(e.tag, l.ready[0].tag)) // as if the forgotten tag were past
	}
	r.sweep(l, f)
}

// sweep forgets flows without waiters once virtual time has passed their tags. A level
// where nobody waits has no memory.
func (r *Room) sweep(l *level, f *flows) {
	passed := l.now
	if len(l.longest) == 0 {
		passed, l.now = math.Inf(1), 0
	}
	for len(l.idle) > 0 && l.idle[0].tag <= passed {
		e := l.idle.drop(f.spots, l.idle[0].flow)
		f.idle--
		r.forget(f, e.flow)
	}
}

// forget frees a flow. Another user will use its level again. If the level has grown
// because of many tenants, its memory is freed.
func (r *Room) forget(f *flows, i uint32) {
	f.drop(i)
	if f == &r.users && max(cap(r.inner[i].ready), cap(r.inner[i].idle)) > 64 {
		r.inner[i] = level{}
	}
}

// level shares what is served between flows: the users of a class, or the tenants
// of a user. It is start-time fair queueing (Goyal, Vin and Cheng 1996). Each flow
// carries a tag: the virtual time at which its next waiter starts. The least tag
// goes next. Each service moves its flow's tag on by units / weight. A flow's
// first waiter starts at the virtual time of its level. If the flow's old tag is
// still ahead of that, it starts there.
//
// Take two flows that both have somebody waiting. The units that they are served, by
// weight, differ by at most one waiter of each and the credit. The speed of the gate
// does not matter.
//
// In the paper virtual time is the tag of the flow served last. Here it stays behind
// that by a credit of a few turns. A flow that comes after a pause may be served that
// many at once. Without the credit, two requests of a light flow that come together
// count as a flood for a whole round. With many flows a round is long. The flow must
// stay away for as many rounds to have the credit again, so over time it gains
// nothing.
type level struct {
	ready   tags     // of those that have somebody waiting
	idle    tags     // of those that have not, as long as they are ahead of virtual time
	longest []uint32 // a heap of those that have somebody waiting, by load
	now     float64  // virtual time; never above the least tag
	weight  float64  // a user's own, as last heard
}

// credit is how many turns virtual time stays behind. A turn is the mean of the
// units served at a time. In a measurement (S13b on B1), 16 users flood a gate of
// two cores beside a hundred light users. With a credit of 0, 1, 2, 3 and 4, the
// light users wait 43, 32, 14, 12 and 12 ms at the 99th percentile.
const credit = 3

// usual is the mean of the units served at a time, over the last 16 or so.
type usual float64

func (u *usual) add(units float64) {
	if *u == 0 {
		*u = usual(units)
	}
	*u += (usual(units) - *u) / 16
}

// join adds flow i, which may be idle or new, to those with somebody waiting.
func (l *level) join(fs []spot, i uint32, turn int32, most int) {
	e := entry{l.now, turn, i}
	if fs[i].ready != 0 {
		e.tag = l.idle.drop(fs, i).tag
	}
	l.ready.push(fs, e, most)
}

// charge moves the tag of a flow that is served.
func (l *level) charge(fs []spot, i uint32, by float64, turn int32, behind float64) {
	l.now = max(l.now, l.ready[0].tag-behind)
	at := int(fs[i].ready - 1)
	l.ready[at].tag += by
	l.ready[at].turn = turn
	l.ready.down(fs, at)
	if l.now > rebase {
		l.restart()
	}
}

// Tags grow without bound while a level is never empty, and lose their fractions.
// So now and then they are counted from the present.
const rebase = 1 << 32

func (l *level) restart() {
	for _, all := range [2]tags{l.ready, l.idle} {
		for i := range all {
			all[i].tag -= l.now
		}
	}
	l.now = 0
}

// at returns flow i's entry, and the heap that it is in; nil if it is new.
func (l *level) at(fs []spot, i uint32) (*entry, tags) {
	at := fs[i].ready
	switch {
	case at == 0:
		return nil, nil
	case fs[i].longest != 0:
		return &l.ready[at-1], l.ready
	}
	return &l.idle[at-1], l.idle
}

// tag returns flow i's tag, or what it would be if it came now.
func (l *level) tag(fs []spot, i uint32) float64 {
	if e, _ := l.at(fs, i); e != nil {
		return e.tag
	}
	return l.now
}

// AdjustCost corrects the charge of a tenant of a user in a class, once the real cost
// of its work is known. It charges so many units more, or less if they are negative.
// Its next turn comes later or earlier. Nobody falls below virtual time. It does
// nothing while nobody waits in the class.
func (r *Room) AdjustCost(class int, user, tenant string, units float64) {
	if class < 0 || class >= Classes || units == 0 || math.IsNaN(units) {
		return
	}
	c := &r.classes[class]
	if c.n == 0 {
		return
	}
	by := max(-maxUnits, min(units, maxUnits))
	ofUser, ofTenant := 1., 1.
	if r.weights != nil {
		ofUser, ofTenant = r.weights(user, tenant)
	}
	u := r.users.find(user, uint32(class))
	if u != 0 && len(r.inner[u].longest) > 0 {
		inner := &r.inner[u]
		ofUser = inner.weight
		if t := r.tenants.find(tenant, u); t != 0 && r.tenants.all[t].back != nil {
			ofTenant = r.tenants.all[t].back.TenantWeight
		}
		r.correct(inner, &r.tenants, tenant, u, by/weight(ofTenant))
	}
	r.correct(&c.level, &r.users, user, uint32(class), by/weight(ofUser))
}

// correct moves the tag of the flow with that name.
func (r *Room) correct(l *level, f *flows, name string, in uint32, by float64) {
	i := f.find(name, in)
	if i == 0 {
		if by < 0 || f.idle >= r.memory() {
			return
		}
		if f == &r.users {
			i = r.user(name, int(in))
		} else {
			i = f.get(name, in, r.size)
		}
		f.idle++
		l.idle.push(f.spots, entry{l.now, r.nextTurn(), i}, r.memory())
	}
	e, heap := l.at(f.spots, i)
	e.tag = max(l.now, e.tag+by)
	heap.fix(f.spots, int(f.spots[i].ready-1))
	if f.spots[i].longest != 0 {
		l.weigh(f.spots, i, r.size)
	}
	r.sweep(l, f)
}

// Reweigh changes the weights of those that wait. Each stays as many units ahead of
// the next as it is. Otherwise a charge under a small weight would be a long debt
// under a large one. The room keeps weights, because AdjustCost needs them for users
// that do not wait.
func (r *Room) Reweigh(weights func(user, tenant string) (userWeight, tenantWeight float64)) {
	r.weights = weights
	if weights == nil {
		return
	}
	for _, w := range r.expiry {
		ofTenant := w.TenantWeight
		w.UserWeight, w.TenantWeight = weights(w.User, w.Tenant)
		w.tidy()
		user := r.tenants.all[w.flow].in
		if inner := &r.inner[user]; r.tenants.all[w.flow].back == w {
			inner.rescale(r.tenants.spots, w.flow, ofTenant/w.TenantWeight)
		}
		if ofUser := r.inner[user].weight; ofUser > 0 {
			r.classes[w.Class].rescale(r.users.spots, user, ofUser/w.UserWeight)
		}
		r.inner[user].weight = w.UserWeight
		r.users.spots[user].load, r.tenants.spots[w.flow].load = 0, 0
	}
	for _, w := range r.expiry {
		user := r.tenants.all[w.flow].in
		if r.alone(user) == nil {
			r.users.spots[user].load += cost(w) / w.UserWeight
		}
		if r.aloneOf(w.flow) == nil {
			r.tenants.spots[w.flow].load += cost(w) / w.TenantWeight
		}
	}
	for i := range r.classes {
		c := &r.classes[i]
		c.rebuild(r.users.spots)
		for _, user := range c.longest {
			r.inner[user].rebuild(r.tenants.spots)
		}
	}
}

// rescale changes the tag of flow i after its weight has changed. The flow stays as
// many units ahead of the next flow as before. Tags are units divided by weights.
func (l *level) rescale(fs []spot, i uint32, by float64) {
	if by == 1 {
		return
	}
	e, heap := l.at(fs, i)
	least := heap[0].tag
	e.tag = least + (e.tag-least)*by
	heap.fix(fs, int(fs[i].ready-1))
}

// rebuild makes the heap of loads anew.
func (l *level) rebuild(fs []spot) {
	for i := len(l.longest) - 1; i >= 0; i-- {
		l.sift(fs, i)
	}
}
