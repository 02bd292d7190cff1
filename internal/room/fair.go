package room

import (
	"math"
)

// Classes is how many classes of priority there are. Class 0 is served last.
const Classes = 4

// class is the waiters of one priority.
type class struct {
	level         // its users
	n       int   // waiters
	units   int64 // that they wait for
	share   float64
	arrears float64 // units that it may be served out of turn
}

// level shares what is served between flows: the users of a class, or the tenants
// of a user. It is start-time fair queueing (Goyal, Vin and Cheng 1996). Each flow
// carries a tag: the virtual time at which its next waiter starts. The least tag
// is served next. Each service moves its flow's tag on by units / weight. A flow's
// first waiter starts at the virtual time of its level. If the flow's old tag is
// still ahead of that, it starts there.
//
// While two flows both have waiters, what they were served, by weight, differs by at
// most the largest waiter of each plus the credit. The speed of the gate does not matter.
//
// In the paper virtual time is the tag of the flow served last. Here it stays behind
// that by a credit, of a few waiters of the mean cost and the mean weight. So a flow
// that comes after a pause may be served a few waiters at once; more, if its weight is above
// that of the others. If all weights are multiplied by a number, nothing changes. Without
// the credit, two requests of a light flow that come together count as a flood for a whole
// round. With many flows a round is long. To have the credit again, the flow must stay away
// for one round for each waiter of credit. So over time it gains nothing.
type level struct {
	ready   tags     // of those that have somebody waiting
	idle    tags     // of those that have not, as long as they are ahead of virtual time
	longest []uint32 // a heap of those that have somebody waiting, by load
	now     float64  // virtual time; never above the least tag
	weight  float64  // a user's own, as last heard
}

// credit is by how many waiters of the mean cost and weight virtual time stays behind. In a
// measurement (S13b on B1), 16 users flood a gate of two cores beside a hundred light
// users. With a credit of 0, 1, 2, 3 and 4, the light users wait 43, 32, 14, 12 and 12 ms
// at the 99th percentile.
const credit = 3

// mean is that of the last 16 services or so: of their units, or of the weights of their users or tenants.
type mean float64

func (m *mean) add(x float64) {
	if *m == 0 {
		*m = mean(x)
	}
	*m += (mean(x) - *m) / 16
}

// SetShares guarantees classes a share of the units served. A guarantee holds while
// somebody waits in the class and somebody waits above it. Units served while nothing
// waits above the class do not count. That share of the places is also reserved for it.
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

// nextClass returns which class is served next. Somebody must be waiting.
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

