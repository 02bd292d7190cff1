package room

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// In the order EDF a tenant's waiters are served by deadline, by arrival among
// equals, and the latest is the last.
func TestEarliestDeadlineFirst(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		r := newRoom(1000, EDF)
		var in []*Waiter
		for i := range 200 {
			w := &Waiter{Units: 1 + rng.Int64N(5), Deadline: time.Duration(rng.IntN(40)), Owner: i, Expires: Never}
			if rng.IntN(10) == 0 {
				w.Deadline = Never
			}
			var before int64
			for _, o := range in {
				if o.Deadline <= w.Deadline {
					before += o.Units
				}
			}
			if got := r.Ahead(w); got != before {
				t.Fatalf("%d units ahead, want %d", got, before)
			}
			if _, ok := r.Push(ms*time.Duration(i), w); !ok {
				t.Fatal("no place")
			}
			in = append(in, w)
			if rng.IntN(3) == 0 {
				i := rng.IntN(len(in))
				r.Remove(in[i])
				in = slices.Delete(in, i, i+1)
			}
		}
		slices.SortStableFunc(in, func(a, b *Waiter) int { return cmp.Compare(a.Deadline, b.Deadline) })
		if last := r.last(in[0].flow); last != in[len(in)-1] {
			t.Fatalf("the last is due at %v", last.Deadline)
		}
		for _, want := range in {
			if got := r.Next(Never); got != want {
				t.Fatalf("%v is served, want %v", got.Owner, want.Owner)
			}
			r.Dequeue(want)
		}
		if len(r.deadlines.nodes) > 202 {
			t.Errorf("%d nodes for 200 waiters", len(r.deadlines.nodes))
		}
	}
}

// The order may change while somebody waits.
func TestReorder(t *testing.T) {
	r := newRoom(10, FIFO)
	for i, due := range []time.Duration{30, 10, 20} {
		r.Push(ms*time.Duration(i), &Waiter{Units: 1, Deadline: due, Expires: Never})
	}
	for order, want := range map[Order]time.Duration{FIFO: 30, LIFO: 20, EDF: 10} {
		r.Configure(10, order)
		if got := r.Next(3 * ms).Deadline; got != want {
			t.Errorf("order %d: %d goes first, want %d", order, got, want)
		}
	}
}

// Who would be ahead is what is served before, if nobody comes any more: exactly
// for what is one's own, and within the largest waiter of each other flow.
func TestAhead(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 8))
		r := newRoom(1000, []Order{FIFO, LIFO, EDF}[seed%3])
		if seed%5 == 0 {
			r.SetShares([Classes]float64{0, 0.2, 0.1})
		}
		random := func() *Waiter {
			return &Waiter{Units: 1 + rng.Int64N(4), Class: int8(rng.IntN(3)), User: string(rune('a' + rng.IntN(3))),
				Tenant: string(rune('a' + rng.IntN(3))), TenantWeight: float64(1 + rng.IntN(2)),
				Deadline: time.Duration(rng.IntN(50)), Expires: Never}
		}
		for range 20 + rng.IntN(200) {
			r.Push(0, random())
		}
		for range rng.IntN(15) {
			r.Dequeue(r.Next(0))
		}
		w := random()
		estimate := r.Ahead(w)
		r.Push(0, w)
		var real int64
		for next := r.Next(0); next != w; next = r.Next(0) {
			real += next.Units
			r.Dequeue(next)
		}
		// 9 flows of each class, with 4 units and two levels to be off by, and that
		// over the share if there is one.
		allowed := int64(9 * 4 * 2)
		if seed%5 == 0 {
			allowed *= 5
		}
		if off := max(estimate-real, real-estimate); off > allowed && off > real/3 {
			t.Errorf("seed %d: %d units ahead of %+v, and %d were served before", seed, estimate, w, real)
		}
	}
}

