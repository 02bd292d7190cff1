package room

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
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
				r.Knock(now, &w)
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
			r.Serve(w)
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

// Shares are within 1 % of the max-min ideal, and the margins that are met are far
// smaller, whatever the tenants send: the only thing that counts is what the others
// leave.
func TestSharesAreMaxMin(t *testing.T) {
	tests := []struct {
		name    string
		weights []float64
		demands []float64
		costs   []int64
		margin  float64
	}{
		{"weights 1:2:4", []float64{1, 2, 4}, []float64{2, 2, 2}, []int64{1, 1, 1}, .003},
		{"one sends 100 times as much", []float64{1, 2, 4}, []float64{100, 1, 1}, []int64{1, 1, 1}, .003},
		{"the heaviest does", []float64{1, 2, 4}, []float64{1, 1, 100}, []int64{1, 1, 1}, .003},
		{"costs differ", []float64{1, 2, 4}, []float64{2, 2, 2}, []int64{7, 1, 13}, .003},
		{"one asks for less", []float64{1, 1, 1}, []float64{.1, 2, 2}, []int64{1, 1, 1}, .003},
		{"two ask for less", []float64{1, 2, 4}, []float64{.05, .1, 50}, []int64{1, 3, 5}, .005},
		{"a mouse and elephants", []float64{1, 1, 1, 1, 1}, []float64{.19, 9, 9, 9, 9}, []int64{1, 1, 1, 1, 1}, .003},
		{"nobody is in want", []float64{1, 1}, []float64{.3, .4}, []int64{1, 1}, .003},
		{"out of all bounds", []float64{1e300, 1024, -5}, []float64{2, 2, 2}, []int64{1, 1, 1}, .003},
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
		weights := []float64{.5 + rng.Float64()*4, .5 + rng.Float64()*4}
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
			r.Serve(w)
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
	for _, demand := range []float64{5, .4} {
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
					r.Knock(now, &w)
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
				r.Serve(w)
				w.Owner.(*source).served++
			}
		}
		if got, want := honest.served/total, min(.5, demand); math.Abs(got-want) > .005 {
			t.Errorf("demand %v: the honest user got %.4f of what was served, want %.4f", demand, got, want)
		}
		if demand < .5 && honest.refused > 0 {
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
					r.Knock(at, w)
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
					r.Serve(w)
				}
				if came < 900 || float64(long) > .01*float64(came) {
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
		r.Serve(w)
		s := w.Owner.(*source)
		r.Settle(0, "", w.Tenant, math.Trunc(real[s])-float64(w.Units))
		spent[s] += real[s]
		all += real[s]
	}
	for s, want := range map[*source]float64{cheap: .25, dear: .25, saver: .5} {
		if got := spent[s] / all; math.Abs(got-want) > .005 {
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
	if got := feed(t, r, 20_000, a, b); math.Abs(got[0]-.75) > .002 {
		t.Errorf("three times the weight got %.4f", got[0])
	}
}

// What was charged under a small weight is no debt for ever once the weight is
// large.
func TestReweighedDebt(t *testing.T) {
	r := big(256)
	a := &source{name: Waiter{Tenant: "a", Units: 1, TenantWeight: .001}, perServed: 2}
	b := &source{name: Waiter{Tenant: "b", Units: 1}, perServed: 2}
	feed(t, r, 2500, a, b)
	r.Reweigh(func(_, tenant string) (float64, float64) {
		if tenant == "a" {
			return 1, 3
		}
		return 1, 1
	})
	a.name.TenantWeight = 3
	if got := feed(t, r, 400, a, b); math.Abs(got[0]-.75) > .05 {
		t.Errorf("a thousandth of the weight, then three times: got %.4f of what came after", got[0])
	}
}
