package room

import (
	"math/rand/v2"
	"testing"
)

// Whoever comes after a pause is served a few at once before the others, and no
// more than that.
func TestAPauseGivesCredit(t *testing.T) {
	r := newRoom(100, FIFO)
	flood := func(n int) {
		for i := range n {
			push(r, "flood", i)
		}
	}
	flood(50)
	serveNext(r, 20)
	for i := range 20 {
		push(r, "light", i)
	}
	for i := range credit {
		if w := serveNext(r, 1); w.Tenant != "light" {
			t.Errorf("number %d is of the %s", i, w.Tenant)
		}
	}
	light := 0
	for range 10 {
		if serveNext(r, 1).Tenant == "light" {
			light++
		}
	}
	if light != 5 {
		t.Errorf("%d of the 10 after that are the light one's, want its half", light)
	}
	r.check(t)
}

// In no stretch of time is anybody served more than its half and the credit beside
// one who always has somebody waiting, however it comes and goes.
func TestCreditIsNoGain(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 8))
		r := newRoom(200, FIFO)
		lead, least := 0., 0. // of the one that comes and goes before its half, and the least so far
		for range 5000 {
			for r.tenants.n == 0 || r.tenantLoad(r.tenants.find("always", r.users.find("", 1))) < 3 {
				push(r, "always", 0)
			}
			for range max(0, rng.IntN(int(2+seed))-int(seed)/2) {
				push(r, "sometimes", 0)
			}
			if w := serveNext(r, 1); w.Tenant == "sometimes" {
				lead += .5
			} else {
				lead -= .5
			}
			least = min(least, lead)
			if more := lead - least; more > (credit+2)/2. {
				t.Fatalf("seed %d: %v more than its half", seed, more)
			}
			if len(r.expiry) > 150 {
				for w := r.expiry[0]; r.Len() > 3; w = r.expiry[0] {
					r.Remove(w)
				}
			}
		}
		r.check(t)
	}
}

// serveNext serves so many and returns the last.
func serveNext(r *Room, n int) (w *Waiter) {
	for range n {
		w = r.Next(0)
		r.Serve(w)
	}
	return w
}