// Many with one waiter each are as much ahead as one with many.
func TestAheadOfACrowd(t *testing.T) {
	for _, tenants := range []bool{false, true} {
		r := newRoom(1000, FIFO)
		name := func(n string) *Waiter {
			if tenants {
				return &Waiter{Units: 1, Class: 1, Tenant: n, Expires: Never}
			}
			return &Waiter{Units: 1, Class: 1, User: n, Expires: Never}
		}
		for i := range 100 {
			r.Push(0, name(string(rune('A'+i))))
		}
		if got := r.Ahead(name("new")); got != 100 {
			t.Errorf("tenants %v: %d units ahead, want 100", tenants, got)
		}
	}
}

// demanding plays an interval in which so many come to classes 1 and 2 of a room that
// serves 100, the higher first. What finds no place leaves at once.
func demanding(r *Room, now *time.Duration, low, high int) {
	for k := range 100 {
		*now += ms
		for _, of := range [2]struct{ n, class int }{{low, 1}, {high, 2}} {
			for range of.n*(k+1)/100 - of.n*k/100 {
				w := &Waiter{Units: 1, Class: int8(of.class), Expires: Never}
				r.CountArrival(*now, w)
				r.Push(*now, w)
			}
		}
		if w := r.Next(*now); w != nil {
			r.Dequeue(w)
		}
	}
}

// What is ahead of a class, and how many come to it, is told by what has come to it and to
// higher ones since the queue's first interval.
func TestDemand(t *testing.T) {
	for _, tt := range []struct {
		name      string
		low, high int // that come while 100 are served
		share     float64
		ahead     float64 // of class 1, beyond what waits there and above, in times of that
		crowd     float64 // of class 1
	}{
		{"all fits", 100, 0, 0, 1, 1},
		{"nobody above", 300, 0, 0, 1, 3},
		{"half is taken above", 100, 50, 0, 2, 2},
		{"all is taken above", 100, 100, 0, 1, math.Inf(1)},
		{"far too much above", 100, 300, 0, 1, math.Inf(1)},
		{"a guarantee", 100, 300, 0.5, 0, 2},
	} {
		r, now := newRoom(64, FIFO), time.Duration(0)
		r.SetPace(Pace{Interval: 100 * ms})
		r.SetShares([Classes]float64{0, tt.share})
		for range 10 {
			r.CountArrival(now, &Waiter{Class: 1, Units: 1})
			r.Push(now, &Waiter{Class: 1, Units: 1, Expires: Never})
		}
		demanding(r, &now, tt.low, tt.high)
		if crowd, _ := r.Crowd(now, 1); crowd != 1 {
			t.Errorf("%s: a crowd of %v in the first interval", tt.name, crowd)
		}
		for range 30 {
			demanding(r, &now, tt.low, tt.high)
		}
		crowd, lasted := r.Crowd(now, 1)
		if off := crowd / tt.crowd; !(crowd == tt.crowd || off > 0.7 && off < 1.3) {
			t.Errorf("%s: a crowd of %v, want %v", tt.name, crowd, tt.crowd)
		}
		if long := lasted > 2*time.Second && lasted < 3100*ms; long != (tt.crowd > 1) {
			t.Errorf("%s: for %v", tt.name, lasted)
		}
		waits := float64(r.classes[1].units + r.classes[2].units)
		if ahead := r.AheadOf(1); tt.share == 0 && math.Abs(ahead/waits/tt.ahead-1) > 0.15 || tt.share > 0 && ahead > 2*float64(r.classes[1].units)+3 {
			t.Errorf("%s: %v ahead, and %v wait", tt.name, ahead, waits)
		}
		if crowd, _ := r.Crowd(now, 2); tt.high <= 100 && crowd != 1 {
			t.Errorf("%s: a crowd of %v in the class above", tt.name, crowd)
		}
		for range 10 { // less comes: the room is empty in the end, and nothing is left of it
			demanding(r, &now, 0, 0)
		}
		if crowd, _ := r.Crowd(now, 1); crowd != 1 || r.AheadOf(1) != 0 || r.AheadOf(Unwaiting) != 0 {
			t.Errorf("%s: a crowd of %v, %v ahead in an empty room", tt.name, crowd, r.AheadOf(1))
		}
	}
}

