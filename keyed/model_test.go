package keyed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
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

	// What the gate has learned: how many medians work of somebody takes, and the
	// median of the work that a key's queue has seen.
	expect func(user, tenant string) float64
	median func(key string) time.Duration
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
	ratio         float64 // how many times that was charged
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
	f := flight{Waiter: &w.Waiter, key: w.key, cost: min(w.cost, m.of(w.key)), ratio: 1, start: now}
	if m.held(w.key)+f.cost > m.of(w.key) {
		return false
	}
	if w.Units > 0 { // it has waited
		f.charged = f.cost
	}
	m.flying[w.id] = f
	m.fate[w.id] = "in"
	return true
}

// settle corrects what whoever sent f was charged by so much.
func (m *model) settle(f flight, by float64) {
	if r := m.rooms[f.key]; r != nil && f.charged > 0 {
		r.AdjustCost(int(f.Class), f.User, f.Tenant, by)
	}
}

// done ends work, unless it never started.
func (m *model) done(now time.Duration, id int, started bool) {
	f := m.flying[id]
	delete(m.flying, id)
	took, median := now-f.start, m.service.Median()
	if started && m.byTime && median > 0 {
		m.settle(f, float64(f.charged)*(took.Seconds()/median.Seconds()-f.ratio))
	}
	if started {
		m.service.Add(took)
	}
	m.letIn(now)
}

// cost makes work hold so much from now on.
func (m *model) cost(now time.Duration, id int, units int64) {
	f := m.flying[id]
	units = max(units, 1)
	m.settle(f, float64(units-f.charged)*f.ratio)
	f.cost = min(units, m.of(f.key))
	if f.charged > 0 {
		f.charged = units
	}
	m.flying[id] = f
	m.letIn(now)
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
		m.rooms[w.key].Reweigh(m.weights)
	}
	r := m.rooms[w.key]
	m.configure(r, size)
	w.Owner, w.Units = w, min(w.cost, m.of(w.key))
	if early := w.Deadline - m.median(w.key); w.Deadline != room.Never && early > now && early < w.Expires {
		w.Expires, w.outOf = early, "deadline" // it leaves when it would be too late
	}
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
	m.letIn(now)
}

