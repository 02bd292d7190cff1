package room

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// many is the room as one would write it in ten minutes: one list of waiters, and
// a tag for each name, everything looked up by walking. It takes over from single
// what does not depend on who waits.
type many struct {
	single
	shares  [Classes]float64
	arrears [Classes]float64
	turns   int32
	now     map[path]float64 // virtual time
	tags    map[path]map[string]tagged
	weights map[path]float64 // of users
}

// path names a level: the users of a class, or with a user (after "/") its tenants.
type path struct {
	class int8
	user  string
}

type tagged struct {
	tag  float64
	turn int32
}

func (a tagged) compare(b tagged) int {
	return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.turn, b.turn))
}

func (o *one) levels() (ofTenant, ofUser path) { return path{o.class, "/" + o.user}, path{o.class, ""} }

// of returns those that wait at a level, of one name there or of all.
func (m *many) of(p path, name string, all bool) (some []*one) {
	for _, o := range m.queue {
		tenants, users := o.levels()
		if p == users && (all || name == o.user) || p == tenants && (all || name == o.tenant) {
			some = append(some, o)
		}
	}
	return some
}

// load is what a name has waiting for its weight.
func (m *many) load(p path, name string) (sum float64) {
	for _, o := range m.of(p, name, false) {
		sum += m.weighed(p, o)
	}
	return sum
}

func (m *many) weighed(p path, o *one) float64 {
	if p.user == "" {
		return m.cost(o) / o.ofUser
	}
	return m.cost(o) / o.ofTenant
}

// idle counts the tags of those who do not wait.
func (m *many) idle(users bool) (n int) {
	for p, tags := range m.tags {
		for name := range tags {
			if (p.user == "") == users && len(m.of(p, name, false)) == 0 {
				n++
			}
		}
	}
	return n
}

func (m *many) memory() int { return max(64, m.size) }

func (m *many) take() int32 {
	m.turns++
	return m.turns
}

func (m *many) enter(now time.Duration, o *one) {
	turn := m.take()
	if m.newestFirst() && m.idle(true)+m.idle(false) < m.memory() {
		turn = -turn
	}
	tenants, users := o.levels()
	m.join(tenants, o.tenant, turn)
	m.join(users, o.user, turn)
	m.weights[path{o.class, o.user}] = o.ofUser
	o.arrived = now
	m.queue = append(m.queue, o)
	m.expiry = append(m.expiry, o)
	m.up(len(m.expiry) - 1)
}

func (m *many) join(p path, name string, turn int32) {
	if len(m.of(p, name, false)) > 0 {
		return
	}
	if m.tags[p] == nil {
		m.tags[p] = map[string]tagged{}
	}
	t, known := m.tags[p][name]
	if !known {
		t.tag = m.now[p]
	}
	m.tags[p][name] = tagged{t.tag, turn}
}

func (m *many) leave(o *one) {
	tenants, users := o.levels()
	m.remove(o)
	m.part(tenants, o.tenant)
	m.part(users, o.user)
	if len(m.queue) == 0 {
		m.arrears = [Classes]float64{}
	}
}

func (m *many) part(p path, name string) {
	tags := m.tags[p]
	t := tags[name]
	if len(m.of(p, name, false)) > 0 {
		m.sweep(p)
		return
	}
	if t.tag <= m.now[p] || m.idle(p.user == "") > m.memory() {
		delete(tags, name)
	}
	m.sweep(p)
	if _, kept := tags[name]; !kept && len(tags) > 0 {
		m.now[p] = max(m.now[p], min(t.tag, m.tags[p][m.least(p)].tag))
	}
}

func (m *many) sweep(p path) {
	tags := m.tags[p]
	if len(m.of(p, "", true)) == 0 {
		clear(tags)
		delete(m.now, p)
		return
	}
	for name := m.least(p); len(m.of(p, name, false)) == 0; name = m.least(p) {
		m.now[p] = tags[name].tag
		delete(tags, name)
	}
}

func (m *many) least(p path) (least string) {
	first := true
	for name, t := range m.tags[p] {
		if first || t.compare(m.tags[p][least]) < 0 {
			least, first = name, false
		}
	}
	return least
}

func (m *many) count(class int8) int { return len(m.of(path{class, ""}, "", true)) }

// sorted returns a tenant's waiters, the next first.
func (m *many) sorted(p path, tenant string) []*one {
	some := m.of(p, tenant, false)
	switch {
	case m.order == EDF:
		slices.SortStableFunc(some, func(a, b *one) int { return cmp.Compare(a.deadline, b.deadline) })
	case m.newestFirst():
		slices.Reverse(some)
	}
	return some
}

