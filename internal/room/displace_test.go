package room

import (
	"fmt"
	"testing"
)

// Who has to go when the room is full, in order of arrival.
func TestDisplaced(t *testing.T) {
	type one = Waiter
	w := func(class int8, user, tenant string) one {
		return one{Class: class, User: user, Tenant: tenant, Units: 1}
	}
	weighs := func(w one, user, tenant float64) one {
		w.UserWeight, w.TenantWeight = user, tenant
		return w
	}
	costs := func(w one, units int64) one {
		w.Units = units
		return w
	}
	const refused = -1
	tests := []struct {
		name   string
		shares [Classes]float64
		in     []one
		comes  one
		goes   int
	}{
		{"nobody below, its own queue", [Classes]float64{}, []one{w(1, "", ""), w(1, "", "")}, w(1, "", ""), refused},
		{"everybody is above", [Classes]float64{}, []one{w(1, "", ""), w(2, "", "")}, w(0, "", ""), refused},
		{"the last of the lowest", [Classes]float64{}, []one{w(1, "", ""), w(0, "", ""), w(0, "", "")}, w(3, "", ""), 2},
		{"the lowest, not the one below", [Classes]float64{}, []one{w(0, "", ""), w(1, "", ""), w(1, "", "")}, w(2, "", ""), 0},
		{"the last of the lowest who each have one", [Classes]float64{}, []one{w(0, "a", ""), w(0, "b", ""), w(0, "c", "")}, w(1, "", ""), 2},
		{"the longest tenant", [Classes]float64{}, []one{w(1, "", "a"), w(1, "", "a"), w(1, "", "b")}, w(1, "", "c"), 1},
		{"the longest user, however many its tenants", [Classes]float64{}, []one{w(1, "a", "1"), w(1, "a", "2"), w(1, "b", "1")}, w(1, "c", ""), 1},
		{"its own user's longest tenant", [Classes]float64{}, []one{w(1, "a", "1"), w(1, "a", "1"), w(1, "b", "1")}, w(1, "a", "2"), 1},
		{"itself, if it is as long as any", [Classes]float64{}, []one{w(1, "", "a"), w(1, "", "a"), w(1, "", "b")}, w(1, "", "b"), refused},
		{"by weight", [Classes]float64{}, []one{weighs(w(1, "", "a"), 0, 3), weighs(w(1, "", "a"), 0, 3), weighs(w(1, "", "a"), 0, 3),
			w(1, "", "b"), w(1, "", "b")}, w(1, "", "c"), 4},
		{"by the user's weight", [Classes]float64{}, []one{weighs(w(1, "a", ""), 3, 1), weighs(w(1, "a", ""), 3, 1), weighs(w(1, "a", ""), 3, 1),
			w(1, "b", ""), w(1, "b", "")}, w(1, "c", ""), 4},
		{"by units", [Classes]float64{}, []one{costs(w(1, "", "a"), 3), costs(w(1, "", "a"), 3), w(1, "", "b"), w(1, "", "b"), w(1, "", "b")}, w(1, "", "c"), 1},
		{"a light load is one too", [Classes]float64{}, []one{weighs(w(1, "", "a"), 0, 8), weighs(w(1, "", "a"), 0, 8), w(1, "", "b")}, w(1, "", "c"), 1},
		{"not whoever has one only, whatever it costs", [Classes]float64{}, []one{costs(w(1, "", "a"), 30), w(1, "", "b"), w(1, "", "b")}, w(1, "", "c"), 2},
		{"not for a dear newcomer either, if each has one", [Classes]float64{}, []one{w(1, "", "a"), w(1, "", "b")}, costs(w(1, "", "c"), 9), refused},
		{"a class keeps its places", [Classes]float64{0.5}, []one{w(0, "", ""), w(1, "", "")}, w(3, "", ""), 1},
		{"and gets them from above", [Classes]float64{0.5}, []one{w(2, "", ""), w(2, "", "")}, w(0, "", ""), 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoom(len(tt.in), FIFO)
			r.SetShares(tt.shares)
			for i := range tt.in {
				tt.in[i].Owner = i
				r.Push(0, &tt.in[i])
			}
			tt.comes.Owner = refused
			out, ok := r.Push(ms, &tt.comes)
			if id(out) != tt.goes || ok != (tt.goes != refused) {
				t.Errorf("%d has to go, want %d", id(out), tt.goes)
			}
			r.check(t)
		})
	}
}