func (m *model) configure(r *room.Room, size int) {
	r.Configure(size, m.order)
	r.SetShares(m.byClass())
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

// letIn grants whoever can start, key by key.
func (m *model) letIn(now time.Duration) {
	for _, r := range m.rooms {
		for w := r.Next(now); w != nil; w = r.Next(now) {
			next := w.Owner.(*modelWaiter)
			if !m.grant(now, next) {
				break
			}
			r.Dequeue(w)
			f := m.flying[next.id]
			if m.byTime {
				f.ratio = m.expect(f.User, f.Tenant)
			}
			m.settle(f, float64(f.charged)*f.ratio-float64(next.Units)) // the room has charged the units
			m.flying[next.id] = f
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
	m.letIn(now)
}

func (m *model) close() {
	m.closed = true
	for _, w := range slices.Clone(m.waiting) {
		m.out(w, "draining")
	}
}

func (m *model) reconfigure(now time.Duration, to modelSettings) {
	same := maps.Equal(m.users, to.users) && maps.Equal(m.tenants, to.tenants)
	m.modelSettings = to
	for _, r := range m.rooms {
		m.configure(r, r.Size())
		if !same {
			r.Reweigh(m.weights)
		}
	}
	m.letIn(now)
}

// twin drives the gate and the model through the same.
type twin struct {
	t       *testing.T
	g       *Pools
	m       *model
	now     *time.Duration
	permits map[int]weir.Permit
	waiters map[int]weir.Waiter
	fate    map[int]string
	next    int
}

const modelKeys = 6

func newTwin(t *testing.T, places, maxKeys int) *twin {
	tw := &twin{t: t, permits: map[int]weir.Permit{}, waiters: map[int]weir.Waiter{}, fate: map[int]string{}}
	tw.m = &model{flying: map[int]flight{}, rooms: map[string]*room.Room{}, fate: map[int]string{},
		modelSettings: modelSettings{limit: 2, maxKeys: maxKeys, places: places, order: limit.FIFO}}
	tw.g, tw.now = byHand(t, tw.config())
	s := &tw.g.shards[0]
	tw.m.expect = func(user, tenant string) float64 {
		if f := s.accounts.Forecast; f != nil {
			return f.Expect(user, tenant)
		}
		return 1 // it has just been turned on
	}
	tw.m.median = func(key string) time.Duration {
		n := keys.NameOf(key)
		slot, ok := s.table.Peek(keys.Hash(tw.g.seed, &n), &n)
		if !ok {
			return 0
		}
		q := s.queues[slot]
		if q == nil {
			q = s.kept[slot%keptRooms]
		}
		if q == nil || q.name != n {
			return 0
		}
		return q.service.Median()
	}
	return tw
}

func (tw *twin) config() Config {
	m := tw.m
	places := m.places
	if places == 0 {
		places = -1
	}
	return Config{Limit: m.limit, MaxKeys: m.maxKeys, Overrides: m.overrides, RefuseOversize: m.refuse,
		Key: func(w weir.Work) string { return w.Op },
		Queue: limit.Queue{Len: places, MaxWait: -1, Order: m.order, Shares: m.shares,
			Weights: limit.Weights{Users: m.users, Tenants: m.tenants}, ByTime: m.byTime}}
}

func (tw *twin) answer(id int, p weir.Permit, err error) {
	delete(tw.waiters, id)
	if err != nil {
		tw.fate[id] = weir.AsRejection(err).Reason.String()
		return
	}
	tw.fate[id] = "in"
	tw.permits[id] = p
}

// arrive has work come for a key, of somebody in it.
func (tw *twin) arrive(key string, cost int64, who byte, wait, deadline time.Duration) {
	id := tw.next
	tw.next++
	w := weir.Work{Op: key, Cost: cost, MaxWait: wait, Priority: weir.Priority(who%4) - 1}
	w.User, w.Tenant = []string{"", "a", "b", "c"}[who>>2&3], []string{"", "x", "y", "z"}[who>>4&3]
	mw := &modelWaiter{id: id, key: key, cost: max(1, cost), outOf: "queue_timeout"}
	mw.Class, mw.User, mw.Tenant, mw.Expires, mw.Deadline = int8(who%4), w.User, w.Tenant, room.Never, room.Never
	if wait > 0 {
		mw.Expires = *tw.now + wait
	}
	if deadline > 0 {
		mw.Deadline = *tw.now + deadline
		w.Deadline = weir.VirtualEpoch.Add(mw.Deadline)
		if mw.Deadline < mw.Expires {
			mw.Expires, mw.outOf = mw.Deadline, "deadline"
		}
	}
	tw.m.arrive(*tw.now, mw, wait >= 0)
	p, waiter, err := tw.g.Arrive(w, func(p weir.Permit, err error) { tw.answer(id, p, err) })
	if err == weir.ErrWaiting {
		tw.fate[id], tw.waiters[id] = "", waiter
		return
	}
	tw.answer(id, p, err)
}

// pick returns one of the map's keys.
func pick[V any](from map[int]V, n byte) (int, bool) {
	if len(from) == 0 {
		return 0, false
	}
	ids := make([]int, 0, len(from))
	for id := range from {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids[int(n)%len(ids)], true
}

// modelKey is one key more often than all others together: somebody has to wait.
func modelKey(arg byte) string { return fmt.Sprint("key-", min(arg%(2*modelKeys), modelKeys-1)) }

func (tw *twin) step(op, arg, who byte) {
	key, cost := modelKey(arg), int64(arg/modelKeys%4)
	switch op % 16 {
	case 0, 1, 2, 14:
		tw.arrive(key, cost, who, 0, 0)
	case 3:
		tw.arrive(key, cost, who, weir.NoWait, 0)
	case 4:
		tw.arrive(key, cost, who, time.Duration(1+arg%4), time.Duration(arg>>2%5))
	case 5, 6, 7, 8:
		tw.end(arg, op%16 == 5)
	case 9:
		if id, ok := pick(tw.waiters, arg); ok {
			w := tw.waiters[id]
			delete(tw.waiters, id)
			delete(tw.fate, id)
			tw.m.cancel(*tw.now, id)
			delete(tw.m.fate, id)
			if !w.Cancel() {
				tw.t.Fatalf("waiter %d was not there", id)
			}
		}
	case 10:
		tw.setCost(arg)
	case 11, 12:
		*tw.now += time.Duration(arg % 3)
		tw.m.expire(*tw.now)
		tw.m.letIn(*tw.now)
		tw.g.Step()
	case 13:
		tw.reconfigure(arg, who)
	case 15:
		if arg == 255 {
			tw.g.Close()
			tw.m.close()
		}
	}
}

func (tw *twin) end(arg byte, cancel bool) {
	id, ok := pick(tw.permits, arg)
	if !ok {
		return
	}
	p := tw.permits[id]
	delete(tw.permits, id)
	if cancel {
		p.Cancel()
	}
	p.Done(weir.OK)
	p.Done(weir.OK)
	p.SetCost("", 9) // too late
	tw.m.done(*tw.now, id, !cancel)
}

func (tw *twin) setCost(arg byte) {
	id, ok := pick(tw.permits, arg)
	if !ok {
		return
	}
	units := int64(arg % 7)
	tw.m.cost(*tw.now, id, units)
	tw.permits[id].SetCost("", units)
}

// reconfigure changes everything that can change. Weights are powers of 2, so that
// nothing is rounded.
func (tw *twin) reconfigure(arg, who byte) {
	m := tw.m
	if m.closed {
		return
	}
	to := modelSettings{limit: int64(1 + arg%4), maxKeys: m.maxKeys, places: m.places,
		refuse: arg&64 != 0, byTime: arg&128 != 0, order: limit.FIFO + limit.Order(who%3)}
	switch key := modelKey(arg); arg >> 4 & 3 {
	case 1:
		to.overrides = map[string]Override{key: {Limit: int64(1 + arg>>5)}}
	case 2:
		to.overrides = map[string]Override{key: {Scale: 0.25 * float64(1+who&15)}}
	}
	if who&4 != 0 {
		to.shares = map[weir.Priority]float64{weir.Background: 0.25, weir.Normal: 0.5}
	}
	if who&8 != 0 {
		to.users, to.tenants = map[string]float64{"a": float64(int(1) << (who >> 4 & 7))}, map[string]float64{"x": 0.5, "": 2}
	}
	m.reconfigure(*tw.now, to)
	if err := tw.g.Reconfigure(tw.config()); err != nil {
		tw.t.Fatal(err)
	}
}

// compare holds the gate against the model, and its parts against each other.
func (tw *twin) compare() {
	t, g, m := tw.t, tw.g, tw.m
	for id, want := range m.fate {
		if got := tw.fate[id]; got != want {
			t.Fatalf("work %d: %q, want %q", id, got, want)
		}
	}
	var held, waiting int64
	for i := range modelKeys {
		key := fmt.Sprint("key-", i)
		u, known := g.Key(key)
		if live := m.live()[key]; live && !known {
			t.Fatalf("%s is live and not known", key)
		}
		if u.InFlight != m.held(key) || u.Waiting != int64(m.waits(key)) || known && u.Limit != m.of(key) {
			t.Fatalf("%s: %+v, want %d in flight and %d waiting of %d", key, u, m.held(key), m.waits(key), m.of(key))
		}
		held += u.InFlight
		waiting += u.Waiting
	}
	u := g.Usage(0)
	s := &g.shards[0]
	if u.InFlight != held || u.Waiting != waiting || u.Keys > int64(m.maxKeys) || u.Keys != g.keys.Load() ||
		len(s.queues) != len(s.expiry) || s.crowd.Load() != int64(len(s.queues)) {
		t.Fatalf("%+v: %d in flight, %d waiting", u, held, waiting)
	}
	for i := range s.expiry {
		if s.expiry[i].heap != i || s.expiry.Less(i, (i-1)/2) && i > 0 {
			t.Fatalf("the rooms are out of order at %d", i)
		}
	}
}

func runModel(t *testing.T, data []byte) {
	if len(data) < 2 {
		return
	}
	tw := newTwin(t, int(data[0]%40), 1+int(data[1]%modelKeys))
	for data = data[2:]; len(data) >= 3; data = data[3:] {
		tw.step(data[0], data[1], data[2])
		tw.compare()
	}
	for id, w := range tw.waiters {
		w.Cancel()
		delete(tw.waiters, id)
	}
	for _, p := range tw.permits {
		p.Done(weir.OK)
	}
	tw.g.Close()
	if s := tw.g.Snapshot(); s.InFlight != 0 || s.Waiting != 0 {
		t.Fatalf("%+v at the end", s)
	}
	select {
	case <-tw.g.drained:
	default:
		t.Fatal("not drained at the end")
	}
}

func TestModel(t *testing.T) {
	seeds := uint64(80)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, 1802)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		runModel(t, data)
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte{4, 2, 0, 0, 0, 0, 0, 1, 0, 1, 5, 5, 0, 0, 13, 3, 14, 11, 2, 0})
	f.Fuzz(func(t *testing.T, data []byte) { runModel(t, data[:min(len(data), 3000)]) })
}