func (m *many) head(class int8) *one {
	p := path{class, ""}
	p.user = "/" + m.least(p)
	return m.sorted(p, m.least(p))[0]
}

func (m *many) cost(o *one) float64 { return max(1, float64(o.units)) }

func (m *many) highest() (class int8) {
	for _, o := range m.queue {
		class = max(class, o.class)
	}
	return class
}

func (m *many) next(now time.Duration) *one {
	if len(m.queue) == 0 {
		return nil
	}
	m.standing.look(now, m.pace.Interval)
	for c := m.highest() - 1; c >= 0; c-- {
		if m.count(c) > 0 && m.shares[c] > 0 && m.arrears[c]+m.shares[c]*m.cost(m.head(c)) >= m.cost(m.head(c))-1e-9 {
			return m.head(c)
		}
	}
	return m.head(m.highest())
}

func (m *many) serve(o *one) {
	for c := range m.highest() {
		if m.count(c) > 0 && m.shares[c] > 0 {
			m.arrears[c] += m.shares[c] * m.cost(o)
			if c == o.class {
				m.arrears[c] = max(0, m.arrears[c]-m.cost(o))
			}
		}
	}
	turn := m.take()
	tenants, users := o.levels()
	m.charge(tenants, o.tenant, m.cost(o)/o.ofTenant, turn)
	m.charge(users, o.user, m.cost(o)/o.ofUser, turn)
	m.leave(o)
	m.standing.served++
}

func (m *many) charge(p path, name string, by float64, turn int32) {
	m.now[p] = m.tags[p][m.least(p)].tag
	m.tags[p][name] = tagged{m.tags[p][name].tag + by, turn}
}

func (m *many) reserved(class int8) int {
	if m.shares[class] == 0 {
		return 0
	}
	places := m.size
	if m.standing.is {
		places = m.kept()
	}
	return max(1, int(m.shares[class]*float64(places)))
}

// worst returns who of a level has most waiting, and how much.
func (m *many) worst(p path) (worst string, load float64) {
	first := true
	for name := range m.tags[p] {
		if len(m.of(p, name, false)) == 0 {
			continue
		}
		l := m.load(p, name)
		if len(m.of(p, name, false)) == 1 {
			l = 0 // nothing to spare
		}
		if first || l > load || l == load && m.tags[p][name].compare(m.tags[p][worst]) > 0 {
			worst, load, first = name, l, false
		}
	}
	return worst, load
}

func (m *many) lastOf(p path) *one {
	if p.user == "" {
		user, _ := m.worst(p)
		p.user = "/" + user
	}
	tenant, _ := m.worst(p)
	sorted := m.sorted(p, tenant)
	return sorted[len(sorted)-1]
}

// victim mirrors the rule of displacement as it is documented.
func (m *many) victim(o *one, newest, free bool) *one {
	short := m.count(o.class) < m.reserved(o.class)
	for c := range int8(Classes) {
		if c != o.class && (c < o.class || short) && m.count(c) > m.reserved(c) {
			return m.lastOf(path{c, ""})
		}
	}
	tenants, users := o.levels()
	if !m.mine(users, o.user, m.weighed(users, o), newest, free) {
		return m.lastOf(users)
	}
	if len(m.of(tenants, "", true)) == 0 {
		return nil
	}
	if !m.mine(tenants, o.tenant, m.weighed(tenants, o), newest, free) {
		return m.lastOf(tenants)
	}
	if own := m.sorted(tenants, o.tenant); newest && !free && len(own) > 0 {
		return own[len(own)-1]
	}
	return nil
}

func (m *many) mine(p path, own string, more float64, newest, free bool) bool {
	if len(m.of(p, "", true)) == 0 {
		return true
	}
	worst, load := m.worst(p)
	if len(m.of(p, own, false)) > 0 {
		return worst == own || m.load(p, own)+more >= load
	}
	t, known := m.tags[p][own]
	if t.turn = m.turns + 1; newest {
		t.turn = -t.turn
	}
	if !known {
		t.tag = m.now[p]
	}
	return load == 0 && (free || t.compare(m.tags[p][worst]) > 0)
}

