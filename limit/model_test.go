package limit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// model is the gate as one would write it in ten minutes: lists, no fast path,
// everything looked up by walking. It says what must happen.
type model struct {
	limit  int64
	places int
	order  Order
	closed bool

	flying   map[int]int64 // cost charged by work id
	waiting  []modelWaiter // oldest first
	occupied time.Duration

	// What happened to each piece of work: "" while it waits.
	fate map[int]string
}

type modelWaiter struct {
	id      int
	cost    int64
	expires time.Duration
}

func (m *model) inFlight() (n int64) {
	for _, cost := range m.flying {
		n += cost
	}
	return n
}

func (m *model) arrive(now time.Duration, id int, cost int64, expires time.Duration, waits bool) {
	switch {
	case cost < 0:
		m.fate[id] = "too_large"
	case m.closed:
		m.fate[id] = "draining"
	case len(m.waiting) == 0 && m.inFlight()+min(cost, m.limit) <= m.limit:
		m.flying[id] = min(cost, m.limit)
		m.fate[id] = "admitted"
	case !waits:
		m.fate[id] = "limit"
	case len(m.waiting) >= m.places:
		m.fate[id] = "queue_full"
	default:
		if len(m.waiting) == 0 {
			m.occupied = now
		}
		m.waiting = append(m.waiting, modelWaiter{id, cost, expires})
	}
}

func (m *model) next(now time.Duration) int {
	if m.order == LIFO || m.order == Adaptive && now-m.occupied >= 100*time.Millisecond {
		return len(m.waiting) - 1
	}
	return 0
}

// settle lets expired waiters go and serves the others in order.
func (m *model) settle(now time.Duration) {
	m.waiting = slices.DeleteFunc(m.waiting, func(w modelWaiter) bool {
		if w.expires <= now {
			m.fate[w.id] = "queue_timeout"
		}
		return w.expires <= now
	})
	for len(m.waiting) > 0 {
		i := m.next(now)
		w := m.waiting[i]
		cost := min(w.cost, m.limit)
		if m.inFlight()+cost > m.limit {
			return
		}
		m.waiting = slices.Delete(m.waiting, i, i+1)
		m.flying[w.id] = cost
		m.fate[w.id] = "admitted"
	}
}

func (m *model) cancelWaiter(id int) {
	m.waiting = slices.DeleteFunc(m.waiting, func(w modelWaiter) bool { return w.id == id })
	m.fate[id] = "gone"
}

// pair drives a limiter and the model with the same operations.
type pair struct {
	t     *testing.T
	l     *Limiter
	m     *model
	clock time.Duration
	trace []string

	permits map[int]weir.Permit // every permit ever granted
	waiters map[int]weir.Waiter
	fate    map[int]string
	ids     int
}

func newPair(t *testing.T, limit int64, places int, order Order) *pair {
	p := &pair{
		t: t, m: &model{limit: limit, places: places, order: order, flying: map[int]int64{}, fate: map[int]string{}},
		permits: map[int]weir.Permit{}, waiters: map[int]weir.Waiter{}, fate: map[int]string{},
	}
	queue := Queue{Len: places, MaxWait: -1, Order: order}
	if places == 0 {
		queue.Len = -1
	}
	p.l = weir.Must(New(Config{Name: "m", Limit: limit, Queue: queue, Now: func() time.Duration { return p.clock }}))
	return p
}

func (p *pair) log(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf("%v ", p.clock)+fmt.Sprintf(format, args...))
}

func (p *pair) arrive(cost int64, wait time.Duration, blocking bool) {
	id := p.ids
	p.ids++
	p.log("arrive %d cost %d wait %v blocking %v", id, cost, wait, blocking)
	w := weir.Work{Cost: cost, MaxWait: wait}
	units := w.Units()
	p.m.arrive(p.clock, id, units, p.clock+wait, blocking)
	p.m.settle(p.clock)
	var permit weir.Permit
	var err error
	if blocking {
		var waiter weir.Waiter
		permit, waiter, err = p.l.Arrive(w, func(permit weir.Permit, err error) { p.answer(id, permit, err) })
		if err == weir.ErrWaiting {
			p.waiters[id] = waiter
			return
		}
	} else {
		permit, err = p.l.TryAdmit(w)
	}
	p.answer(id, permit, err)
}

func (p *pair) answer(id int, permit weir.Permit, err error) {
	delete(p.waiters, id)
	if _, twice := p.fate[id]; twice {
		p.t.Fatalf("work %d answered twice", id)
	}
	if err != nil {
		p.fate[id] = weir.AsRejection(err).Reason.String()
		return
	}
	p.fate[id] = "admitted"
	p.permits[id] = permit
}

// end gives a permit back, perhaps one that has been given back before.
func (p *pair) end(id, how int) {
	p.log("end %d how %d", id, how)
	permit := p.permits[id]
	switch how {
	case 0:
		permit.Cancel()
	case 1:
		permit.Sample(weir.OK)
		permit.Done(weir.OK)
	default:
		permit.Done(weir.Overload)
	}
	delete(p.m.flying, id)
	p.m.settle(p.clock)
}

