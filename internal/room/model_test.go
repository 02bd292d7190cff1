package room

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// both drives a room and the model.
type both struct {
	t     testing.TB
	r     Room
	m     many
	now   time.Duration
	in    map[*one]*Waiter
	ids   int
	weigh func(user, tenant string) (float64, float64)
	names int // how many users, and tenants of each
	seen  map[string]int
}

func newBoth(t testing.TB, size int, order Order, keep, names int) *both {
	b := &both{t: t, names: names, in: map[*one]*Waiter{}, seen: map[string]int{}}
	b.m.now, b.m.tags, b.m.weights = map[path]float64{}, map[path]map[string]tagged{}, map[path]float64{}
	b.m.reasons = map[path]uint16{}
	b.configure(size, order, keep)
	return b
}

func (b *both) configure(size int, order Order, keep int) {
	pace := Pace{Interval: 100 * ms, Service: 3 * ms, Keep: keep}
	b.r.Configure(size, order)
	b.r.SetPace(pace)
	b.m.size, b.m.order, b.m.pace = size, order, pace
}

func (b *both) same(what string, w *Waiter, o *one) bool {
	b.t.Helper()
	if id(w) != o.name() {
		b.t.Fatalf("%v: %s: waiter %d, want %d", b.now, what, id(w), o.name())
	}
	return o != nil
}

// name is one of the few there are.
func (b *both) name(of string, n uint32) string {
	if n %= uint32(b.names); n > 0 {
		return of + strings.Repeat("+", int(n))
	}
	return ""
}

func (b *both) arrive(arg uint32) {
	b.ids++
	o := &one{id: b.ids, expires: b.now + time.Duration(arg%7)*50*ms, units: int64(arg >> 3 % 4),
		class: int8(arg >> 5 % Classes), user: b.name("u", arg>>7%3), tenant: b.name("t", arg>>9),
		ofUser: []float64{1, 2, 0.5}[arg>>7%3], ofTenant: 1, deadline: b.now + time.Duration(arg>>15%5)*20*ms}
	if b.weigh != nil {
		o.ofUser, o.ofTenant = b.weigh(o.user, o.tenant)
	}
	w := &Waiter{Expires: o.expires, Units: o.units, Owner: o.id, Class: o.class, User: o.user, Tenant: o.tenant,
		UserWeight: o.ofUser, TenantWeight: o.ofTenant, Deadline: o.deadline}
	b.r.CountArrival(b.now, w)
	b.m.knock(b.now, o)
	if ahead := b.r.Ahead(w); ahead < 0 || len(b.m.queue) == 0 && ahead != 0 {
		b.t.Fatalf("%d units ahead, and %d wait", ahead, len(b.m.queue))
	}
	displaced, ok := b.r.Push(b.now, w)
	gone, in := b.m.push(b.now, o)
	if ok != in || w.Queued() != in {
		b.t.Fatalf("%v: waiter %d let in: %v, want %v", b.now, o.id, ok, in)
	}
	if b.same("displaced", displaced, gone) {
		b.gone(gone)
		b.seen["displaced"]++
		if gone.class != o.class {
			b.seen["of another class"]++
		} else if gone.user != o.user || gone.tenant != o.tenant {
			b.seen["of another flow"]++
		}
	}
	if in {
		b.in[o] = w
	} else {
		b.seen["refused"]++
	}
}

func (b *both) gone(o *one) {
	if b.in[o].Queued() {
		b.t.Fatalf("%v: waiter %d is out, and queued", b.now, o.id)
	}
	delete(b.in, o)
}

// any returns somebody who waits.
func (b *both) any(arg uint32) *one {
	if len(b.m.queue) == 0 {
		return nil
	}
	return b.m.queue[int(arg)%len(b.m.queue)]
}

