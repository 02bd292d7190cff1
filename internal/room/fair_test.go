package room

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// source sends work of one tenant.
type source struct {
	name      Waiter  // what it sends
	perServed float64 // how many units it sends for each that is served of all
	due       float64
	served    float64 // units
	refused   int
}

// feed lets sources send while the room serves so many units, and returns each
// one's share of what was served after the first tenth.
func feed(t *testing.T, r *Room, units float64, sources ...*source) (shares []float64) {
	t.Helper()
	total, began := 0., 0.
	from := make([]float64, len(sources))
	for now := ms; total < units; now += ms {
		for _, s := range sources {
			for s.due >= cost(&s.name) {
				s.due -= cost(&s.name)
				w := s.name
				w.Owner, w.Expires = s, Never
				r.CountArrival(now, &w)
				out, ok := r.Push(now, &w)
				if !ok {
					s.refused++
				}
				if out != nil {
					out.Owner.(*source).refused++
				}
			}
		}
		w := r.Next(now)
		if w == nil { // nobody waits: time passes
			w = &Waiter{Owner: new(source), Units: 1}
		} else {
			r.Dequeue(w)
		}
		w.Owner.(*source).served += cost(w)
		total += cost(w)
		for _, s := range sources {
			s.due += s.perServed * cost(w)
		}
		if began == 0 && total >= units/10 {
			began = total
			for i, s := range sources {
				from[i] = s.served
			}
		}
	}
	for i, s := range sources {
		shares = append(shares, (s.served-from[i])/(total-began))
	}
	return shares
}

func big(size int) *Room {
	r := newRoom(size, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 64})
	return r
}

// maxMin is the fair division of 1 between demands by weight: nobody gets more
// than it asks for, and what it leaves goes to the others.
func maxMin(demands, weights []float64) []float64 {
	shares := make([]float64, len(demands))
	left := 1.
	for range demands {
		sum := 0.
		for i := range demands {
			if shares[i] < demands[i] {
				sum += weights[i]
			}
		}
		if sum == 0 {
			break
		}
		step := left / sum // the most that nobody exceeds its demand with
		for i := range demands {
			if shares[i] < demands[i] {
				step = min(step, (demands[i]-shares[i])/weights[i])
			}
		}
		for i := range demands {
			if shares[i] < demands[i] {
				shares[i] += step * weights[i]
				left -= step * weights[i]
				if demands[i]-shares[i] < 1e-12 {
					shares[i] = demands[i]
				}
			}
		}
	}
	return shares
}

// Whatever the tenants send, shares stay within a margin of the max-min ideal. Each case
// has its own margin, far below 1 %.
func TestSharesAreMaxMin(t *testing.T) {
	tests := []struct {
		name    string
		weights []float64
		demands []float64
		costs   []int64
		margin  float64
	}{
		{"weights 1:2:4", []float64{1, 2, 4}, []float64{2, 2, 2}, []int64{1, 1, 1}, 0.003},
		{"one sends 100 times as much", []float64{1, 2, 4}, []float64{100, 1, 1}, []int64{1, 1, 1}, 0.003},
		{"the heaviest does", []float64{1, 2, 4}, []float64{1, 1, 100}, []int64{1, 1, 1}, 0.003},
		{"costs differ", []float64{1, 2, 4}, []float64{2, 2, 2}, []int64{7, 1, 13}, 0.003},
		{"one asks for less", []float64{1, 1, 1}, []float64{0.1, 2, 2}, []int64{1, 1, 1}, 0.003},
		{"two ask for less", []float64{1, 2, 4}, []float64{0.05, 0.1, 50}, []int64{1, 3, 5}, 0.005},
		{"a mouse and elephants", []float64{1, 1, 1, 1, 1}, []float64{0.19, 9, 9, 9, 9}, []int64{1, 1, 1, 1, 1}, 0.003},
		{"nobody is in want", []float64{1, 1}, []float64{0.3, 0.4}, []int64{1, 1}, 0.003},
		{"out of all bounds", []float64{1e300, 1024, -5}, []float64{2, 2, 2}, []int64{1, 1, 1}, 0.003},
	}
	for _, tt := range tests {
		for _, level := range []string{"tenants", "users"} {
			t.Run(tt.name+"/"+level, func(t *testing.T) {
				var sources []*source
				var weights []float64
				for i, w := range tt.weights {
					name := Waiter{Tenant: fmt.Sprint(i), TenantWeight: w, Units: tt.costs[i]}
					if level == "users" {
						name = Waiter{User: fmt.Sprint(i), UserWeight: w, Units: tt.costs[i]}
					}
					sources = append(sources, &source{name: name, perServed: tt.demands[i]})
					weights = append(weights, weight(w))
				}
				units := 12_000.
				if slices.Max(tt.demands) >= 50 { // it takes time
					units = 4_000
				}
				got := feed(t, big(256), units, sources...)
				for i, want := range maxMin(tt.demands, weights) {
					if math.Abs(got[i]-want) > tt.margin {
						t.Errorf("flow %d has %.4f of what was served, want %.4f", i, got[i], want)
					}
				}
			})
		}
	}
}