// A class of which little comes does not starve while that is served, although nearly all
// that is served is above it.
func TestLittleIsNotStarved(t *testing.T) {
	r, now := newRoom(1000, FIFO), time.Duration(0)
	r.SetPace(Pace{Interval: 100 * ms})
	come := func(class int8) {
		w := &Waiter{Units: 1, Class: class, Expires: Never}
		r.CountArrival(now, w)
		r.Push(now, w)
	}
	for range 5 { // so that the room is never empty
		come(1)
	}
	for i := range 3000 {
		now += 5 * ms
		if i%30 == 0 {
			come(1)
		} else {
			come(2)
		}
		r.Dequeue(r.Next(now))
		if crowd, lasted := r.Crowd(now, 1); crowd > 1 {
			t.Fatalf("%v: a crowd of %v for %v", now, crowd, lasted)
		}
	}
	if part := r.standing.demand.above(1); part < starving {
		t.Errorf("only %.3f of what is served is above", part)
	}
}

// Whoever leaves, or whose deadlines cannot be met, turns its own order. That of
// another with a queue stays as it is, in the same room and at the same time.
func TestATenantTurnsItsOwnOrder(t *testing.T) {
	reasons := map[string]func(r *Room, of *Waiter){
		"leaves":       func(r *Room, of *Waiter) { r.GiveUp(50*ms, of) },
		"comes late":   func(r *Room, of *Waiter) { r.PreferNewest(&Waiter{Class: 1, Tenant: "rude"}) },
		"of its own":   func(r *Room, of *Waiter) { r.PreferNewest(&Waiter{Class: 1, Tenant: "calm"}) },
		"runs out":     func(r *Room, of *Waiter) { r.standing.is = true; r.Expire(of) },
		"is too large": func(r *Room, of *Waiter) { r.standing.is, r.standing.flood.class[1] = true, true; push(r, "rude", 99) },
	}
	for name, happens := range reasons {
		r := newRoom(8, Adaptive)
		r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
		rude := push(r, "rude", 0)
		for i := 1; i < 4; i++ {
			push(r, "rude", i)
		}
		for i := range 3 {
			push(r, "calm", i)
		}
		happens(r, rude)
		calm := r.tenants.find("calm", r.users.find("", 1))
		own := name == "of its own"
		if !r.NewestFirst() || r.first(calm).Owner != map[bool]any{false: 0, true: 2}[own] {
			t.Errorf("%s: newest first %v, and of the calm number %v", name, r.NewestFirst(), r.first(calm).Owner)
		}
		other := r.tenants.find("rude", r.users.find("", 1))
		if first := r.first(other); (first == r.tenants.all[other].back) == own {
			t.Errorf("%s: of the rude number %v goes first", name, first.Owner)
		}
		r.check(t)
	}
}