func (b *both) dequeue() {
	w, o := b.r.Next(b.now), b.m.next(b.now)
	if b.same("next", w, o) {
		if tenants, _ := o.levels(); b.m.newestFirst() && !b.m.reversed(o) && len(b.m.of(tenants, o.tenant, false)) > 1 {
			b.seen["in order though others are not"]++
		}
		if o.class < b.m.highest() {
			b.seen["out of turn"]++
		}
		b.r.Dequeue(w)
		b.m.dequeue(o)
		b.gone(o)
	}
}

func (b *both) expire() {
	for w := b.r.Expired(b.now); w != nil; w = b.r.Expired(b.now) {
		o := b.m.expiry[0]
		b.same("expired", w, o)
		b.r.Expire(w)
		b.m.reasonIfStanding(o)
		b.m.leave(o)
		b.gone(o)
	}
}

func (b *both) settle(arg uint32) {
	class, units := int8(arg%Classes), float64(arg>>2%16)-6
	user, tenant := b.name("u", arg>>7%3), b.name("t", arg>>9)
	b.r.AdjustCost(int(class), user, tenant, units)
	b.m.settle(class, user, tenant, units, b.weigh)
}

// turn is what the gate does for a newcomer that would come too late.
func (b *both) turn(arg uint32) {
	o := &one{class: int8(arg >> 5 % Classes), user: b.name("u", arg>>7%3), tenant: b.name("t", arg>>9)}
	b.r.PreferNewest(&Waiter{Class: o.class, User: o.user, Tenant: o.tenant})
	b.m.turn()
	b.m.reason(o)
}

func (b *both) reweigh(arg uint32) {
	powers := []float64{1, 2, 4, 0.5}
	b.weigh = func(user, tenant string) (float64, float64) {
		return powers[(uint32(len(user))+arg)%4], powers[(uint32(len(tenant))+arg>>2)%4]
	}
	b.r.Reweigh(b.weigh)
	for _, o := range b.m.queue {
		tenants, users := o.levels()
		ofUser, ofTenant := b.weigh(o.user, o.tenant)
		if same := b.m.of(tenants, o.tenant, false); o == same[len(same)-1] {
			b.m.rescale(tenants, o.tenant, o.ofTenant/ofTenant)
		}
		b.m.rescale(users, o.user, b.m.weights[path{o.class, o.user}]/ofUser)
		o.ofUser, o.ofTenant = ofUser, ofTenant
		b.m.weights[path{o.class, o.user}] = o.ofUser
	}
	b.m.mean.ofUser, b.m.mean.ofTenant = 0, 0
	for p, tags := range b.m.tags {
		if len(tags) == 0 {
			continue
		}
		b.m.now[p] = tags[b.m.least(p)].tag
		for name := range tags {
			if len(b.m.of(p, name, false)) == 0 {
				delete(tags, name)
			}
		}
	}
}

func (b *both) step(op, arg uint32) {
	switch op % 20 {
	case 0, 1, 2, 3, 4, 5, 6:
		b.arrive(arg)
	case 7, 8, 9, 10, 11:
		b.dequeue()
	case 12, 13:
		if o := b.any(arg); o != nil {
			b.r.GiveUp(b.now, b.in[o])
			if b.now-o.arrived >= b.m.pace.Service {
				b.m.standing.gaveUp(b.now)
				b.m.reason(o)
			}
			b.m.leave(o)
			b.gone(o)
		}
	case 14:
		b.expire()
	case 15:
		b.settle(arg)
	case 16:
		if arg%4 == 0 {
			b.reweigh(arg >> 2)
		}
	case 17:
		if arg%8 == 0 {
			b.configure(int(arg>>3%24), Order(arg>>8%4), int(arg>>10%8))
		} else {
			b.turn(arg)
		}
	case 18:
		if arg%8 == 0 {
			b.m.shares = [Classes]float64{float64(arg >> 3 % 3 / 2), float64(arg>>5%4) / 8, float64(arg>>7%4) / 8}
			b.r.SetShares(b.m.shares)
			for i := range b.m.shares { // as scaled
				b.m.shares[i] = b.r.classes[i].share
			}
		}
	default:
		b.now += time.Duration(arg%20) * ms
	}
	b.compare()
	if arg%8 == 0 {
		b.r.check(b.t)
	}
}