// In any time in which two flows both have somebody waiting, what they are served
// by weight differs by no more than the largest of each: theorem 1 of Goyal, Vin
// and Cheng.
func TestServiceOfTwoFlowsStaysTogether(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var r Room
		r.Configure(1000, FIFO)
		weights := []float64{0.5 + rng.Float64()*4, 0.5 + rng.Float64()*4}
		served := []float64{0, 0}
		for i := range 1000 { // half of the room's waiters each
			w := &Waiter{Owner: i % 2, Tenant: fmt.Sprint(i % 2), TenantWeight: weights[i%2], Units: 1 + rng.Int64N(20), Expires: Never}
			if _, ok := r.Push(0, w); !ok {
				t.Fatal("no place")
			}
		}
		bound := 20/weights[0] + 20/weights[1] + 1e-6
		least, most := 0., 0.
		for both := true; both; {
			w := r.Next(0)
			r.Dequeue(w)
			i := w.Owner.(int)
			served[i] += float64(w.Units) / w.TenantWeight
			least, most = min(least, served[0]-served[1]), max(most, served[0]-served[1])
			both = len(r.inner[r.classes[0].longest[0]].longest) == 2
		}
		if most-least > bound {
			t.Errorf("seed %d: apart by %.2f, at most %.2f allowed", seed, most-least, bound)
		}
	}
}

// A user with ten thousand tenants gets as much as one with a single tenant, and a
// modest one has every place it needs.
func TestInventedTenantsGainNothing(t *testing.T) {
	invented := 0
	for _, demand := range []float64{5, 0.4} {
		r := big(256)
		honest := &source{name: Waiter{User: "honest", Units: 1}, perServed: demand}
		// The names change while it sends.
		inventor := &source{name: Waiter{User: "inventor", Units: 1}, perServed: 50}
		total := 4_000.
		for now := ms; inventor.served+honest.served < total; now += ms {
			for _, s := range []*source{honest, inventor} {
				for s.due += s.perServed; s.due >= 1; s.due-- {
					w := s.name
					if w.Owner, w.Expires = s, Never; s == inventor {
						invented++
						w.Tenant = fmt.Sprint(invented % 10_000)
					}
					r.CountArrival(now, &w)
					out, ok := r.Push(now, &w)
					if !ok {
						s.refused++
					}
					if out != nil {
						out.Owner.(*source).refused++
					}
				}
			}
			if w := r.Next(now); w != nil {
				r.Dequeue(w)
				w.Owner.(*source).served++
			}
		}
		if got, want := honest.served/total, min(0.5, demand); math.Abs(got-want) > 0.005 {
			t.Errorf("demand %v: the honest user got %.4f of what was served, want %.4f", demand, got, want)
		}
		if demand < 0.5 && honest.refused > 0 {
			t.Errorf("%d of a modest user's were refused", honest.refused)
		}
	}
}

// A hundred, then ten thousand victims who ask for half of what there is, beside
// aggressors who ask for ten times of it each: no victim is refused, and none waits
// for more than a few others.
func TestVictimsAreServed(t *testing.T) {
	for _, victims := range []int{100, 10_000} {
		for _, aggressors := range []int{1, 16} {
			t.Run(fmt.Sprintf("%d victims, %d aggressors", victims, aggressors), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 1))
				r := big(1024)
				pushed := func(now int, tenant string) *Waiter {
					w := &Waiter{Tenant: tenant, Owner: tenant, Units: 1, Class: 1, Expires: Never}
					at := ms * 10 * timeOf(now)
					r.CountArrival(at, w)
					if out, ok := r.Push(at, w); out != nil && out.Owner.(string)[0] == 'v' {
						t.Fatal("a victim is displaced")
					} else if !ok && tenant[0] == 'v' {
						t.Fatal("a victim is refused")
					}
					return w
				}
				came, long := 0, 0
				for now := range 2_000 { // one is served each time
					for range 10 * aggressors {
						pushed(now, fmt.Sprint("aggressor", rng.IntN(aggressors)))
					}
					if rng.IntN(2) == 0 {
						pushed(now, fmt.Sprint("victim", rng.IntN(victims)))
					}
					w := r.Next(ms * 10 * timeOf(now))
					if w.Owner.(string)[0] == 'v' {
						// Who was served just now may have to wait for a round of all.
						if came++; now-int(w.Arrived/(10*ms)) > 10+4*aggressors {
							long++
						}
					}
					r.Dequeue(w)
				}
				if came < 900 || float64(long) > 0.01*float64(came) {
					t.Errorf("%d of %d victims waited for more than a round", long, came)
				}
			})
		}
	}
}

