package limit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
)

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
	who     weir.Work           // comes next
	mixed   bool                // work of all priorities, users and tenants
	patient bool                // nobody leaves for want of time
	work    map[int]modelWaiter // all that came
	tick    time.Duration       // the unit in which time passes
}

func newPair(t *testing.T, limit int64, places int, order Order) *pair {
	p := &pair{
		t: t, m: &model{limit: limit, places: places, order: order,
			flying: map[int]int64{}, charged: map[int]int64{}, fate: map[int]string{}, seen: map[string]int{}},
		tick: 5 * time.Millisecond, permits: map[int]weir.Permit{}, waiters: map[int]weir.Waiter{}, fate: map[int]string{},
		work: map[int]modelWaiter{},
	}
	queue := Queue{Len: places, MaxWait: -1, Order: order}
	if places == 0 {
		queue.Len = -1
	}
	p.m.expected = p.expected
	p.l = weir.Must(New(Config{Name: "m", Limit: limit, Queue: queue, Now: func() time.Duration { return p.clock }}))
	return p
}

func (p *pair) log(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf("%v ", p.clock)+fmt.Sprintf(format, args...))
}

// arrive brings work that waits so long at most, and has to be done after
// deadline if that is not 0.
func (p *pair) arrive(cost int64, wait, deadline time.Duration, blocking bool) {
	id := p.ids
	p.ids++
	w := p.who
	if p.patient && blocking {
		wait, deadline = 1<<60, 0
	}
	p.log("arrive %d %v %q %q cost %d wait %v deadline %v blocking %v", id, w.Priority, w.User, w.Tenant, cost, wait, deadline, blocking)
	w.Cost, w.MaxWait = cost, wait
	mw := modelWaiter{id: id, class: w.Priority.Class(), user: w.User, tenant: w.Tenant,
		arrived: p.clock, cost: w.CostOrOne(), units: min(w.CostOrOne(), p.m.limit), patience: p.clock + wait}
	if deadline > 0 {
		mw.deadline = p.clock + deadline
		w.Deadline = weir.VirtualEpoch.Add(mw.deadline)
	}
	p.work[id], p.m.charged[id] = mw, mw.units
	rate, median := p.l.drain.Current(p.clock), p.l.service.Median()
	var permit weir.Permit
	var waiter weir.Waiter
	var err error
	if blocking {
		permit, waiter, err = p.l.Arrive(w, func(permit weir.Permit, err error) { p.answer(id, permit, err) })
	} else {
		permit, err = p.l.TryAdmit(w)
	}
	if err == weir.ErrWaiting {
		p.waiters[id] = waiter
	} else {
		p.answer(id, permit, err)
	}
	if p.m.arrive(p.clock, mw, blocking, rate, median) {
		p.m.settle(p.clock)
	}
}

// displaced returns who has lost its place to w by what the gate did, or -1, and
// whether w got in. What it did must be allowed: nobody of a higher priority has to
// go, nobody at all while somebody of a lower one is left, and nobody is refused
// in its place; but for those places that are a priority's own.
func (p *pair) displaced(w *modelWaiter) (out int, in bool) {
	m := p.m
	lowest := slices.MinFunc(m.waiting, func(a, b modelWaiter) int { return a.class - b.class }).class
	out = slices.IndexFunc(m.waiting, func(w modelWaiter) bool { return p.fate[w.id] == "queue_full" })
	in, loses := p.fate[w.id] != "queue_full", w.class
	if out >= 0 {
		loses = m.waiting[out].class
	}
	switch stands := m.order == Adaptive && m.queue.stands; {
	case m.shares != [4]float64{}:
	case loses > w.class, loses > lowest && lowest < w.class && (out >= 0 || !in):
		p.t.Errorf("work %d of class %d came, and of class %d had to go; the lowest waiting is %d", w.id, w.class, loses, lowest)
	case in && out < 0 && !stands:
		p.t.Errorf("work %d got in past a full room", w.id)
	}
	switch {
	case loses < w.class:
		m.seen["outranked"]++
	case out >= 0 && m.waiting[out].user != w.user:
		m.seen["another user"]++
	case out >= 0 && m.waiting[out].tenant != w.tenant:
		m.seen["another tenant"]++
	case out < 0 && in:
		m.seen["entitled"]++
	}
	return out, in
}