func (b *both) compare() {
	b.t.Helper()
	if b.r.Len() != len(b.m.queue) || b.r.Units() != b.m.units() {
		b.t.Fatalf("%v: %d wait for %d, want %d for %d", b.now, b.r.Len(), b.r.Units(), len(b.m.queue), b.m.units())
	}
	for class, n := range b.r.ByClass() {
		if want := b.m.count(int8(class)); n != want {
			b.t.Fatalf("%v: %d wait in class %d, want %d", b.now, n, class, want)
		}
	}
	if b.r.NewestFirst() != b.m.newestFirst() {
		b.t.Fatalf("%v: newest first %v", b.now, b.r.NewestFirst())
	}
	if b.r.tenants.idle != b.m.idle(false) || b.r.users.idle != b.m.idle(true) {
		b.t.Fatalf("%v: %d users and %d tenants are remembered, want %d and %d", b.now,
			b.r.users.idle, b.r.tenants.idle, b.m.idle(true), b.m.idle(false))
	}
}

// TestModel holds the room against the obvious one, whoever comes and whatever
// happens to them.
func TestModel(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 40
	}
	seen := map[string]int{} // how often each rule was in force
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 5))
		b := newBoth(t, []int{6, 12, 24, 0}[rng.IntN(50)%4], Order(seed%4), rng.IntN(10), 1+rng.IntN(5))
		b.seen = seen
		for range 300 {
			b.step(rng.Uint32(), rng.Uint32())
		}
		for range 30 {
			b.dequeue()
		}
		if b.r.Len() != 0 || b.r.users.n != 0 || b.r.tenants.n != 0 {
			t.Fatalf("seed %d: %d wait, and %d users and %d tenants are known", seed, b.r.Len(), b.r.users.n, b.r.tenants.n)
		}
	}
	for _, what := range []string{"displaced", "of another class", "of another flow", "refused", "out of turn", "in order though others are not"} {
		if seen[what] < 10 {
			t.Errorf("%s: %d times", what, seen[what])
		}
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte{4, 6, 2, 0, 0, 0, 0, 1, 9, 3, 200, 7, 0, 0, 0, 15, 3, 1, 9})
	f.Add([]byte{2, 3, 3, 17, 8, 3, 3, 1, 77, 99, 2, 12, 7, 7, 1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 800 {
			return
		}
		b := newBoth(t, int(data[0]%16), Order(data[1]%4), int(data[2]>>4), 1+int(data[2]%4))
		for data = data[3:]; len(data) >= 4; data = data[4:] {
			b.step(uint32(data[0]), uint32(data[1])|uint32(data[2])<<8|uint32(data[3])<<16)
		}
	})
}

// single is a wait room that knows neither classes nor names: one queue, in order
// of arrival. For work that names nobody and is all of one class, a room has to do
// exactly what this does. It shares only what tells that a queue stands, which has
// tests of its own.
type single struct {
	size     int
	order    Order
	pace     Pace
	standing standing
	queue    []*one // oldest first
	expiry   []*one // a heap
}

type one struct {
	id               int
	expires, arrived time.Duration
	units            int64

	// For the model of many flows.
	class            int8
	user, tenant     string
	ofUser, ofTenant float64 // weights
	deadline         time.Duration
}

func (s *single) kept() int {
	kept := s.size
	if s.order == Adaptive && s.pace.Keep > 0 {
		kept = min(kept, s.pace.Keep)
		if s.standing.is {
			kept = min(kept, s.standing.promising)
		}
	}
	return kept
}

func (s *single) newestFirst() bool {
	return s.order == LIFO || s.order == Adaptive && (s.standing.newest || s.standing.impatient)
}

func (s *single) full() bool {
	turns := s.newestFirst() || s.order == Adaptive && s.standing.is
	return len(s.queue) >= s.size && (s.size == 0 || !turns)
}