// Anybody can leave, send a deadline that cannot be met, or send too much. Between tenants the newest
// goes first only if enough of them do: as many as an eighth of the waiters, from two to eight, or all.
func TestEnoughTenantsTurnTheOrderBetweenThem(t *testing.T) {
	late := func(r *Room, tenants int) {
		for i := range tenants {
			for range 3 { // as often as it likes
				r.PreferNewest(&Waiter{Class: 1, Tenant: fmt.Sprint("late", i)})
			}
		}
	}
	stands := func(r *Room, tenants int) { // a standing queue without a place for as many
		r.standing.is = true
		for i := range 40 {
			push(r, fmt.Sprint("more", i%tenants), -1)
		}
	}
	for _, tt := range []struct {
		name             string
		waiting, tenants int
		happens          func(r *Room)
		want             bool
	}{
		{"one of a few", 4, 4, func(r *Room) { late(r, 1) }, false},
		{"two of a few", 4, 4, func(r *Room) { late(r, 2) }, true},
		{"four of forty", 40, 40, func(r *Room) { late(r, 4) }, false},
		{"five of forty", 40, 40, func(r *Room) { late(r, 5) }, true},
		{"seven of many", 400, 400, func(r *Room) { late(r, 7) }, false},
		{"eight of many", 400, 400, func(r *Room) { late(r, 8) }, true},
		{"three, and all wait often", 399, 3, func(r *Room) { late(r, 3) }, true},
		{"two of three that wait often", 399, 3, func(r *Room) { late(r, 2) }, false},
		{"one leaves, one is late", 4, 4, func(r *Room) { r.GiveUp(50*ms, r.Oldest()); late(r, 1) }, true},
		{"one leaves", 4, 4, func(r *Room) { r.GiveUp(50*ms, r.Oldest()) }, false},
		{"two, and the queue was drained since", 4, 4, func(r *Room) { late(r, 2); r.standing.newest = false; late(r, 1) }, false},
		{"a user with eight tenants", 400, 400, func(r *Room) {
			for i := range 8 {
				r.PreferNewest(&Waiter{Class: 1, User: "rude", Tenant: fmt.Sprint("invented", i)})
			}
		}, false},
		{"one finds no place", 400, 400, func(r *Room) { stands(r, 1) }, false},
		{"eight find no place", 400, 400, func(r *Room) { stands(r, 8) }, true},
		{"an interval ago", 4, 4, func(r *Room) { r.standing.is = true; late(r, 2); r.standing.reasons.endInterval() }, true},
		{"two intervals ago", 4, 4, func(r *Room) { late(r, 2); r.standing.reasons.endInterval(); r.standing.reasons.endInterval() }, false},
	} {
		r := newRoom(400, Adaptive)
		r.SetPace(Pace{Interval: 100 * ms, Keep: 8})
		for i := range tt.waiting {
			push(r, fmt.Sprint("tenant", i%tt.tenants), i)
		}
		if tt.happens(r); r.turned() != tt.want {
			t.Errorf("%s: the newest goes first %v, want %v", tt.name, r.turned(), tt.want)
		}
		r.check(t)
	}
	r := newRoom(8, Adaptive)
	for i := range 4 {
		push(r, fmt.Sprint("tenant", i), i)
	}
	late(r, 2)
	if push(r, "newcomer", -1); r.Next(60*ms).Owner != -1 {
		t.Errorf("number %v goes first", r.Next(60*ms).Owner)
	}
}

func push(r *Room, tenant string, i int) *Waiter {
	w := &Waiter{Class: 1, Tenant: tenant, Units: 1, Expires: Never, Owner: i}
	r.CountArrival(0, w)
	r.Push(0, w)
	return w
}

// A reason counts as long as the newest goes first for it, and no longer: whoever
// has turned its order once is in order again when another does.
func TestAReasonEndsWithItsPhase(t *testing.T) {
	r := newRoom(8, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
	leaves := map[string]*Waiter{"early": push(r, "early", 0), "late": push(r, "late", 0)}
	for _, tenant := range []string{"early", "late"} {
		push(r, tenant, 1)
		push(r, tenant, 2)
	}
	reversed := func(tenant string) bool {
		return r.reversed(r.tenants.find(tenant, r.users.find("", 1)))
	}
	r.GiveUp(50*ms, leaves["early"])
	if !reversed("early") || reversed("late") {
		t.Errorf("after one has left: early %v, late %v", reversed("early"), reversed("late"))
	}
	r.Next(200 * ms) // nobody has left for an interval
	if reversed("early") {
		t.Error("the order stays turned when nobody leaves any more")
	}
	r.GiveUp(210*ms, leaves["late"])
	if reversed("early") || !reversed("late") {
		t.Errorf("after another has left: early %v, late %v", reversed("early"), reversed("late"))
	}
	r.check(t)
}

// The count of phases wraps past 0, which is the mark of those without a reason.
func TestPhasesWrap(t *testing.T) {
	r := newRoom(8, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 7})
	r.standing.phase = math.MaxUint16
	leaves := push(r, "rude", 0)
	push(r, "rude", 1)
	push(r, "calm", 0)
	push(r, "calm", 1)
	r.GiveUp(50*ms, leaves)
	if calm := r.tenants.find("calm", r.users.find("", 1)); !r.NewestFirst() || r.reversed(calm) {
		t.Errorf("newest first %v, and of those who gave no reason %v", r.NewestFirst(), r.reversed(calm))
	}
}
