package limit

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/weir-go/weir"
)

// modelFair is who is served next between priorities, users and tenants, as the
// docs say it: strict priority but for shares, then whoever has the least tag.
// All is looked up by walking; the weights of the tests are powers of 2, so that
// nothing is rounded.
type modelFair struct {
	shares  [4]float64
	weights Weights
	arrears [4]float64 // units that a class may be served out of turn
	classes [4]modelLevel
	users   map[modelUser]*modelLevel
	turns   int
	mean    struct{ units, ofUser, ofTenant float64 } // of the last services

	// Within a tenant the newest goes first only if it has given a reason since the
	// newest goes first at all.
	phase   int
	reasons map[[3]string]int
	last    [3]string // who gave the last
	// Between tenants it goes first if as many as an eighth of the waiters have given one in this interval or
	// the one before, from two to eight, or all tenants that wait. A tenant with a user counts by that.
	givers       map[string]bool
	many, before bool
}

// turned reports whether the newest goes first between tenants.
func (m *model) turned() bool {
	return m.order == LIFO || m.newestFirst() && (m.many || m.before)
}

func (m *model) giver(w *modelWaiter) {
	if m.givers == nil {
		m.givers = map[string]bool{}
	}
	m.givers[cmp.Or(w.user, w.tenant)] = true
	waiting := map[[3]string]bool{}
	for i := range m.waiting {
		waiting[m.waiting[i].name(true)] = true
	}
	m.many = m.many || len(m.givers) >= max(2, min(len(m.waiting)/8, 8, len(waiting)))
}

// name is a tenant's. As of the last reason it is of any class.
func (w *modelWaiter) name(class bool) [3]string {
	if class {
		return [3]string{string(rune('0' + w.class)), w.user, w.tenant}
	}
	return [3]string{"", w.user, w.tenant}
}

func (m *model) newPhase() {
	if !m.queue.newest && !m.queue.deserted {
		m.phase++
		m.givers, m.many, m.before = nil, false, false
	}
}

func (m *model) reason(w *modelWaiter) {
	m.last = w.name(false)
	m.giver(w)
	if m.waits(w) {
		m.because(w)
	}
}

func (m *model) because(w *modelWaiter) {
	if m.reasons == nil {
		m.reasons = map[[3]string]int{}
	}
	m.reasons[w.name(true)] = m.phase
}

// waits reports whether any of w's tenant wait.
func (m *model) waits(w *modelWaiter) bool {
	return slices.ContainsFunc(m.waiting, func(o modelWaiter) bool { return o.name(true) == w.name(true) })
}

type modelUser struct {
	class int
	name  string
}

// modelLevel is the users of a class or the tenants of a user.
type modelLevel struct {
	now   float64
	flows map[string]*modelFlow
}

// modelFlow is a user or a tenant. Among equal tags the lesser turn goes first.
type modelFlow struct {
	tag   float64
	turn  int
	waits int
}

func (f *modelFlow) before(o *modelFlow) bool {
	return f.tag < o.tag || f.tag == o.tag && f.turn < o.turn
}

func (l *modelLevel) flow(name string) *modelFlow {
	if l.flows == nil {
		l.flows = map[string]*modelFlow{}
	}
	if l.flows[name] == nil {
		l.flows[name] = &modelFlow{tag: l.now}
	}
	return l.flows[name]
}

func (l *modelLevel) next() (first string) {
	for name, f := range l.flows {
		if f.waits > 0 && (l.flows[first] == nil || l.flows[first].waits == 0 || f.before(l.flows[first])) {
			first = name
		}
	}
	return first
}

// sweep forgets those that do not wait and that virtual time has passed.
func (l *modelLevel) sweep() {
	waits := 0
	for _, f := range l.flows {
		waits += f.waits
	}
	if waits == 0 {
		*l = modelLevel{}
		return
	}
	for name, f := range l.flows {
		if f.waits == 0 && f.tag <= l.now {
			delete(l.flows, name)
		}
	}
}