// What is known of the cost only afterwards counts all the same.
func TestSettledCostsAreShared(t *testing.T) {
	r := big(256)
	cheap := &source{name: Waiter{Tenant: "cheap", Units: 1}}
	dear := &source{name: Waiter{Tenant: "dear", Units: 1}}
	saver := &source{name: Waiter{Tenant: "saver", Units: 10, TenantWeight: 2}}
	real := map[*source]float64{cheap: 1, dear: 5, saver: 4}
	spent := map[*source]float64{}
	all := 0.
	for now := ms; all < 50_000; now += ms {
		for _, s := range []*source{cheap, dear, saver} {
			w := s.name
			w.Owner, w.Expires = s, Never
			r.Push(now, &w)
		}
		w := r.Next(now)
		r.Dequeue(w)
		s := w.Owner.(*source)
		r.AdjustCost(0, "", w.Tenant, math.Trunc(real[s])-float64(w.Units))
		spent[s] += real[s]
		all += real[s]
	}
	for s, want := range map[*source]float64{cheap: 0.25, dear: 0.25, saver: 0.5} {
		if got := spent[s] / all; math.Abs(got-want) > 0.005 {
			t.Errorf("%s has %.4f of what was spent, want %.4f", s.name.Tenant, got, want)
		}
	}
}

// Weights changed while they wait count at once.
func TestReweighedShares(t *testing.T) {
	r := big(256)
	a := &source{name: Waiter{Tenant: "a", Units: 1}, perServed: 2}
	b := &source{name: Waiter{Tenant: "b", Units: 1}, perServed: 2}
	feed(t, r, 1000, a, b)
	r.Reweigh(func(_, tenant string) (float64, float64) {
		if tenant == "a" {
			return 1, 3
		}
		return 1, 1
	})
	a.name.TenantWeight = 3
	if got := feed(t, r, 20_000, a, b); math.Abs(got[0]-0.75) > 0.002 {
		t.Errorf("three times the weight got %.4f", got[0])
	}
}

// What was charged under a small weight is no debt for ever once the weight is
// large.
func TestReweighedDebt(t *testing.T) {
	r := big(256)
	a := &source{name: Waiter{Tenant: "a", Units: 1, TenantWeight: 0.001}, perServed: 2}
	b := &source{name: Waiter{Tenant: "b", Units: 1}, perServed: 2}
	feed(t, r, 2500, a, b)
	r.Reweigh(func(_, tenant string) (float64, float64) {
		if tenant == "a" {
			return 1, 3
		}
		return 1, 1
	})
	a.name.TenantWeight = 3
	if got := feed(t, r, 400, a, b); math.Abs(got[0]-0.75) > 0.05 {
		t.Errorf("a thousandth of the weight, then three times: got %.4f of what came after", got[0])
	}
}

// Nor is it for who was away while the weight was raised.
func TestReweighedWhileAway(t *testing.T) {
	r := newRoom(100, FIFO)
	come := func(user string, weight float64) {
		r.Push(0, &Waiter{Class: 1, User: user, Units: 1, UserWeight: weight, TenantWeight: 1, Expires: Never})
	}
	for range 50 {
		come("other", 1)
	}
	come("u", 0.01)
	for dequeueNext(r, 1).User != "u" {
	}
	r.Reweigh(func(_, _ string) (float64, float64) { return 1, 1 })
	come("u", 1)
	if w := dequeueNext(r, 2); w.User != "u" {
		t.Errorf("after two turns %s is served, want the one whose weight was raised", w.User)
	}
	r.check(t)
}

func timeOf(n int) time.Duration { return time.Duration(n) }