// While the newest goes first, the last among those who have one waiter each is the
// oldest.
func TestDisplacedNewestFirst(t *testing.T) {
	r := newRoom(2, LIFO)
	a, b, c := &Waiter{User: "a", Units: 1}, &Waiter{User: "b", Units: 1}, &Waiter{User: "c", Units: 1}
	r.Push(0, a)
	r.Push(0, b)
	if out, _ := r.Push(0, c); out != a {
		t.Errorf("%v has to go", out)
	}
	if r.Next(0) != c {
		t.Errorf("%v goes first", r.Next(0))
	}
}

// In a queue that stands, and of which hardly anybody has a chance, a few of each tenant
// have places all the same, as many as a standing queue may have at all.
func TestAFewOfEachWaitInAStandingQueue(t *testing.T) {
	r := standingRoom(t, Adaptive) // 4 of nobody's wait, and 4 may
	r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
	r.standing.promising = 1
	push := func(tenant string) (displaced string) {
		out, ok := r.Push(201*ms, &Waiter{Class: 1, Tenant: tenant, Units: 1, Expires: Never})
		if !ok {
			return "refused"
		}
		if out != nil {
			return "of " + out.Tenant
		}
		return ""
	}
	dequeue(r, 200*ms, 3)
	for _, tenant := range []string{"a", "b", "c", "d", "e", "f"} { // with the one of nobody 7
		if got := push(tenant); got != "" {
			t.Errorf("the first of %s: %s", tenant, got)
		}
	}
	r.check(t)
	if got := push("g"); got != "of " {
		t.Errorf("one too many: %q, want the oldest of all to go", got)
	}
	if got := push("g"); got != "of g" {
		t.Errorf("a second: %q, want its own first to go", got)
	}
}

// Only what is certain is refused without a look.
func TestFullByName(t *testing.T) {
	tests := []struct {
		name string
		in   []Waiter
		want bool
	}{
		{"nobody has a name", []Waiter{{Class: 1}, {Class: 1}}, true},
		{"all are above", []Waiter{{Class: 2, User: "a"}, {Class: 3}}, true},
		{"one is below", []Waiter{{Class: 0}, {Class: 1}}, false},
		{"a user", []Waiter{{Class: 1, User: "a"}, {Class: 1, User: "a"}}, false},
		{"a tenant", []Waiter{{Class: 1}, {Class: 1, Tenant: "a"}}, false},
	}
	for _, tt := range tests {
		r := newRoom(2, FIFO)
		for i := range tt.in {
			r.Push(0, &tt.in[i])
		}
		if r.Full() != tt.want {
			t.Errorf("%s: full %v", tt.name, r.Full())
		}
		if _, ok := r.Push(0, &Waiter{Class: 1}); ok && tt.want {
			t.Errorf("%s: it is full, and a newcomer is let in", tt.name)
		}
	}
	r := newRoom(2, FIFO)
	r.SetShares([Classes]float64{0.5})
	r.Push(0, &Waiter{Class: 1})
	r.Push(0, &Waiter{Class: 1})
	if r.Full() {
		t.Error("full, and a place is kept for class 0")
	}
}

// Those with a chance are counted over all arrivals. So a queue is cut to them only
// while all waiters are one tenant's.
func TestChanceIsOfOneTenant(t *testing.T) {
	r := standingRoom(t, Adaptive) // 4 of nobody's wait
	r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
	r.standing.promising = 3
	if r.Kept() != 3 {
		t.Errorf("one tenant's: %d may wait, want 3", r.Kept())
	}
	other := &Waiter{Class: 1, Tenant: "a", Units: 1, Expires: Never}
	if _, ok := r.Push(201*ms, other); !ok || r.Kept() != 7 {
		t.Errorf("of two tenants %d may wait, want 7; the second was let in: %v", r.Kept(), ok)
	}
	r.Remove(other)
	other.Tenant, other.Class = "", 2
	if _, ok := r.Push(201*ms, other); !ok || r.Kept() != 7 {
		t.Errorf("of two classes %d may wait, want 7; the second was let in: %v", r.Kept(), ok)
	}
}

// Classes with tiny shares do not take all of a small room from those above them.
func TestTinySharesOfASmallRoom(t *testing.T) {
	for _, shares := range [][Classes]float64{{0.05}, {0.05, 0.05}, {0.05, 0.05, 0.05}} {
		places := 0
		for places < Classes && shares[places] > 0 {
			places++
		}
		r := newRoom(places, FIFO)
		r.SetShares(shares)
		low := make([]Waiter, places)
		for i := range low {
			low[i] = Waiter{Class: int8(i), Units: 1, Expires: Never}
			r.Push(0, &low[i])
		}
		high := &Waiter{Class: 3, Units: 1, Expires: Never}
		if out, ok := r.Push(0, high); out != &low[0] || !ok {
			t.Errorf("%v: the higher one came in: %v, in place of %v", shares, ok, out)
		}
		if _, ok := r.Push(0, &low[0]); ok {
			t.Errorf("%v: the lower one displaces the higher", shares)
		}
	}
}