func (p *pair) cancel(id int) {
	p.log("cancel waiter %d", id)
	if !p.waiters[id].Cancel() {
		p.t.Fatalf("waiter %d was not in the room", id)
	}
	delete(p.waiters, id)
	p.fate[id] = "gone"
	p.m.cancelWaiter(id)
	p.m.settle(p.clock)
}

func (p *pair) resize(n int64) {
	p.log("resize %d", n)
	if err := p.l.SetLimit(n); err != nil && !p.m.closed {
		p.t.Fatal(err)
	} else if err == nil {
		p.m.limit = n
		p.m.settle(p.clock)
	}
}

// pass lets time go by, stopping wherever something is due.
func (p *pair) pass(d time.Duration) {
	p.log("pass %v", d)
	until := p.clock + d
	for {
		at, ok := p.l.Next()
		if !ok || at > until {
			break
		}
		p.clock = max(p.clock, at)
		p.l.Step()
		p.m.settle(p.clock)
	}
	p.clock = until
}

func (p *pair) close() {
	p.log("close")
	p.l.Close()
	p.m.closed = true
	for _, w := range p.m.waiting {
		p.m.fate[w.id] = "draining"
	}
	p.m.waiting = nil
}

func (p *pair) compare() {
	p.t.Helper()
	s := p.l.Snapshot()
	p.l.check(p.t)
	fail := ""
	switch {
	case s.InFlight != p.m.inFlight():
		fail = fmt.Sprintf("in flight %d, model %d", s.InFlight, p.m.inFlight())
	case s.Waiting != int64(len(p.m.waiting)):
		fail = fmt.Sprintf("waiting %d, model %d", s.Waiting, len(p.m.waiting))
	case s.Limit != p.m.limit:
		fail = fmt.Sprintf("limit %d, model %d", s.Limit, p.m.limit)
	}
	for id := range p.ids {
		if p.fate[id] != p.m.fate[id] {
			fail += fmt.Sprintf(" work %d: %q, model %q", id, p.fate[id], p.m.fate[id])
		}
		if _, flying := p.m.flying[id]; flying != p.permits[id].Live() {
			fail += fmt.Sprintf(" permit %d live: %v, model %v", id, !flying, flying)
		}
	}
	if fail != "" {
		for _, line := range p.trace {
			p.t.Log(line)
		}
		p.t.Fatal(fail)
	}
}

// step turns two random numbers into one operation.
func (p *pair) step(op, arg uint32) {
	switch op % 16 {
	case 0, 1, 2, 3:
		p.arrive(int64(arg%2), time.Duration(arg%50)*10*time.Millisecond+1, true)
	case 4, 5:
		p.arrive(0, weir.NoWait, false)
	case 6:
		p.arrive(int64(arg%7)-1, time.Duration(arg%30)*time.Millisecond+1, true)
	case 7, 8, 9, 10, 11:
		if len(p.permits) > 0 {
			p.end(p.pick(p.permits, arg), int(arg>>8)%4)
		}
	case 12:
		if len(p.waiters) > 0 {
			p.cancel(pickKey(p.waiters, arg))
		}
	case 13:
		p.resize(int64(arg%12) + 1)
	case 14, 15:
		p.pass(time.Duration(arg%40) * 5 * time.Millisecond)
	}
	p.compare()
}

// pick prefers a recent permit, because most old ones have been given back.
func (p *pair) pick(permits map[int]weir.Permit, arg uint32) int {
	if arg%8 == 0 {
		return pickKey(permits, arg)
	}
	if live := liveOnes(permits); len(live) > 0 {
		return live[int(arg)%len(live)]
	}
	return pickKey(permits, arg)
}

func liveOnes(permits map[int]weir.Permit) (ids []int) {
	for id, permit := range permits {
		if permit.Live() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func pickKey[V any](m map[int]V, arg uint32) int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys[int(arg)%len(keys)]
}

func TestModel(t *testing.T) {
	seeds, steps := 400, 150
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		p := newPair(t, rng.Int64N(6)+1, rng.IntN(6), Order(seed%3))
		for range steps {
			p.step(rng.Uint32(), rng.Uint32())
		}
		if seed%2 == 0 {
			p.close()
			p.compare()
			for range 20 {
				p.step(rng.Uint32(), rng.Uint32())
			}
		}
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte{3, 4, 0})
	f.Add([]byte{1, 1, 1, 0, 0, 0, 9, 0, 1, 1, 6, 3, 7, 7, 13, 0, 14, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 600 {
			return
		}
		p := newPair(t, int64(data[0]%8)+1, int(data[1]%8), Order(data[2]%3))
		for data = data[3:]; len(data) >= 3; data = data[3:] {
			p.step(uint32(data[0]), uint32(data[1])|uint32(data[2])<<8)
		}
	})
}