// charge is what the gate does with work that is done, where shares are of time.
func (p *pair) charge(id int) {
	w, median := p.work[id], p.l.service.Median()
	if p.l.accounts.Forecast == nil || median <= 0 {
		return
	}
	if a := p.account(id); a != nil {
		took := p.clock - p.l.berth(a.Ticket).start
		p.m.correct(&w, float64(p.m.charged[id])*(took.Seconds()/median.Seconds()-a.Ratio))
		p.m.seen["charged by time"]++
	}
}

// expected is how many times its cost work that has been admitted was charged, -1 if it has no account.
func (p *pair) expected(id int) float64 {
	if a := p.account(id); a != nil {
		return a.Ratio
	}
	return -1
}

// account finds the account of work in flight, nil if it has none.
func (p *pair) account(id int) *gate.Account {
	for _, a := range p.l.accounts.All {
		if p.permits[id].Live() && p.permits[id] == weir.NewPermit(a.Ticket) {
			return p.l.accounts.Of(a.Ticket)
		}
	}
	return nil
}

// settle says what work has really cost.
func (p *pair) settle(id int, units int64) {
	p.log("%d has cost %d", id, units)
	permit, w := p.permits[id], p.work[id]
	if p.account(id) != nil {
		p.m.correct(&w, float64(max(units, 1)-p.m.charged[id])*p.expected(id))
		p.m.charged[id] = max(units, 1)
		p.m.settle(p.clock)
	}
	permit.SetCost("m", units)
	permit.SetCost("another", units+1)
}

// reconfigure changes everything but the limit.
func (p *pair) reconfigure(arg uint32) {
	m := p.m
	if m.closed {
		return
	}
	m.places, m.order = int(arg%9)+1, Order(arg>>4%4)
	m.reweigh(Weights{Users: map[string]float64{"a": float64(int(1) << (arg >> 6 % 4))}, Tenants: map[string]float64{"x": 0.5, "": 2}})
	m.shares = [][4]float64{{}, {0.125, 0.25}, {0.5, 0.125}}[arg>>8%3]
	p.log("reconfigure: %d places, order %d, %v, shares %v", m.places, m.order, m.weights, m.shares)
	q := Queue{Len: m.places, MaxWait: -1, Order: m.order, Weights: m.weights, ByTime: arg>>9%2 == 0,
		Shares: map[weir.Priority]float64{weir.Background: m.shares[0], weir.Normal: m.shares[1]}}
	if err := p.l.Reconfigure(Config{Limit: m.limit, Queue: q}); err != nil {
		p.t.Fatal(err)
	}
	m.settle(p.clock)
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
		p.charge(id)
		permit.Done(weir.OK)
	default:
		p.charge(id)
		permit.Done(weir.Overload)
	}
	if _, out := p.m.flying[id]; !out && how != 0 {
		return
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
	p.m.cancelWaiter(p.clock, id)
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
	case !p.m.closed && p.l.room.NewestFirst() != p.m.newestFirst():
		fail = fmt.Sprintf("newest first: %v", p.l.room.NewestFirst())
	case !p.sameClasses(s.WaitingByClass):
		fail = fmt.Sprintf("waiting by class %v", s.WaitingByClass)
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

func (p *pair) sameClasses(byClass map[weir.Priority]int64) bool {
	n := 0
	for priority, waiting := range byClass {
		if n += int(waiting); p.m.inClass(priority.Class()) != int(waiting) {
			return false
		}
	}
	return n == len(p.m.waiting)
}

// stepMixed is step where work is of all kinds.
func (p *pair) stepMixed(op, arg uint32) {
	p.mixed, p.m.displaced = true, p.displaced
	switch op %= 20; op {
	case 16, 17, 18:
		if len(p.permits) > 0 {
			p.settle(p.pick(p.permits, arg), int64(arg>>8%12)-2)
		}
	case 19:
		if arg%4 == 0 {
			p.reconfigure(arg >> 2)
		}
	default:
		p.who = who(arg / 7)
		p.step(op, arg)
		return
	}
	p.compare()
}

// step turns two random numbers into one operation.
func (p *pair) step(op, arg uint32) {
	switch op % 16 {
	case 0, 1, 2, 3:
		p.arrive(int64(arg%2), time.Duration(arg%50)*10*time.Millisecond+1, 0, true)
	case 4:
		p.arrive(0, time.Second, time.Duration(arg%60)*10*time.Millisecond+1, true)
	case 5:
		p.arrive(0, weir.NoWait, 0, false)
	case 6:
		p.arrive(int64(arg%7)-1, time.Duration(arg%30)*time.Millisecond+1, 0, true)
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
		p.pass(time.Duration(arg%40) * p.tick)
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
