package keyed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// model is the gate as one would write it in ten minutes: a map of counters and
// lists, everything looked up by walking, oldest first.
type model struct {
	limit     int64
	overrides map[string]int64
	maxKeys   int
	places    int
	closed    bool

	flying  map[int]flight
	waiting []modelWaiter // oldest first
	fate    map[int]string
}

type flight struct {
	key  string
	cost int64
}

type modelWaiter struct {
	id      int
	key     string
	cost    int64
	expires time.Duration
}

func (m *model) of(key string) int64 {
	if n, ok := m.overrides[key]; ok {
		return n
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

func (m *model) grant(id int, key string, cost int64) bool {
	cost = min(cost, m.of(key))
	if m.held(key)+cost > m.of(key) {
		return false
	}
	m.flying[id] = flight{key, cost}
	m.fate[id] = "in"
	return true
}

func (m *model) arrive(w modelWaiter, waits bool) {
	live := m.live()
	free := m.places - len(m.waiting)
	switch {
	case m.closed:
		m.fate[w.id] = "draining"
	case !live[w.key] && len(live) >= m.maxKeys:
		m.fate[w.id] = "limit"
	case m.waits(w.key) == 0 && m.grant(w.id, w.key, w.cost):
	case !waits || m.places == 0:
		m.fate[w.id] = "limit"
	case m.waits(w.key) >= free:
		m.fate[w.id] = "queue_full"
	default:
		m.fate[w.id] = ""
		m.waiting = append(m.waiting, w)
	}
}

// serve lets in who can: of each key the oldest, until one does not fit.
func (m *model) serve() {
	blocked := map[string]bool{}
	for i := 0; i < len(m.waiting); {
		w := m.waiting[i]
		if blocked[w.key] || !m.grant(w.id, w.key, w.cost) {
			blocked[w.key] = true
			i++
			continue
		}
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
}

func (m *model) expire(now time.Duration) {
	for i := 0; i < len(m.waiting); {
		if m.waiting[i].expires > now {
			i++
			continue
		}
		m.fate[m.waiting[i].id] = "queue_timeout"
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
}

// twin drives the gate and the model through the same.
type twin struct {
	t       *testing.T
	g       *Gate
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
	tw.m = &model{limit: 2, maxKeys: maxKeys, places: max(0, places), flying: map[int]flight{}, fate: map[int]string{}}
	tw.g, tw.now = byHand(t, Config{Limit: 2, MaxKeys: maxKeys, Queue: tw.queue(places)})
	return tw
}

func (tw *twin) queue(places int) Queue {
	if places == 0 {
		places = -1
	}
	return Queue{Len: places, MaxWait: -1, Order: limit.FIFO}
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

func (tw *twin) arrive(key string, cost int64, maxWait time.Duration) {
	id := tw.next
	tw.next++
	w := weir.Work{Tenant: key, Cost: cost, MaxWait: maxWait}
	expires := time.Duration(1 << 62)
	if maxWait > 0 {
		expires = *tw.now + maxWait
	}
	tw.m.arrive(modelWaiter{id, key, max(1, cost), expires}, maxWait >= 0)
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

func (tw *twin) step(op, arg byte) {
	m := tw.m
	key := fmt.Sprint("key-", arg%modelKeys)
	switch op % 16 {
	case 0, 1, 2:
		tw.arrive(key, int64(arg/modelKeys%4), 0)
	case 3:
		tw.arrive(key, 1, weir.NoWait)
	case 4:
		tw.arrive(key, 1, time.Duration(1+arg%4))
	case 5, 6, 7, 8:
		tw.end(arg, op%16 == 5)
	case 9:
		if id, ok := pick(tw.waiters, arg); ok {
			if !tw.waiters[id].Cancel() {
				tw.t.Fatalf("waiter %d was not there", id)
			}
			delete(tw.waiters, id)
			delete(tw.fate, id)
			delete(m.fate, id)
			m.waiting = slices.DeleteFunc(m.waiting, func(w modelWaiter) bool { return w.id == id })
			m.serve()
		}
	case 10:
		tw.setCost(arg)
	case 11, 12:
		*tw.now += time.Duration(arg % 3)
		m.expire(*tw.now)
		m.serve()
		tw.g.Step()
	case 13, 14:
		tw.reconfigure(arg)
	case 15:
		if arg > 250 {
			tw.g.Close()
			m.closed = true
			for _, w := range m.waiting {
				m.fate[w.id] = "draining"
			}
			m.waiting = nil
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
	delete(tw.m.flying, id)
	tw.m.serve()
	if cancel {
		p.Cancel()
	}
	p.Done(weir.OK)
	p.Done(weir.OK)
	p.SetCost("", 9) // too late
}

func (tw *twin) setCost(arg byte) {
	id, ok := pick(tw.permits, arg)
	if !ok {
		return
	}
	units := int64(arg % 7)
	f := tw.m.flying[id]
	f.cost = min(max(units, 1), tw.m.of(f.key))
	tw.m.flying[id] = f
	tw.m.serve()
	tw.permits[id].SetCost("", units)
}

func (tw *twin) reconfigure(arg byte) {
	m := tw.m
	if m.closed {
		return
	}
	m.limit = int64(1 + arg%4)
	m.overrides = map[string]int64{}
	overrides := map[string]Override{}
	if arg&16 != 0 {
		key := fmt.Sprint("key-", arg%modelKeys)
		m.overrides[key] = int64(1 + arg>>5)
		overrides[key] = Override{Limit: int64(1 + arg>>5)}
	}
	m.serve()
	if err := tw.g.Reconfigure(Config{Limit: m.limit, MaxKeys: m.maxKeys, Overrides: overrides, Queue: tw.queue(m.places)}); err != nil {
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
		if s.expiry[i].heap != i || s.before(i, (i-1)/2) && i > 0 {
			t.Fatalf("the rooms are out of order at %d", i)
		}
	}
}

func runModel(t *testing.T, data []byte) {
	if len(data) < 2 {
		return
	}
	tw := newTwin(t, int(data[0]%12), 1+int(data[1]%modelKeys))
	for data = data[2:]; len(data) >= 2; data = data[2:] {
		tw.step(data[0], data[1])
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
	case <-tw.g.idle:
	default:
		t.Fatal("not drained at the end")
	}
}

func TestModel(t *testing.T) {
	for seed := range uint64(80) {
		rng := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		runModel(t, data)
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte{4, 2, 0, 0, 0, 0, 0, 1, 5, 0, 13, 3, 11, 2})
	f.Fuzz(func(t *testing.T, data []byte) { runModel(t, data[:min(len(data), 2000)]) })
}
