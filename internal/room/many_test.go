package room

import (
	"cmp"
	"slices"
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
	weights map[path]float64                          // of users
	mean    struct{ units, ofUser, ofTenant float64 } // of those served
	reasons map[path]uint16                           // of a tenant, by its own path
	last    path                                      // who gave the last reason
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

// turned reports whether the newest goes first between tenants: enough of them gave a reason in
// this interval or the one before.
func (m *many) turned() bool {
	return m.order == LIFO || m.newestFirst() && (m.standing.many || m.standing.before)
}

// giver counts that o's user, or a tenant without one, has given a reason.
func (m *many) giver(o *one) {
	waiting := map[path]bool{}
	for _, other := range m.queue {
		waiting[other.own()] = true
	}
	s, name := &m.standing.reasons, hash(o.user)
	if o.user == "" {
		name = hash(o.tenant)
	}
	if !slices.Contains(s.givers, name) {
		s.givers = append(s.givers, name)
	}
	s.many = s.many || len(s.givers) >= max(2, min(len(m.queue)/8, 8, len(waiting)))
}

func (m *many) newcomersFirst() bool {
	return m.turned() && m.idle(true)+m.idle(false) < m.memory()
}

func (m *many) enter(now time.Duration, o *one) {
	turn := m.take()
	if m.newcomersFirst() {
		turn = -turn
	}
	tenants, users := o.levels()
	if len(m.of(tenants, o.tenant, false)) == 0 && m.last.user == o.own().user {
		m.reasons[o.own()] = m.standing.phase
	}
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
	if len(m.of(tenants, o.tenant, false)) == 0 {
		delete(m.reasons, o.own())
	}
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
	if _, kept := tags[name]; !kept && len(m.of(p, "", true)) > 0 {
		m.now[p] = max(m.now[p], min(t.tag, tags[m.least(p)].tag))
	}
	m.sweep(p)
}

func (m *many) sweep(p path) {
	tags := m.tags[p]
	if len(m.of(p, "", true)) == 0 {
		clear(tags)
		delete(m.now, p)
		return
	}
	for name, t := range tags {
		if len(m.of(p, name, false)) == 0 && t.tag <= m.now[p] {
			delete(tags, name)
		}
	}
}

// least returns who goes next of those at a level that wait.
func (m *many) least(p path) (least string) {
	first := true
	for name, t := range m.tags[p] {
		if len(m.of(p, name, false)) == 0 {
			continue
		}
		if first || t.compare(m.tags[p][least]) < 0 {
			least, first = name, false
		}
	}
	return least
}

// own returns the path of a tenant in its class. Its user part alone stands for the tenant
// in any class.
func (o *one) own() path { return path{o.class, o.user + "/" + o.tenant} }

// reason notes that o's tenant has given a reason to put the newest first.
func (m *many) reason(o *one) {
	tenants, _ := o.levels()
	if len(m.of(tenants, o.tenant, false)) > 0 {
		m.reasons[o.own()] = m.standing.phase
	}
	m.last = path{user: o.own().user}
	m.giver(o)
}

func (m *many) reasonIfStanding(o *one) {
	if m.standing.is {
		m.single.reasonIfStanding()
		m.reason(o)
	}
}

// reversed reports whether the newest of o's tenant goes first.
func (m *many) reversed(o *one) bool {
	return m.order == LIFO || m.newestFirst() && m.reasons[o.own()] == m.standing.phase
}

func (m *many) count(class int8) int { return len(m.of(path{class, ""}, "", true)) }

// sorted returns a tenant's waiters, the next first.
func (m *many) sorted(p path, tenant string) []*one {
	some := m.of(p, tenant, false)
	switch {
	case m.order == EDF:
		slices.SortStableFunc(some, func(a, b *one) int { return cmp.Compare(a.deadline, b.deadline) })
	case len(some) > 0 && m.reversed(some[0]):
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
	m.standing.judge(now, m.pace.Interval)
	for c := m.highest() - 1; c >= 0; c-- {
		if m.count(c) > 0 && m.shares[c] > 0 && m.arrears[c]+m.shares[c]*m.cost(m.head(c)) >= m.cost(m.head(c))-1e-9 {
			return m.head(c)
		}
	}
	return m.head(m.highest())
}

func (m *many) dequeue(o *one) {
	if o.class == m.highest() && m.shares[o.class] == 0 {
		m.standing.flood.hadItsTurn(int(o.class))
	}
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
	mean := &m.mean
	mean.units, mean.ofUser, mean.ofTenant = meanWith(mean.units, m.cost(o)), meanWith(mean.ofUser, o.ofUser), meanWith(mean.ofTenant, o.ofTenant)
	m.charge(tenants, o.tenant, m.cost(o)/o.ofTenant, credit*mean.units/mean.ofTenant, turn)
	m.charge(users, o.user, m.cost(o)/o.ofUser, credit*mean.units/mean.ofUser, turn)
	m.leave(o)
	m.standing.served++
}

func (m *many) charge(p path, name string, by, behind float64, turn int32) {
	m.now[p] = max(m.now[p], m.tags[p][m.least(p)].tag-behind)
	m.tags[p][name] = tagged{m.tags[p][name].tag + by, turn}
}

// kept is as of one queue, but who has a chance counts only while nobody else waits.
func (m *many) kept() int {
	for _, o := range m.queue {
		first := m.queue[0]
		if o.class != first.class || o.user != first.user || o.tenant != first.tenant {
			return m.few()
		}
	}
	return m.single.kept()
}

// few is how many may wait while a queue stands, whoever they are.
func (m *many) few() int {
	if m.order == Adaptive && m.pace.Keep > 0 {
		return min(m.size, m.pace.Keep)
	}
	return m.size
}

func (m *many) reserved(class int8) int {
	places := m.size
	if m.standing.is {
		places = m.kept()
	}
	least := 0 // places in all, if each class with a share has one
	for _, s := range m.shares {
		if s > 0 {
			least += max(1, int(s*float64(places)))
		}
	}
	if m.shares[class] > 0 && least < places {
		return max(1, int(m.shares[class]*float64(places)))
	}
	return int(m.shares[class] * float64(places))
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

func (m *many) worstOf(p path) []*one {
	if p.user == "" {
		user, _ := m.worst(p)
		p.user = "/" + user
	}
	tenant, _ := m.worst(p)
	return m.of(p, tenant, false)
}

// victim mirrors the rule of displacement as it is documented.
func (m *many) victim(o *one, free bool) *one {
	if m.standing.is {
		m.turn()
	}
	of := m.loser(o, free)
	if len(of) == 0 {
		return nil
	}
	m.reasonIfStanding(of[0])
	if of[0].own() == o.own() && (free || !m.reversed(o)) {
		return nil
	}
	tenants, _ := of[0].levels()
	sorted := m.sorted(tenants, of[0].tenant)
	return sorted[len(sorted)-1]
}

// loser returns the waiters of the tenant that has to give a place to o.
func (m *many) loser(o *one, free bool) []*one {
	short := m.count(o.class) < m.reserved(o.class)
	for c := range int8(Classes) {
		if c != o.class && (c < o.class || short) && m.count(c) > m.reserved(c) {
			return m.worstOf(path{c, ""})
		}
	}
	tenants, users := o.levels()
	newest := m.newcomersFirst()
	if !m.mustGo(users, o.user, m.weighed(users, o), newest, free) {
		return m.worstOf(users)
	}
	if len(m.of(tenants, "", true)) == 0 {
		return nil
	}
	if !m.mustGo(tenants, o.tenant, m.weighed(tenants, o), newest, free) {
		return m.worstOf(tenants)
	}
	return m.of(tenants, o.tenant, false)
}

func (m *many) mustGo(p path, own string, more float64, newest, free bool) bool {
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

func (m *many) knock(now time.Duration, o *one) {
	m.single.knock(now)
	m.standing.flood.came[o.class]++
}

func (m *many) meets(o *one) {
	m.standing.flood.countFirst(m.answering(o) == 0)
}

func (m *many) answering(o *one) int {
	tenants, users := o.levels()
	if o.user != "" {
		return len(m.of(users, o.user, false))
	}
	return len(m.of(tenants, o.tenant, false))
}

func (m *many) push(now time.Duration, o *one) (displaced *one, ok bool) {
	places := m.size
	if c := &m.standing.flood; m.standing.is && c.class[o.class] && (c.many || m.answering(o) >= floodFrom) {
		places = m.kept()
	}
	if m.size > 0 || len(m.queue) < places {
		m.meets(o)
	}
	if len(m.queue) >= places {
		if m.size == 0 {
			return nil, false
		}
		tenants, _ := o.levels()
		free := len(m.queue) < m.few() && len(m.of(tenants, o.tenant, false)) < fewest
		if displaced = m.victim(o, free); displaced != nil {
			m.leave(displaced)
		} else if !free {
			if m.standing.is {
				m.giver(o)
			}
			return nil, false
		}
	}
	m.enter(now, o)
	return displaced, true
}

func (m *many) settle(class int8, user, tenant string, units float64, weigh func(user, tenant string) (float64, float64)) {
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
		m.correct(tenants, tenant, units/ofTenant)
	}
	m.correct(users, user, units/ofUser)
}

func (m *many) rescale(p path, name string, by float64) {
	if by != 1 {
		t := m.tags[p][name]
		least := m.tags[p][m.least(p)].tag
		m.tags[p][name] = tagged{least + (t.tag-least)*by, t.turn}
	}
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

// meanWith is a mean after one more service.
func meanWith(mean, x float64) float64 {
	mean = cmp.Or(mean, x)
	return mean + (x-mean)/16
}