func (s *single) turn() bool {
	if s.order == Adaptive && !s.standing.newest {
		s.standing.putNewestFirst(len(s.queue))
	}
	return s.newestFirst()
}

func (s *single) reasonIfStanding() bool {
	if s.standing.is {
		return s.turn()
	}
	return s.newestFirst()
}

func (s *single) units() (n int64) {
	for _, w := range s.queue {
		n += w.units
	}
	return n
}

func (s *single) knock(now time.Duration) {
	if len(s.queue) == 0 && !s.standing.lasts(now, s.pace.Interval) {
		s.standing.begin(now)
	}
	s.standing.judge(now, s.pace.Interval)
	s.standing.arrived++
}

func (s *single) push(now time.Duration, w *one) (displaced *one, ok bool) {
	places := s.size
	if s.standing.is {
		places = s.kept()
	}
	if len(s.queue) >= places {
		if s.size == 0 || !s.reasonIfStanding() {
			return nil, false
		}
		displaced = s.queue[0]
		s.remove(displaced)
	}
	w.arrived = now
	s.queue = append(s.queue, w)
	s.expiry = append(s.expiry, w)
	s.up(len(s.expiry) - 1)
	return displaced, true
}

func (s *single) next(now time.Duration) *one {
	if len(s.queue) == 0 {
		return nil
	}
	s.standing.judge(now, s.pace.Interval)
	if s.newestFirst() {
		return s.queue[len(s.queue)-1]
	}
	return s.queue[0]
}

func (s *single) giveUp(now time.Duration, w *one) {
	if now-w.arrived >= s.pace.Service {
		s.standing.gaveUp(now)
	}
	s.remove(w)
}

func (s *single) remove(w *one) {
	s.queue = slices.Delete(s.queue, slices.Index(s.queue, w), slices.Index(s.queue, w)+1)
	i, last := slices.Index(s.expiry, w), len(s.expiry)-1
	s.expiry[i] = s.expiry[last]
	s.expiry = s.expiry[:last]
	if i < last {
		s.up(i)
		s.down(i)
	}
	s.standing.fallTo(len(s.queue))
}

func (s *single) up(i int) {
	for i > 0 && s.expiry[(i-1)/2].expires > s.expiry[i].expires {
		s.expiry[i], s.expiry[(i-1)/2] = s.expiry[(i-1)/2], s.expiry[i]
		i = (i - 1) / 2
	}
}

func (s *single) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.expiry); child++ {
			if s.expiry[child].expires < s.expiry[least].expires {
				least = child
			}
		}
		if least == i {
			return
		}
		s.expiry[i], s.expiry[least] = s.expiry[least], s.expiry[i]
		i = least
	}
}

// twins are a room and what it must not differ from.
type twins struct {
	t     testing.TB
	r     *Room
	s     single
	now   time.Duration
	class int8
	user  string
	in    map[int]*Waiter
	ones  map[int]*one
	ids   int
}

func (p *twins) configure(size int, order Order, keep int) {
	pace := Pace{Interval: 100 * ms, Service: 3 * ms, Keep: keep}
	p.r.Configure(size, order)
	p.r.SetPace(pace)
	p.s.size, p.s.order, p.s.pace = size, order, pace
}

func (p *twins) same(what string, got, want any) {
	p.t.Helper()
	if got != want {
		p.t.Fatalf("%v: %s: %v, want %v", p.now, what, got, want)
	}
}

// id names a waiter, -1 for none.
func id(w *Waiter) int {
	if w == nil {
		return -1
	}
	return w.Owner.(int)
}

func (o *one) name() int {
	if o == nil {
		return -1
	}
	return o.id
}

