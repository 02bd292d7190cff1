package room

import (
	"fmt"
	"testing"
)

// fillMemory gives a class as many tenants with debts of which nobody waits as the
// room remembers, and more.
func fillMemory(r *Room) {
	for i := range 2 * r.memory() {
		r.Settle(1, "", fmt.Sprint("debtor", i), 1e6)
	}
}

// Costs settled for tenants that do not wait take no more memory than those that
// were served ahead of others.
func TestSettledStrangersAreBounded(t *testing.T) {
	r := newRoom(10, FIFO)
	push(r, "steady", 0)
	fillMemory(r)
	if r.tenants.idle != r.memory() || r.tenants.n != r.memory()+1 {
		t.Errorf("%d tenants are known, of %d of them nobody waits, want %d", r.tenants.n, r.tenants.idle, r.memory())
	}
	r.check(t)
}

// Whoever is forgotten because others fill the memory gains nothing by it.
func TestTheForgottenGainNothing(t *testing.T) {
	r := newRoom(10, FIFO)
	push(r, "steady", 0)
	fillMemory(r)
	again, turns := 0, 200
	for range turns {
		push(r, "steady", 0)
		if r.tenants.find("again", r.users.find("", 1)) == 0 {
			push(r, "again", 0)
		}
		if serveNext(r, 1).Tenant == "again" {
			again++
		}
	}
	if again > turns/2+credit {
		t.Errorf("who comes back each time was served %d of %d times beside one that always waits", again, turns)
	}
	r.check(t)
}

// When virtual time begins anew, whoever is away keeps what it is ahead by, and no
// more than that.
func TestVirtualTimeBeginsAnewForThoseAwayToo(t *testing.T) {
	const turn = rebase / 2
	r := newRoom(10, FIFO)
	come := func(tenant string, turns int64) {
		r.Push(0, &Waiter{Class: 1, Tenant: tenant, Units: turns * turn, Expires: Never})
	}
	steady := func(n int) {
		for range n {
			come("steady", 1)
			if w := serveNext(r, 1); w.Tenant != "steady" {
				t.Fatalf("%s is served before its turn", w.Tenant)
			}
		}
	}
	come("steady", 1)
	steady(40)
	come("away", 16)
	if w := serveNext(r, 1); w.Tenant != "away" {
		t.Fatalf("%s is served before one that comes after a pause", w.Tenant)
	}
	steady(16 - credit - 1)
	come("away", 1)
	for more := 0; ; more++ {
		come("steady", 1)
		if serveNext(r, 1).Tenant == "away" {
			return
		}
		if more > 3 {
			t.Fatal("who was away waits longer than for what it was served")
		}
	}
}