func (m *modelFair) weightsOf(user, tenant string) (userWeight, tenantWeight float64) {
	userWeight, tenantWeight = m.weights.Users[user], m.weights.Tenants[tenant]
	if userWeight == 0 {
		userWeight = 1
	}
	if tenantWeight == 0 {
		tenantWeight = 1
	}
	return userWeight, tenantWeight
}

// reweigh sets new weights. Who waits stays as many units ahead as it is; debts of others are forgotten.
func (m *modelFair) reweigh(to Weights) {
	before := modelFair{weights: m.weights}
	m.weights = to
	if maps.Equal(to.Users, before.weights.Users) && maps.Equal(to.Tenants, before.weights.Tenants) {
		return
	}
	m.mean.ofUser, m.mean.ofTenant = 0, 0
	for i := range m.classes {
		m.classes[i].reweigh(func(user string) float64 {
			was, _ := before.weightsOf(user, "")
			is, _ := m.weightsOf(user, "")
			return was / is
		})
	}
	for _, tenants := range m.users {
		tenants.reweigh(func(tenant string) float64 {
			_, was := before.weightsOf("", tenant)
			_, is := m.weightsOf("", tenant)
			return was / is
		})
	}
}

func (l *modelLevel) reweigh(by func(name string) float64) {
	if len(l.flows) == 0 {
		return
	}
	least := l.flows[l.next()].tag
	for name, f := range l.flows {
		if f.tag = least + (f.tag-least)*by(name); f.waits == 0 {
			delete(l.flows, name)
		}
	}
	l.now = least
}

// levels returns where w's tenant and w's user are flows, and their weights.
func (m *model) levels(w *modelWaiter) (tenants, users *modelLevel, tenantWeight, userWeight float64) {
	u := modelUser{w.class, w.user}
	if m.users == nil {
		m.users = map[modelUser]*modelLevel{}
	}
	if m.users[u] == nil {
		m.users[u] = &modelLevel{}
	}
	userWeight, tenantWeight = m.weightsOf(w.user, w.tenant)
	return m.users[u], &m.classes[w.class], tenantWeight, userWeight
}

func (m *model) enter(w modelWaiter) {
	m.turns++
	turn := m.turns
	if m.turned() {
		turn = -turn
	}
	tenants, users, _, _ := m.levels(&w)
	for _, f := range []*modelFlow{tenants.flow(w.tenant), users.flow(w.user)} {
		if f.waits == 0 {
			f.turn = turn
		}
		f.waits++
	}
	if !m.waits(&w) && m.last == w.name(false) {
		m.because(&w)
	}
	m.waiting = append(m.waiting, w)
}

// part is the reverse of enter, but for the list.
func (m *model) part(w *modelWaiter) {
	tenants, users, _, _ := m.levels(w)
	for _, at := range []struct {
		level *modelLevel
		name  string
	}{{tenants, w.tenant}, {users, w.user}} {
		f := at.level.flow(at.name)
		if f.waits--; f.waits == 0 && f.tag <= at.level.now {
			delete(at.level.flows, at.name)
		}
		at.level.sweep()
	}
	if !m.waits(w) {
		delete(m.reasons, w.name(true))
	}
	if len(m.waiting) == 0 {
		m.arrears = [4]float64{}
	}
}

// inClass counts those that wait of a class. The one leaving is out of the list.
func (m *model) inClass(class int) (n int) {
	for i := range m.waiting {
		if m.waiting[i].class == class {
			n++
		}
	}
	return n
}

func (m *model) highest() (class int) {
	for i := range m.waiting {
		class = max(class, m.waiting[i].class)
	}
	return class
}

// first returns whose turn it is in a class.
func (m *model) first(class int) int {
	user := m.classes[class].next()
	return m.oneOf(class, user, m.users[modelUser{class, user}].next())
}

// oneOf returns who goes first of a tenant.
func (m *model) oneOf(class int, user, tenant string) int {
	of := []int{} // in the order they go
	for i, w := range m.waiting {
		if w.class == class && w.user == user && w.tenant == tenant {
			of = append(of, i)
		}
	}
	switch {
	case m.order == EDF:
		slices.SortStableFunc(of, func(a, b int) int { return int(m.waiting[a].by() - m.waiting[b].by()) })
	case m.newestOf(&m.waiting[of[0]]):
		slices.Reverse(of)
	}
	return of[0]
}