func (p *twins) step(op, arg int) {
	switch op % 16 {
	case 0, 1, 2, 3, 4, 5:
		p.arrive(arg)
	case 6, 7, 8, 9:
		w, o := p.r.Next(p.now), p.s.next(p.now)
		if p.same("next", id(w), o.name()); w != nil {
			p.r.Dequeue(w)
			p.s.remove(o)
			p.s.standing.served++
			p.gone(o.id)
		}
	case 10:
		if len(p.s.queue) > 0 {
			o := p.s.queue[arg%len(p.s.queue)]
			p.r.GiveUp(p.now, p.in[o.id])
			p.s.giveUp(p.now, o)
			p.gone(o.id)
		}
	case 11:
		if len(p.s.queue) > 0 {
			o := p.s.queue[arg%len(p.s.queue)]
			p.r.Remove(p.in[o.id])
			p.s.remove(o)
			p.gone(o.id)
		}
	case 12:
		for w := p.r.Expired(p.now); w != nil; w = p.r.Expired(p.now) {
			o := p.s.expiry[0]
			p.same("expired", id(w), o.id)
			p.r.Expire(w)
			p.s.reasonIfStanding()
			p.s.remove(o)
			p.gone(o.id)
		}
	case 13:
		if arg%8 == 0 {
			p.configure(arg/8%40, Order(arg/512%3), arg%5*3)
		} else {
			w := &Waiter{Class: p.class, User: p.user, Tenant: p.user}
			p.same("turn", p.r.PreferNewest(w), p.s.turn())
		}
	default:
		p.now += time.Duration(arg%30) * ms
	}
	p.compare()
}

func (p *twins) arrive(arg int) {
	p.ids++
	expires := p.now + time.Duration(arg%7)*50*ms // many at the same time
	w := &Waiter{Expires: expires, Units: int64(1 + arg%4), Owner: p.ids, Class: p.class, User: p.user, Tenant: p.user}
	o := &one{id: p.ids, expires: expires, units: w.Units}
	p.r.CountArrival(p.now, w)
	p.s.knock(p.now)
	var ahead int64
	if !p.s.newestFirst() {
		ahead = p.s.units()
	}
	p.same("ahead", p.r.Ahead(w), ahead)
	out, ok := p.r.Push(p.now, w)
	gone, in := p.s.push(p.now, o)
	p.same("pushed", ok, in)
	p.same("displaced", id(out), gone.name())
	if gone != nil {
		p.gone(gone.id)
	}
	if in {
		p.in[o.id], p.ones[o.id] = w, o
	}
	p.same("queued", w.Queued(), in)
}

func (p *twins) gone(id int) {
	p.same("still queued", p.in[id].Queued(), false)
	delete(p.in, id)
	delete(p.ones, id)
}

func (p *twins) compare() {
	p.same("len", p.r.Len(), len(p.s.queue))
	p.same("units", p.r.Units(), p.s.units())
	p.same("kept", p.r.Kept(), p.s.kept())
	p.same("newest first", p.r.NewestFirst(), p.s.newestFirst())
	if p.class == 1 && p.user == "" {
		p.same("full", p.r.Full(), p.s.full())
	}
	oldest, expiry := -1, Never
	if len(p.s.queue) > 0 {
		oldest, expiry = p.s.queue[0].id, p.s.expiry[0].expires
	}
	p.same("oldest", id(p.r.Oldest()), oldest)
	p.same("expiry", p.r.Expiry(), expiry)
	var n [Classes]int
	n[p.class] = len(p.s.queue)
	p.same("by class", p.r.ByClass(), n)
}

// Work that is all of one class and of one tenant is served as if there were
// neither, whichever they are.
func TestOneFlowIsOneQueue(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := &twins{t: t, r: new(Room), in: map[int]*Waiter{}, ones: map[int]*one{}, class: 1}
		if seed%3 == 2 {
			p.class, p.user = int8(rng.IntN(Classes)), "u"
		}
		p.configure(rng.IntN(40), Order(rng.IntN(3)), rng.IntN(12))
		for range 400 {
			p.step(rng.IntN(16), rng.IntN(1<<12))
		}
	}
}