// Classes together have no more places than there are, and a large share loses none to tiny ones.
func TestReservedPlacesFit(t *testing.T) {
	for _, shares := range [][Classes]float64{{0.05, 0.05, 0.05, 0.85}, {0.4, 0.05, 0.05, 0.4}, {0.25, 0.25, 0.25, 0.25}, {0.01}, {0.99, 0.01}} {
		for places := 1; places <= 100; places++ {
			r := newRoom(places, FIFO)
			r.SetShares(shares)
			sum := 0
			for class, share := range shares {
				n := r.reserved(class)
				if sum += n; n < int(share*float64(places)) {
					t.Errorf("%v of %d places: class %d has %d", shares, places, class, n)
				}
			}
			if sum > places {
				t.Errorf("%v: %d of %d places are reserved", shares, sum, places)
			}
		}
	}
}

// inundate sends three times what a room serves for a second. user and tenant name who
// sends request i.
func inundate(r *Room, user, tenant func(i int) string) {
	for at, i := 0*ms, 0; at < 1000*ms; at += 10 * ms {
		for range 3 {
			i++
			w := &Waiter{Class: 1, User: user(i), Tenant: tenant(i), Units: 1, Expires: Never}
			r.CountArrival(at, w)
			r.Push(at, w)
		}
		r.Dequeue(r.Next(at))
	}
}

// A priority is cut while it stands, and not if lower work had its turn a short while ago: few that
// are long may leave many that are short waiting, and yet all of these are served in the end.
func TestLowerWorkHadItsTurn(t *testing.T) {
	r := newRoom(50, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 8})
	at := 0 * ms
	push := func(class int8) {
		w := &Waiter{Class: class, Units: 1, Expires: Never}
		r.CountArrival(at, w)
		r.Push(at, w)
	}
	high := &Waiter{Class: 2}
	cut := func() bool { return r.placesFor(high) < 50 }
	for i := range 10 { // low work is served once in each interval, and all of the high that comes
		for range 5 {
			push(2)
		}
		push(0)
		if i > 2 && cut() {
			t.Fatalf("cut at %v, though lower work is served", at)
		}
		for range 6 {
			r.Dequeue(r.Next(at))
		}
		push(0) // or it is another queue
		at += 110 * ms
	}
	for range 3 { // high work alone comes as fast as it is served, and never leaves
		for range 9 {
			push(2)
		}
		at += 110 * ms
		r.Dequeue(r.Next(at))
	}
	if !cut() {
		t.Error("not cut in a flood of its own")
	}
	r.check(t)
}

// A standing queue is cut for those whose flood it is: one tenant's, one user's
// however many tenants it invents, or everybody's if they are many with little each;
// and for no higher priority.
func TestWhoseQueueIsCut(t *testing.T) {
	same := func(name string) func(int) string { return func(int) string { return name } }
	each := func(name string) func(int) string { return func(i int) string { return fmt.Sprint(name, i) } }
	tests := []struct {
		name         string
		user, tenant func(int) string
		flooding     Waiter
		strangersCut bool
	}{
		{"one tenant", same(""), same("f"), Waiter{Tenant: "f"}, false},
		{"one user", same("f"), same(""), Waiter{User: "f"}, false},
		{"a user who invents tenants", same("f"), each("t"), Waiter{User: "f", Tenant: "new"}, false},
		{"tenants without a user", same(""), each("t"), Waiter{Tenant: "new"}, true},
		{"many users", each("u"), same(""), Waiter{User: "new"}, true},
	}
	for _, tt := range tests {
		r := newRoom(50, Adaptive)
		inundate(r, tt.user, tt.tenant)
		tt.flooding.Class = 1
		if got := r.placesFor(&tt.flooding); got != r.Kept() || got > 8 {
			t.Errorf("%s: %d may wait, want %d", tt.name, got, r.Kept())
		}
		for _, stranger := range []Waiter{{Class: 1, User: "s"}, {Class: 1, Tenant: "s"}} {
			if cut := r.placesFor(&stranger) < 50; cut != tt.strangersCut {
				t.Errorf("%s: a stranger of user %q is cut: %v", tt.name, stranger.User, cut)
			}
		}
		if r.placesFor(&Waiter{Class: 2}) != 50 {
			t.Errorf("%s: a higher priority is cut", tt.name)
		}
		r.check(t)
	}
}