// newestOf reports whether of w's tenant the newest goes first.
func (m *model) newestOf(w *modelWaiter) bool {
	return m.order == LIFO || m.newestFirst() && m.reasons[w.name(true)] == m.phase
}

func (w *modelWaiter) by() int64 {
	if w.deadline == 0 {
		return math.MaxInt64
	}
	return int64(w.deadline)
}

// next returns whose turn it is: of the highest class, unless one below is owed a
// turn.
func (m *model) next() int {
	highest := m.highest()
	for class := highest - 1; class >= 0; class-- {
		if share := m.shares[class]; share > 0 && m.inClass(class) > 0 {
			i := m.first(class)
			if m.arrears[class] >= (1-share)*float64(m.waiting[i].units) {
				m.seen["out of turn"]++
				return i
			}
		}
	}
	return m.first(highest)
}

// charge enters that w is served.
func (m *model) charge(w *modelWaiter) {
	units := float64(w.units)
	for class := range m.highest() {
		if m.shares[class] > 0 && m.inClass(class) > 0 {
			m.arrears[class] += m.shares[class] * units
			if class == w.class {
				m.arrears[class] = max(0, m.arrears[class]-units)
			}
		}
	}
	m.turns++
	tenants, users, tw, uw := m.levels(w)
	mean := &m.mean
	mean.units, mean.ofTenant, mean.ofUser = meanWith(mean.units, units), meanWith(mean.ofTenant, tw), meanWith(mean.ofUser, uw)
	for _, at := range []struct {
		level              *modelLevel
		name               string
		weight, meanWeight float64
	}{{tenants, w.tenant, tw, mean.ofTenant}, {users, w.user, uw, mean.ofUser}} {
		f := at.level.flow(at.name)
		at.level.now = max(at.level.now, f.tag-3*mean.units/at.meanWeight) // a credit of three turns
		f.tag += units / at.weight
		f.turn = m.turns
	}
}

// correct settles units against the flow of w, if its class has anybody waiting.
func (m *model) correct(w *modelWaiter, units float64) {
	if units == 0 || m.inClass(w.class) == 0 {
		return
	}
	m.seen["settled"]++
	tenants, users, tw, uw := m.levels(w)
	if f := users.flows[w.user]; f != nil && f.waits > 0 {
		m.move(tenants, w.tenant, units/tw)
	}
	m.move(users, w.user, units/uw)
}

func (m *model) move(l *modelLevel, name string, by float64) {
	if l.flows[name] == nil {
		if by < 0 {
			return
		}
		m.turns++
		l.flow(name).turn = m.turns
	}
	f := l.flow(name)
	f.tag = max(l.now, f.tag+by)
	l.sweep()
}

// reserved is how many places a class keeps.
func (m *model) reserved(class int) int {
	if m.shares[class] == 0 || m.size() < 2 {
		return 0
	}
	return max(1, int(m.shares[class]*float64(m.size())))
}

// atAGlance reports whether w is refused without a look at the room, which is
// full.
func (m *model) atAGlance(w *modelWaiter, len, size int) bool {
	named := w.class > 1 || w.user != "" || w.tenant != ""
	if named || w.deadline != 0 || len < size || m.newestFirst() || m.order == Adaptive && m.queue.stands {
		return false
	}
	if size == 0 {
		return true
	}
	for i := range m.waiting {
		if o := &m.waiting[i]; o.class == 0 || o.class == 1 && (o.user != "" || o.tenant != "") {
			return false
		}
	}
	return m.reserved(0) == 0 && m.inClass(1) >= m.reserved(1)
}

// who draws somebody to be.
func who(arg uint32) weir.Work {
	return weir.Work{
		Priority: weir.Priority(arg%6) - 2,
		User:     []string{"", "a", "b"}[arg>>3%3],
		Tenant:   []string{"", "x", "y"}[arg>>5%3],
	}
}

// meanWith is a mean after one more service.
func meanWith(mean, x float64) float64 {
	mean = cmp.Or(mean, x)
	return mean + (x-mean)/16
}
