package room

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

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
			kept = min(kept, s.standing.hope)
		}
	}
	return kept
}

func (s *single) newestFirst() bool {
	return s.order == LIFO || s.order == Adaptive && (s.standing.newest || s.standing.deserted)
}

func (s *single) full() bool {
	turns := s.newestFirst() || s.order == Adaptive && s.standing.is
	return len(s.queue) >= s.size && (s.size == 0 || !turns)
}

func (s *single) turn() bool {
	if s.order == Adaptive && !s.standing.newest {
		s.standing.turn(len(s.queue))
	}
	return s.newestFirst()
}

func (s *single) crowded() bool {
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
	s.standing.look(now, s.pace.Interval)
	s.standing.arrived++
}

func (s *single) push(now time.Duration, w *one) (displaced *one, ok bool) {
	places := s.size
	if s.standing.is {
		places = s.kept()
	}
	if len(s.queue) >= places {
		if s.size == 0 || !s.crowded() {
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
	s.standing.look(now, s.pace.Interval)
	if s.newestFirst() {
		return s.queue[len(s.queue)-1]
	}
	return s.queue[0]
}

func (s *single) giveUp(now time.Duration, w *one) {
	if now-w.arrived >= s.pace.Service {
		s.standing.desert(now)
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
			p.r.Serve(w)
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
			p.s.crowded()
			p.s.remove(o)
			p.gone(o.id)
		}
	case 13:
		if arg%8 == 0 {
			p.configure(arg/8%40, Order(arg/512%3), arg%5*3)
		} else {
			w := &Waiter{Class: p.class, User: p.user, Tenant: p.user}
			p.same("turn", p.r.Turn(w), p.s.turn())
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
	p.r.Knock(p.now, w)
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
