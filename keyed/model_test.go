package keyed

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// model is the gate as one would write it in ten minutes: lists that are looked up by
// walking. Who goes first among those that wait for one key is what a room says that
// is made for them and thrown away after them; rooms have a model of their own.
type model struct {
	modelSettings
	closed  bool
	flying  map[int]flight
	waiting []*modelWaiter // in order of arrival
	rooms   map[string]*room.Room
	fate    map[int]string
	service room.Service // how long work took
}

// modelSettings are those that change while it runs.
type modelSettings struct {
	limit     int64
	overrides map[string]Override
	maxKeys   int
	places    int
	refuse    bool
	order     limit.Order
	shares    map[weir.Priority]float64
	users     map[string]float64
	tenants   map[string]float64
	byTime    bool
}

// flight is work in flight. What it was charged of the part of whoever sent it is 0
// if it did not have to wait.
type flight struct {
	*room.Waiter
	key           string
	cost, charged int64
	start         time.Duration
}

type modelWaiter struct {
	room.Waiter
	id    int
	key   string
	cost  int64
	outOf string
}

func (m *model) of(key string) int64 {
	o := m.overrides[key]
	switch {
	case o.Limit > 0:
		return o.Limit
	case o.Scale > 0:
		return max(1, int64(float64(m.limit)*o.Scale))
	}
	return m.limit
}

func (m *model) held(key string) (n int64) {
	for _, f := range m.flying {
		if f.key == key {
			n += f.cost
		}
	}
	return n
}

func (m *model) waits(key string) (n int) {
	for _, w := range m.waiting {
		if w.key == key {
			n++
		}
	}
	return n
}

// live are the keys that hold something or that somebody waits for.
func (m *model) live() map[string]bool {
	live := map[string]bool{}
	for _, f := range m.flying {
		live[f.key] = true
	}
	for _, w := range m.waiting {
		live[w.key] = true
	}
	return live
}

func (m *model) grant(now time.Duration, w *modelWaiter) bool {
	f := flight{Waiter: &w.Waiter, key: w.key, cost: min(w.cost, m.of(w.key)), start: now}
	if m.held(w.key)+f.cost > m.of(w.key) {
		return false
	}
	f.charged = w.Units // 0 if it did not wait
	m.flying[w.id] = f
	m.fate[w.id] = "in"
	return true
}

// settle corrects what whoever sent f was charged by so much.
func (m *model) settle(f flight, by float64) {
	if r := m.rooms[f.key]; r != nil && f.charged > 0 {
		r.Settle(int(f.Class), f.User, f.Tenant, by)
	}
}

// done ends work, unless it never started.
func (m *model) done(now time.Duration, id int, started bool) {
	f := m.flying[id]
	delete(m.flying, id)
	took, median := now-f.start, m.service.Median()
	if started && m.byTime && median > 0 {
		m.settle(f, float64(f.charged)*(took.Seconds()/median.Seconds()-1))
	}
	if started {
		m.service.Add(took)
	}
	m.serve(now)
}

// cost makes work hold so much from now on.
func (m *model) cost(now time.Duration, id int, units int64) {
	f := m.flying[id]
	units = max(units, 1)
	m.settle(f, float64(units-f.charged))
	f.cost = min(units, m.of(f.key))
	if f.charged > 0 {
		f.charged = units
	}
	m.flying[id] = f
	m.serve(now)
}

func (m *model) arrive(now time.Duration, w *modelWaiter, waits bool) {
	live := m.live()
	switch {
	case m.closed:
		m.fate[w.id] = "draining"
	case m.refuse && w.cost > m.of(w.key):
		m.fate[w.id] = "too_large"
	case !live[w.key] && len(live) >= m.maxKeys:
		m.fate[w.id] = "limit"
	case m.waits(w.key) == 0 && m.grant(now, w):
	case !waits || m.places == 0:
		m.fate[w.id] = "limit"
	default:
		m.enqueue(now, w)
	}
}

// enqueue finds a place for w: its key may have as many as there are left, or as it
// has already.
func (m *model) enqueue(now time.Duration, w *modelWaiter) {
	size := max(m.places-len(m.waiting), m.waits(w.key))
	if m.rooms[w.key] == nil {
		m.rooms[w.key] = &room.Room{}
	}
	r := m.rooms[w.key]
	m.configure(r, size)
	w.Owner, w.Units = w, min(w.cost, m.of(w.key))
	w.UserWeight, w.TenantWeight = m.weights(w.User, w.Tenant)
	m.fate[w.id] = ""
	m.waiting = append(m.waiting, w)
	whole := m.byClass()
	for class, share := range whole {
		if share*float64(size) < 1 {
			whole[class] = 0
		}
	}
	r.SetShares(whole)
	displaced, ok := r.Push(now, &w.Waiter)
	r.SetShares(m.byClass())
	switch {
	case !ok:
		m.out(w, "queue_full")
		return
	case displaced != nil:
		m.out(displaced.Owner.(*modelWaiter), "queue_full")
	}
	m.serve(now)
}

func (m *model) configure(r *room.Room, size int) {
	r.Configure(size, m.order)
	r.SetShares(m.byClass())
	r.Reweigh(m.weights)
}

func (m *model) byClass() (shares [room.Classes]float64) {
	for p, share := range m.shares {
		shares[p-weir.Background] = share
	}
	return shares
}

func (m *model) weights(user, tenant string) (userWeight, tenantWeight float64) {
	userWeight, tenantWeight = m.users[user], m.tenants[tenant]
	if userWeight == 0 {
		userWeight = 1
	}
	if tenantWeight == 0 {
		tenantWeight = 1
	}
	return userWeight, tenantWeight
}

// out notes what has become of one who waited.
func (m *model) out(w *modelWaiter, fate string) {
	m.fate[w.id] = fate
	m.waiting = slices.DeleteFunc(m.waiting, func(o *modelWaiter) bool { return o == w })
	if m.waits(w.key) == 0 {
		delete(m.rooms, w.key)
	}
}

// serve lets in who can, key by key.
func (m *model) serve(now time.Duration) {
	for _, r := range m.rooms {
		for w := r.Next(now); w != nil; w = r.Next(now) {
			next := w.Owner.(*modelWaiter)
			if !m.grant(now, next) {
				break
			}
			r.Serve(w)
			m.out(next, "in")
		}
	}
}

func (m *model) expire(now time.Duration) {
	for _, w := range slices.Clone(m.waiting) {
		if w.Expires <= now {
			m.rooms[w.key].Expire(&w.Waiter)
			m.out(w, w.outOf)
		}
	}
}

func (m *model) cancel(now time.Duration, id int) {
	for _, w := range slices.Clone(m.waiting) {
		if w.id == id {
			m.rooms[w.key].GiveUp(now, &w.Waiter)
			m.out(w, "")
		}
	}
	m.serve(now)
}

func (m *model) close() {
	m.closed = true
	for _, w := range slices.Clone(m.waiting) {
		m.out(w, "draining")
	}
}

func (m *model) reconfigure(now time.Duration, to modelSettings) {
	m.modelSettings = to
	for _, r := range m.rooms {
		m.configure(r, r.Size())
	}
	m.serve(now)
}