// Nobody of a class is served before one above it, whoever comes.
func TestNoInversions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	r := big(200)
	served := 0
	for now := range 50_000 {
		at := ms * timeOf(now)
		for range rng.IntN(3) {
			w := &Waiter{Class: int8(rng.IntN(Classes)), Tenant: string(rune('a' + rng.IntN(9))), Units: 1 + rng.Int64N(9), Expires: at + 300*ms}
			r.CountArrival(at, w)
			r.Push(at, w)
		}
		for w := r.Expired(at); w != nil; w = r.Expired(at) {
			r.Expire(w)
		}
		if w := r.Next(at); w != nil {
			for class, n := range r.ByClass() {
				if class > int(w.Class) && n > 0 {
					t.Fatalf("class %d is served while %d wait in class %d", w.Class, n, class)
				}
			}
			r.Dequeue(w)
			served++
		}
	}
	if served < 40_000 {
		t.Errorf("only %d were served", served)
	}
}

// While everybody has somebody waiting, classes get what they are guaranteed, to
// 1 %, and at no time more than that out of turn.
func TestGuaranteedShares(t *testing.T) {
	tests := []struct{ shares, want [Classes]float64 }{
		{[Classes]float64{}, [Classes]float64{0, 0, 0, 1}},
		{[Classes]float64{0.1}, [Classes]float64{0.1, 0, 0, 0.9}},
		{[Classes]float64{0.05, 0.1, 0.2}, [Classes]float64{0.05, 0.1, 0.2, 0.65}},
		{[Classes]float64{0, 0.3, 0, 0.5}, [Classes]float64{0, 0.3, 0, 0.7}},
		{[Classes]float64{1, 1}, [Classes]float64{0.5, 0.5, 0, 0}},
		{[Classes]float64{math.NaN(), -1, math.Inf(1)}, [Classes]float64{0, 0, 1, 0}},
	}
	for _, tt := range tests {
		r := big(400)
		r.SetShares(tt.shares)
		rng := rand.New(rand.NewPCG(4, 4))
		var served [Classes]float64
		total := 0.
		for now := range 20_000 {
			at := ms * timeOf(now)
			for class := range int8(Classes) { // all send more than there is
				for range 2 {
					r.CountArrival(at, &Waiter{Class: class})
					r.Push(at, &Waiter{Class: class, Units: 1 + rng.Int64N(4), Expires: Never})
				}
			}
			w := r.Next(at)
			if w == nil {
				continue
			}
			r.Dequeue(w)
			total += cost(w)
			served[w.Class] += cost(w)
			for class, got := range served[:Classes-1] {
				if share := r.classes[class].share; tt.want[Classes-1] > 0 && got > share*total+1e-6 {
					t.Fatalf("shares %v: class %d got %v of %v", tt.shares, class, got, total)
				}
			}
		}
		for class, want := range tt.want {
			if got := served[class] / total; math.Abs(got-want) > 0.01*max(want, 0.05) {
				t.Errorf("shares %v: class %d got %.4f, want %.4f", tt.shares, class, got, want)
			}
		}
	}
}

// A class that nobody above stands in the way of has no guarantee to use up, and
// gathers none.
func TestGuaranteeCountsWhatIsContended(t *testing.T) {
	r := newRoom(100, FIFO)
	r.SetShares([Classes]float64{0.5})
	come := func(class int8, n int) {
		for range n {
			r.Push(0, &Waiter{Class: class, Units: 1, Expires: Never})
		}
	}
	come(0, 50)
	for range 20 {
		r.Dequeue(r.Next(0))
	}
	come(3, 20)
	low := 0
	for range 10 {
		w := r.Next(0)
		if r.Dequeue(w); w.Class == 0 {
			low++
		}
	}
	if low != 5 {
		t.Errorf("%d of 10 were of the lower class with a share of a half", low)
	}
}

// Whoever comes after a pause is served a few at once before the others, and no
// more than that, whatever number the weight of all is.
func TestAPauseGivesCredit(t *testing.T) {
	for _, weight := range []float64{0.01, 1, 100} {
		r := newRoom(100, FIFO)
		r.Reweigh(func(string, string) (float64, float64) { return weight, weight })
		come := func(who string, n int) {
			for range n {
				r.Push(0, &Waiter{Class: 1, User: who, Tenant: who, Units: 1, UserWeight: weight, TenantWeight: weight, Expires: Never})
			}
		}
		come("flood", 50)
		dequeueNext(r, 20)
		come("light", 20)
		const rounding = 1 // a turn: sums of weights are not exact
		first := 0
		for dequeueNext(r, 1).User == "light" {
			first++
		}
		if first < credit || first > credit+rounding {
			t.Errorf("weight %v: the light one is served %d times at once, want %d", weight, first, credit)
		}
		light := 0
		for range 10 {
			if dequeueNext(r, 1).User == "light" {
				light++
			}
		}
		if light != 5 {
			t.Errorf("weight %v: %d of the 10 after that are the light one's, want its half", weight, light)
		}
		r.check(t)
	}
}