// countShares counts w, which still waits, as served in the shares of classes.
func (r *Room) countShares(w *Waiter) {
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

// The hierarchy: a class has users, a user has tenants, a tenant has waiters. What
// changes at one level changes those above.

// next returns the tenant that is served next in a class. Somebody must be waiting there.
func (r *Room) next(class int) uint32 {
	return r.inner[r.classes[class].ready[0].flow].ready[0].flow
}

// head returns the waiter that is served next in a class. Somebody must be waiting there.
func (r *Room) head(class int) *Waiter { return r.first(r.next(class)) }

// enter adds w to its tenant, user and class. It reports whether nobody of w's user waited
// before; of its tenant, if the user has no name.
//
// Among equal tags newcomers are served last, or first if newcomersFirst.
func (r *Room) enter(w *Waiter) (first bool) {
	c, tie := &r.classes[w.Class], r.nextTie()
	user := r.getUser(w.User, int(w.Class))
	w.flow = r.tenants.get(w.Tenant, user, r.size)
	ofUser, ofTenant := r.userLoad(user), r.tenantLoad(w.flow)
	r.link(w)
	if r.newcomersFirst() {
		tie = -tie
	}
	inner := &r.inner[user]
	r.raise(inner, &r.tenants, w.flow, ofTenant+cost(w)/w.TenantWeight, tie)
	inner.weight = w.UserWeight
	r.raise(&c.level, &r.users, user, ofUser+cost(w)/w.UserWeight, tie)
	c.n++
	c.units += w.Units
	r.units += w.Units
	if w.User != "" {
		return ofUser == 0
	}
	return ofTenant == 0
}

// newcomersFirst reports whether newcomers are served first among equal tags, because the
// newest is. They are last if memory is full: otherwise newcomers would pass those who
// come back, for ever.
func (r *Room) newcomersFirst() bool {
	return r.turned() && r.users.idle+r.tenants.idle < r.memory()
}

// getUser returns the user of that name in a class, known or new.
func (r *Room) getUser(name string, class int) uint32 {
	i := r.users.get(name, uint32(class), r.size)
	if int(i) == len(r.inner) {
		r.inner = append(extend(r.inner, cap(r.users.spots)), level{})
	} else if len(r.inner) == 0 {
		r.inner = make([]level, i+1, cap(r.users.spots))
	}
	return i
}

// nextTie returns a higher number than before, to break a tie between equal tags.
func (r *Room) nextTie() int32 {
	if r.ties++; r.ties == math.MaxInt32 {
		r.ties = 1
	}
	return r.ties
}

// memory returns how many users without waiters are remembered. It is the same number
// for tenants.
func (r *Room) memory() int { return max(64, r.size) }

// raise is called when a waiter has joined a flow. load is the flow's load now, if the
// waiter is not alone.
func (r *Room) raise(l *level, f *flows, i uint32, load float64, tie int32) {
	at := &f.spots[i]
	if at.loadAt != 0 {
		at.load = load
	} else {
		if at.tagAt != 0 {
			f.idle--
		}
		l.join(f.spots, i, tie, r.size)
	}
	l.fixLoad(f.spots, i, r.size)
}

// countServed counts w, which still waits, as served.
func (r *Room) countServed(w *Waiter) {
	if !w.Queued() {
		return
	}
	r.countShares(w)
	units, tie := cost(w), r.nextTie()
	user := r.tenants.all[w.flow].in
	r.meanUnits.add(units)
	r.meanTenant.add(w.TenantWeight)
	r.meanUser.add(w.UserWeight)
	behind := credit * float64(r.meanUnits)
	r.inner[user].moveOn(r.tenants.spots, w.flow, units/w.TenantWeight, tie, behind/float64(r.meanTenant))
	r.classes[w.Class].moveOn(r.users.spots, user, units/w.UserWeight, tie, behind/float64(r.meanUser))
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
	r.lower(inner, &r.tenants, tenant, load, last)
	load, last = 0, len(inner.longest) == 0
	if !last && r.alone(user) == nil {
		load = max(leastLoad, r.users.spots[user].load-cost(w)/w.UserWeight)
	}
	r.lower(&c.level, &r.users, user, load, last)
	c.units -= w.Units
	r.units -= w.Units
	c.n--
}

// lower is called when a waiter has left a flow. load is the flow's load now. After the
// last waiter the flow leaves its level, but its tag is remembered while it is ahead of
// virtual time. Otherwise a flow that comes back before virtual time reaches its tag would
// be served too soon. A tag that is not ahead can be forgotten.
func (r *Room) lower(l *level, f *flows, i uint32, load float64, gone bool) {
	at := &f.spots[i]
	if !gone {
		at.load = load
		l.fixLoad(f.spots, i, r.size)
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
	r.sweepTo(l, f, passed)
}

// sweepTo forgets flows without waiters up to a tag.
func (r *Room) sweepTo(l *level, f *flows, passed float64) {
	for len(l.idle) > 0 && l.idle[0].tag <= passed {
		e := l.idle.drop(f.spots, l.idle[0].flow)
		f.idle--
		r.forget(f, e.flow)
	}
}

// forget frees a flow. A user's level stays for the next user, unless many tenants made
// it large.
func (r *Room) forget(f *flows, i uint32) {
	f.drop(i)
	if f == &r.users && max(cap(r.inner[i].ready), cap(r.inner[i].idle)) > 64 {
		r.inner[i] = level{}
	}
}

// join adds flow i, which may be idle or new, to those with somebody waiting.
func (l *level) join(fs []spot, i uint32, tie int32, most int) {
	e := entry{l.now, tie, i}
	if fs[i].tagAt != 0 {
		e.tag = l.idle.drop(fs, i).tag
	}
	l.ready.push(fs, e, most)
}

// moveOn moves the tag of a flow that is served.
func (l *level) moveOn(fs []spot, i uint32, by float64, tie int32, behind float64) {
	l.now = max(l.now, l.ready[0].tag-behind)
	at := int(fs[i].tagAt - 1)
	l.ready[at].tag += by
	l.ready[at].tie = tie
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
	at := fs[i].tagAt
	switch {
	case at == 0:
		return nil, nil
	case fs[i].loadAt != 0:
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

// AdjustCost corrects the cost of a tenant of a user in a class, once the real cost of
// its work is known. So many units are added, or taken off if they are negative. The
// tenant's next waiter is served later or earlier. Nobody falls below virtual time. It
// does nothing while nobody waits in the class.
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

// correct moves the tag of the flow with that name. An unknown flow that costs more
// is remembered.
func (r *Room) correct(l *level, f *flows, name string, in uint32, by float64) {
	i := f.find(name, in)
	if i == 0 {
		if by < 0 || f.idle >= r.memory() {
			return
		}
		if f == &r.users {
			i = r.getUser(name, int(in))
		} else {
			i = f.get(name, in, r.size)
		}
		f.idle++
		l.idle.push(f.spots, entry{l.now, r.nextTie(), i}, r.memory())
	}
	e, heap := l.at(f.spots, i)
	e.tag = max(l.now, e.tag+by)
	heap.fix(f.spots, int(f.spots[i].tagAt-1))
	if f.spots[i].loadAt != 0 {
		l.fixLoad(f.spots, i, r.size)
	}
	r.sweep(l, f)
}

// Reweigh changes the weights of those that wait. Each flow stays as many units ahead of
// the one served next as it is now. Otherwise a cost that counted under a small weight
// would be a long debt under a large one. Debts of those that do not wait are forgotten,
// because nobody knows their weights of before. The room stores weights, because AdjustCost
// needs them for users that do not wait.
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
	r.meanUser, r.meanTenant = 0, 0
	for i := range r.classes {
		c := &r.classes[i]
		c.rebuild(r.users.spots)
		r.startAnew(&c.level, &r.users)
		for _, user := range c.longest {
			r.inner[user].rebuild(r.tenants.spots)
			r.startAnew(&r.inner[user], &r.tenants)
		}
	}
}

// startAnew forgets the flows of a level that have no waiters: their tags are by the weights of before.
func (r *Room) startAnew(l *level, f *flows) {
	if len(l.ready) == 0 {
		return
	}
	l.now = l.ready[0].tag
	r.sweepTo(l, f, math.Inf(1))
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
	heap.fix(fs, int(fs[i].tagAt-1))
}
