package room

import (
	"fmt"
	"math"
	"testing"
)

// backlog is a flow of work that has ten waiting whenever it is there.
type backlog struct {
	name    Waiter
	there   func(turn int) bool // nil: always
	waiting int
	served  float64 // units
	ideal   float64 // units that a max-min fair division would have given it
	apart   float64 // the most by which these differed at any time
}

// is reports whether the flow asks for more than it has.
func (b *backlog) is() bool { return b.waiting > 0 }

// divide adds to each flow's ideal what is its part of so many units served now: by
// weight between the users that have somebody waiting, and each user's between its
// tenants that have. Who has nobody waiting has got all that it asked for, so this
// is the max-min fair division at every moment.
func divide(flows []*backlog, units float64) {
	ofUser, all := map[string]float64{}, 0.
	for _, b := range flows {
		if b.is() {
			if ofUser[b.name.User] == 0 {
				all += weight(b.name.UserWeight)
			}
			ofUser[b.name.User] += weight(b.name.TenantWeight)
		}
	}
	for _, b := range flows {
		if b.is() {
			b.ideal += units * weight(b.name.UserWeight) / all * weight(b.name.TenantWeight) / ofUser[b.name.User]
		}
	}
}

// contend serves so many turns, with every flow that is there backlogged.
func contend(t *testing.T, turns int, flows ...*backlog) {
	t.Helper()
	r := newRoom(2000, FIFO)
	for turn := range turns {
		now := timeOf(turn) * ms
		for _, b := range flows {
			for b.waiting < 10 && (b.there == nil || b.there(turn)) {
				w := b.name
				w.Owner, w.Expires = b, Never
				if _, ok := r.Push(now, &w); !ok {
					t.Fatal("no place")
				}
				b.waiting++
			}
		}
		w := r.Next(now)
		divide(flows, cost(w))
		r.Serve(w)
		b := w.Owner.(*backlog)
		b.waiting--
		b.served += cost(w)
		for _, b := range flows {
			b.apart = max(b.apart, math.Abs(b.served-b.ideal))
		}
	}
}

// How far from the max-min ideal the room is: over a run, as a part of what the
// flow farthest from it should have had; and at any moment, in turns of the largest
// cost. Whoever comes after a pause is let in before the others for a few turns at
// once, so the second counts for each time that somebody comes. With -v it prints
// both; docs/guides/library.md states them.
func TestMargins(t *testing.T) {
	tenant := func(name string, weight float64, units int64) *backlog {
		return &backlog{name: Waiter{Tenant: name, TenantWeight: weight, Units: units}}
	}
	of := func(user string, weight float64, b *backlog) *backlog {
		b.name.User, b.name.UserWeight = user, weight
		return b
	}
	const turns, stay = 100_000, 137
	guest := tenant("guest", 1, 1)
	guest.there = func(turn int) bool { return turn/stay%3 == 0 }
	tests := []struct {
		name   string
		flows  []*backlog
		visits int     // how often somebody comes
		run    float64 // at most so far apart over the run
		turns  float64 // and at any moment, for each visit
	}{
		{"equal weights", []*backlog{tenant("a", 1, 1), tenant("b", 1, 1), tenant("c", 1, 1)}, 1, .001, 1.5},
		{"weights 1:2:4", []*backlog{tenant("a", 1, 1), tenant("b", 2, 1), tenant("c", 4, 1)}, 1, .001, 1.5},
		{"costs 1:50", []*backlog{tenant("a", 1, 1), tenant("b", 1, 50)}, 1, .001, 1.5},
		{"costs 1:50, weights 4:1", []*backlog{tenant("a", 4, 1), tenant("b", 1, 50)}, 1, .001, 1.5},
		{"users 1:3, of 3 and 2 tenants", []*backlog{
			of("u", 1, tenant("a", 1, 1)), of("u", 1, tenant("b", 2, 1)), of("u", 1, tenant("c", 4, 1)),
			of("v", 3, tenant("a", 1, 1)), of("v", 3, tenant("b", 1, 5)),
		}, 1, .001, 1.5},
		{"a user of 100 tenants, another of 1", append(tenantsOf("u", 100), of("v", 1, tenant("a", 1, 1))), 1, .001, 1.5},
		{"one of three comes and goes", []*backlog{tenant("a", 1, 1), tenant("b", 1, 1), guest}, turns/(3*stay) + 1, .05, credit},
	}
	t.Logf("%-36s %10s %20s", "", "over a run", "at a moment, a visit")
	for _, tt := range tests {
		contend(t, turns, tt.flows...)
		run, most, largest := 0., 0., 0.
		for _, b := range tt.flows {
			largest = max(largest, cost(&b.name))
			run = max(run, math.Abs(b.served-b.ideal)/b.ideal)
			most = max(most, b.apart)
		}
		most /= largest * float64(tt.visits)
		t.Logf("%-36s %8.3f %% %14.2f turns", tt.name, 100*run, most)
		if run > tt.run || most > tt.turns {
			t.Errorf("%s: %.5f apart over the run, at most %.5f allowed; %.2f turns at a moment, at most %.2f", tt.name, run, tt.run, most, tt.turns)
		}
	}
}

// However somebody comes and goes beside two that always have work, it gets no more
// than its third of all that is served.
func TestComingAndGoingGainsNothing(t *testing.T) {
	const turns = 6_000
	for _, stay := range []int{1, 2, 3, 5, 9, 20, 100} {
		for _, away := range []int{1, 3, 6, 9, 12, 30} {
			guest := &backlog{name: Waiter{Tenant: "guest", Units: 1}, there: func(turn int) bool { return turn%(stay+away) < stay }}
			contend(t, turns, guest, &backlog{name: Waiter{Tenant: "a", Units: 1}}, &backlog{name: Waiter{Tenant: "b", Units: 1}})
			if got := guest.served / turns; got > 1/3.+.001 {
				t.Errorf("%d turns there, %d away: %.4f of what was served", stay, away, got)
			}
		}
	}
}

// tenantsOf are n tenants of one user.
func tenantsOf(user string, n int) (flows []*backlog) {
	for i := range n {
		flows = append(flows, &backlog{name: Waiter{User: user, Tenant: fmt.Sprint(i), UserWeight: 1, TenantWeight: 1, Units: 1}})
	}
	return flows
}