// One service of a flow with a tiny weight moves its tag far. That gives nobody else a longer credit.
func TestALightFlowGivesNoCredit(t *testing.T) {
	weight := func(user string) float64 {
		if user == "tiny" {
			return 0.001
		}
		return 1
	}
	for before := 1000; before < 1100; before += 4 {
		r := newRoom(10_000, FIFO)
		r.Reweigh(func(user, _ string) (float64, float64) { return weight(user), 1 })
		come := func(user string, n int) {
			for range n {
				r.Push(0, &Waiter{Class: 1, User: user, Units: 1, UserWeight: weight(user), TenantWeight: 1, Expires: Never})
			}
		}
		come("always", 2000)
		come("tiny", 60)
		dequeueNext(r, before)
		come("pause", 100)
		first := 0
		for dequeueNext(r, 1).User == "pause" {
			first++
		}
		if first > credit+2 {
			t.Errorf("after %d services: served %d times at once, want %d", before, first, credit)
		}
	}
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
			if w := dequeueNext(r, 1); w.Tenant == "sometimes" {
				lead += 0.5
			} else {
				lead -= 0.5
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

// dequeueNext takes out so many and returns the last.
func dequeueNext(r *Room, n int) (w *Waiter) {
	for range n {
		w = r.Next(0)
		r.Dequeue(w)
	}
	return w
}

// fillMemory makes more tenants with debts than the room remembers. None of them waits.
func fillMemory(r *Room) {
	for i := range 2 * r.memory() {
		r.AdjustCost(1, "", fmt.Sprint("debtor", i), 1e6)
	}
}

// Newcomers are served last while memory is full, even where the newest is served first.
// So they displace nobody who would be served before them.
func TestNewcomersDisplaceNobodyWhileMemoryIsFull(t *testing.T) {
	r := newRoom(2, LIFO)
	push(r, "steady", 0)
	fillMemory(r)
	push(r, "waiting", 0)
	for i := range 3 {
		if out, ok := r.Push(0, &Waiter{Class: 1, Tenant: fmt.Sprint("new", i), Units: 1, Expires: Never}); ok {
			t.Errorf("newcomer %d takes the place of %s", i, out.Tenant)
		}
	}
	r.check(t)
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
		if dequeueNext(r, 1).Tenant == "again" {
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
			if w := dequeueNext(r, 1); w.Tenant != "steady" {
				t.Fatalf("%s is served before its turn", w.Tenant)
			}
		}
	}
	come("steady", 1)
	steady(40)
	come("away", 16)
	if w := dequeueNext(r, 1); w.Tenant != "away" {
		t.Fatalf("%s is served before one that comes after a pause", w.Tenant)
	}
	steady(16 - credit - 1)
	come("away", 1)
	for more := 0; ; more++ {
		come("steady", 1)
		if dequeueNext(r, 1).Tenant == "away" {
			return
		}
		if more > 3 {
			t.Fatal("who was away waits longer than for what it was served")
		}
	}
}

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
		r.Dequeue(w)
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
// both; docs/reference/library.md states them.
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
		{"equal weights", []*backlog{tenant("a", 1, 1), tenant("b", 1, 1), tenant("c", 1, 1)}, 1, 0.001, 1.5},
		{"weights 1:2:4", []*backlog{tenant("a", 1, 1), tenant("b", 2, 1), tenant("c", 4, 1)}, 1, 0.001, 1.5},
		{"costs 1:50", []*backlog{tenant("a", 1, 1), tenant("b", 1, 50)}, 1, 0.001, 1.5},
		{"costs 1:50, weights 4:1", []*backlog{tenant("a", 4, 1), tenant("b", 1, 50)}, 1, 0.001, 1.5},
		{"users 1:3, of 3 and 2 tenants", []*backlog{
			of("u", 1, tenant("a", 1, 1)), of("u", 1, tenant("b", 2, 1)), of("u", 1, tenant("c", 4, 1)),
			of("v", 3, tenant("a", 1, 1)), of("v", 3, tenant("b", 1, 5)),
		}, 1, 0.001, 1.5},
		{"a user of 100 tenants, another of 1", append(tenantsOf("u", 100), of("v", 1, tenant("a", 1, 1))), 1, 0.001, 1.5},
		{"one of three comes and goes", []*backlog{tenant("a", 1, 1), tenant("b", 1, 1), guest}, turns/(3*stay) + 1, 0.05, credit},
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
			if got := guest.served / turns; got > 1/3.+0.001 {
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