func (m *many) push(now time.Duration, o *one) (displaced *one, ok bool) {
	places := m.size
	if m.standing.is {
		places = m.kept()
	}
	if len(m.queue) >= places {
		if m.size == 0 {
			return nil, false
		}
		newest := m.crowded()
		tenants, _ := o.levels()
		entitled := m.size
		if m.order == Adaptive && m.pace.Keep > 0 {
			entitled = min(m.size, m.pace.Keep)
		}
		free := len(m.queue) < entitled && len(m.of(tenants, o.tenant, false)) < fewest
		if displaced = m.victim(o, newest, free); displaced != nil {
			m.leave(displaced)
		} else if !free {
			return nil, false
		}
	}
	m.enter(now, o)
	return displaced, true
}

func (m *many) settle(class int8, user, tenant string, units int64, weigh func(user, tenant string) (float64, float64)) {
	users, tenants := path{class, ""}, path{class, "/" + user}
	if units == 0 || m.count(class) == 0 {
		return
	}
	ofUser, ofTenant := 1., 1.
	if weigh != nil {
		ofUser, ofTenant = weigh(user, tenant)
	}
	if len(m.of(tenants, "", true)) > 0 {
		ofUser = m.weights[path{class, user}]
		if same := m.of(tenants, tenant, false); len(same) > 0 {
			ofTenant = same[len(same)-1].ofTenant
		}
		m.correct(tenants, tenant, float64(units)/ofTenant)
	}
	m.correct(users, user, float64(units)/ofUser)
}

func (m *many) correct(p path, name string, by float64) {
	t, known := m.tags[p][name]
	if !known {
		if by < 0 || m.idle(p.user == "") >= m.memory() {
			return
		}
		t = tagged{m.now[p], m.take()}
	}
	t.tag = max(m.now[p], t.tag+by)
	m.tags[p][name] = t
	m.sweep(p)
}

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
		ofUser: []float64{1, 2, .5}[arg>>7%3], ofTenant: 1, deadline: b.now + time.Duration(arg>>15%5)*20*ms}
	if b.weigh != nil {
		o.ofUser, o.ofTenant = b.weigh(o.user, o.tenant)
	}
	w := &Waiter{Expires: o.expires, Units: o.units, Owner: o.id, Class: o.class, User: o.user, Tenant: o.tenant,
		UserWeight: o.ofUser, TenantWeight: o.ofTenant, Deadline: o.deadline}
	b.r.Knock(b.now)
	b.m.knock(b.now)
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

func (b *both) serve() {
	w, o := b.r.Next(b.now), b.m.next(b.now)
	if b.same("next", w, o) {
		if o.class < b.m.highest() {
			b.seen["out of turn"]++
		}
		b.r.Serve(w)
		b.m.serve(o)
		b.gone(o)
	}
}

func (b *both) expire() {
	for w := b.r.Expired(b.now); w != nil; w = b.r.Expired(b.now) {
		o := b.m.expiry[0]
		b.same("expired", w, o)
		b.r.Expire(w)
		b.m.crowded()
		b.m.leave(o)
		b.gone(o)
	}
}

func (b *both) settle(arg uint32) {
	class, units := int8(arg%Classes), int64(arg>>2%16)-6
	user, tenant := b.name("u", arg>>7%3), b.name("t", arg>>9)
	b.r.Settle(int(class), user, tenant, units)
	b.m.settle(class, user, tenant, units, b.weigh)
}

func (b *both) reweigh(arg uint32) {
	powers := []float64{1, 2, 4, .5}
	b.weigh = func(user, tenant string) (float64, float64) {
		return powers[(uint32(len(user))+arg)%4], powers[(uint32(len(tenant))+arg>>2)%4]
	}
	b.r.Reweigh(b.weigh)
	for _, o := range b.m.queue {
		o.ofUser, o.ofTenant = b.weigh(o.user, o.tenant)
		b.m.weights[path{o.class, o.user}] = o.ofUser
	}
}

func (b *both) step(op, arg uint32) {
	switch op % 20 {
	case 0, 1, 2, 3, 4, 5, 6:
		b.arrive(arg)
	case 7, 8, 9, 10, 11:
		b.serve()
	case 12, 13:
		if o := b.any(arg); o != nil {
			b.r.GiveUp(b.now, b.in[o])
			if b.now-o.arrived >= b.m.pace.Service {
				b.m.standing.desert(b.now)
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
			b.serve()
		}
		if b.r.Len() != 0 || b.r.users.n != 0 || b.r.tenants.n != 0 {
			t.Fatalf("seed %d: %d wait, and %d users and %d tenants are known", seed, b.r.Len(), b.r.users.n, b.r.tenants.n)
		}
	}
	for _, what := range []string{"displaced", "of another class", "of another flow", "refused", "out of turn"} {
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
