package room

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// check holds what must be true of a room between any two calls.
func (r *Room) check(t testing.TB) {
	t.Helper()
	r.users.check(t, "users", r.memory())
	r.tenants.check(t, "tenants", r.memory())
	waiters, units := 0, int64(0)
	for i := range r.classes {
		c := &r.classes[i]
		c.check(t, r.users.spots)
		waiters, units = waiters+c.n, units+c.units
		for _, user := range c.longest {
			r.inner[user].check(t, r.tenants.spots)
		}
		if math.IsNaN(c.arrears) || c.arrears < 0 {
			t.Fatalf("class %d may have %v out of turn", i, c.arrears)
		}
	}
	if waiters != len(r.expiry) || units != r.units {
		t.Fatalf("%d of %d waiters and %d of %d units are in a class", waiters, len(r.expiry), units, r.units)
	}
	for i, w := range r.expiry {
		if int(w.heap) != i+1 || i > 0 && r.expiry[(i-1)/2].Expires > w.Expires {
			t.Fatalf("the heap of expiries is out of order at %d", i)
		}
	}
}

func (f *flows) check(t testing.TB, what string, memory int) {
	t.Helper()
	found, idle := 0, 0
	for _, i := range f.buckets {
		for ; i != 0; i = f.all[i].chain {
			if found++; f.spots[i].loadAt == 0 {
				idle++
			}
		}
	}
	if found != f.n || idle != f.idle || idle > memory {
		t.Fatalf("%s: %d of %d found, %d of %d idle, at most %d", what, found, f.n, idle, f.idle, memory)
	}
}

func (l *level) check(t testing.TB, fs []spot) {
	t.Helper()
	for _, h := range [2]tags{l.ready, l.idle} {
		for i, e := range h {
			if fs[e.flow].tagAt != uint32(i+1) || i > 0 && e.before(h[(i-1)/children]) {
				t.Fatalf("the heap of tags is out of order at %d", i)
			}
			if math.IsNaN(e.tag) || e.tag < l.now || math.IsInf(e.tag, 0) {
				t.Fatalf("tag %v at virtual time %v", e.tag, l.now)
			}
		}
	}
	for i, flow := range l.longest {
		if fs[flow].loadAt != uint32(i+1) || i > 0 && l.worse(fs, flow, l.longest[(i-1)/children]) {
			t.Fatalf("the heap of loads is out of order at %d", i)
		}
	}
	if len(l.ready) != len(l.longest) {
		t.Fatalf("%d flows have somebody waiting, and %d may go next", len(l.longest), len(l.ready))
	}
}

// Whatever numbers and names come in, the room keeps its books and serves everybody.
func TestHostileNumbers(t *testing.T) {
	floats := []float64{0, 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 1e-300, -0., 3}
	units := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, 1 << 40, 7}
	names := []string{"", "a", strings.Repeat("x", 10<<10), "\x00\xff", "ü"}
	times := []time.Duration{0, -1, Never, math.MinInt64, ms}
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 6))
		r := newRoom(30, Order(seed%4))
		var in []*Waiter
		for at := time.Duration(0); at < 400; at++ {
			w := &Waiter{Units: units[rng.IntN(len(units))], Class: int8(rng.IntN(256) - 128),
				User: names[rng.IntN(len(names))], Tenant: names[rng.IntN(len(names))],
				UserWeight: floats[rng.IntN(len(floats))], TenantWeight: floats[rng.IntN(len(floats))],
				Expires: times[rng.IntN(len(times))], Deadline: times[rng.IntN(len(times))]}
			r.CountArrival(at*ms, w)
			if ahead := r.Ahead(w); ahead < 0 {
				t.Fatalf("%d units are ahead", ahead)
			}
			if _, ok := r.Push(at*ms, w); ok {
				in = append(in, w)
			}
			switch rng.IntN(6) {
			case 0, 1:
				if w := r.Next(at * ms); w != nil {
					r.Dequeue(w)
				}
			case 2:
				r.AdjustCost(rng.IntN(8)-2, w.User, w.Tenant, floats[rng.IntN(len(floats))]*float64(units[rng.IntN(len(units))]))
			case 3:
				of := floats[rng.IntN(len(floats))]
				r.Reweigh(func(string, string) (float64, float64) { return of, of })
			case 4:
				r.GiveUp(at*ms, in[rng.IntN(len(in))])
			default:
				r.SetShares([Classes]float64{floats[rng.IntN(len(floats))], 0.5, floats[rng.IntN(len(floats))]})
			}
			r.check(t)
		}
		for n := r.Len(); n > 0; n-- {
			w := r.Next(Never)
			if w == nil {
				t.Fatalf("nobody is next, and %d wait", n)
			}
			r.Dequeue(w)
			r.check(t)
		}
	}
}

// A flood of names leaves no more behind than there are places, and those who come
// again and again are served beside those who come once.
func TestMemoryIsBounded(t *testing.T) {
	for _, order := range []Order{FIFO, LIFO} {
		r := newRoom(100, order)
		served := 0
		for i := range 10_000 {
			r.Push(0, &Waiter{User: "steady", Units: 1, Expires: Never})
			r.Push(0, &Waiter{User: fmt.Sprint("once", i), Tenant: fmt.Sprint("of", i), Units: 1, Expires: Never})
			w := r.Next(0)
			r.Dequeue(w)
			if w.User == "steady" {
				served++
			}
			if r.users.n > 2*100+1 || r.tenants.n > 2*100+1 {
				t.Fatalf("%d users and %d tenants are known of %d waiters", r.users.n, r.tenants.n, r.Len())
			}
		}
		r.check(t)
		if served == 0 {
			t.Errorf("order %d: a steady user is never served beside a flood of new ones", order)
		}
		for w := r.Next(0); w != nil; w = r.Next(0) {
			r.Remove(w)
		}
		if r.users.n != 0 || r.tenants.n != 0 {
			t.Errorf("%d users and %d tenants are known of an empty room", r.users.n, r.tenants.n)
		}
	}
}

// Virtual time begins anew before fractions are lost, and shares stay exact.
func TestVirtualTimeStaysSmall(t *testing.T) {
	r := big(64)
	a := &source{name: Waiter{Tenant: "a", Units: 1 << 28}, perServed: 2, due: 1 << 28}
	b := &source{name: Waiter{Tenant: "b", Units: 1 << 28, TenantWeight: 3}, perServed: 2}
	got := feed(t, r, 1<<42, a, b)
	if math.Abs(got[1]-0.75) > 0.002 {
		t.Errorf("three times the weight got %.4f", got[1])
	}
	for _, inner := range r.inner {
		if inner.now > 2*rebase {
			t.Errorf("virtual time is %v", inner.now)
		}
	}
}
