package quota

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// exact is the bucket again, in fractions and without any care for speed.
type exact struct {
	tokens, rate, burst *big.Rat
	last                time.Duration
}

func rat(f float64) *big.Rat { return new(big.Rat).SetFloat64(f) }

func (e *exact) refill(now time.Duration) {
	if now > e.last {
		passed := big.NewRat(int64(now-e.last), int64(time.Second))
		e.tokens.Add(e.tokens, passed.Mul(passed, e.rate))
	}
	e.last = now
	if e.tokens.Cmp(e.burst) > 0 {
		e.tokens.Set(e.burst)
	}
}

// missing returns what a take lacks.
func (e *exact) missing(cost int64, debt bool) *big.Rat {
	need := new(big.Rat)
	if !debt {
		need.SetInt64(cost)
	}
	return need.Sub(need, e.tokens)
}

func (e *exact) take(n *big.Rat) {
	e.tokens.Sub(e.tokens, n)
	if e.tokens.Cmp(e.burst) > 0 {
		e.tokens.Set(e.burst)
	}
	if low := rat(-MaxTokens); e.tokens.Cmp(low) < 0 {
		e.tokens.Set(low)
	}
}

// FuzzBucket plays takes, gifts, changes of the rate and steps of the clock on a
// bucket and on its model. They agree but where the model itself is within the
// slack of the other answer.
func FuzzBucket(f *testing.F) {
	f.Add(uint64(1), 10., 20., true)
	f.Add(uint64(2), 0.015, 30., false)
	f.Add(uint64(3), 1e9, 1e12, true)
	f.Fuzz(func(t *testing.T, seed uint64, rate, burst float64, debt bool) {
		l := Window{Rate: rate, Burst: burst}
		if l.Check() != nil {
			return
		}
		r := rand.New(rand.NewPCG(seed, 0))
		p := newPail(debt, l)
		e := &exact{tokens: rat(burst), rate: rat(rate), burst: rat(burst)}
		for range 100 {
			switch r.IntN(8) {
			case 0:
				p.advance(-time.Duration(r.Int64N(int64(time.Second))))
			case 1:
				p.advance(time.Duration(float64(time.Second) * min(burst/rate, 5e7) * r.Float64())) // in all, less than a Duration holds
			default:
				p.advance(time.Duration(r.Int64N(int64(time.Second))))
			}
			e.refill(p.at.now)
			if r.IntN(20) == 0 {
				changed(p, e, rate*(0.5+r.Float64()), burst*(0.5+r.Float64()))
			}
			cost := int64(burst * r.Float64() * 1.2)
			if r.IntN(10) == 0 {
				p.buckets[0].refill(&p.Windows[0], p.at)
				p.buckets[0].charge(&p.Windows[0], -float64(cost))
				e.take(rat(-float64(cost)))
				continue
			}
			compare(t, p, e, cost)
		}
	})
}

func changed(p *pail, e *exact, rate, burst float64) {
	if l := (Window{Rate: rate, Burst: burst}); l.Check() == nil {
		p.buckets[0].refill(&p.Windows[0], p.at)
		p.Windows[0], e.rate, e.burst = l, rat(rate), rat(burst)
		e.refill(p.at.now)
	}
}

func compare(t *testing.T, p *pail, e *exact, cost int64) {
	t.Helper()
	l := &p.Windows[0]
	lack, _ := e.missing(cost, p.Debt).Float64()
	before, _ := e.tokens.Float64()
	err := 2*l.slack() + 1e-12*math.Abs(before)
	got := p.take(cost)
	tooLarge := !p.Debt && float64(cost) > l.Burst
	switch want := lack <= 0 && !tooLarge; {
	case got.OK != want && math.Abs(lack) > err:
		t.Fatalf("%v, %v tokens, cost %d: ok %v, the model says %v", *l, before, cost, got.OK, want)
	case got.OK:
		e.take(rat(float64(cost)))
	case tooLarge:
		if got.Wait != Never {
			t.Fatalf("%v, cost %d: wait %v, want Never", *l, cost, got.Wait)
		}
	case got.Wait != Never:
		if sec := lack / l.Rate; got.Wait.Seconds() < sec-err/l.Rate || got.Wait.Seconds() > sec+0.001+err/l.Rate+1e-9*sec {
			t.Fatalf("%v, %v tokens, cost %d: wait %v, the model says %vs", *l, before, cost, got.Wait, sec)
		}
	}
	if left, _ := e.tokens.Float64(); math.Abs(got.Remaining-left) > err {
		t.Fatalf("%v: %v tokens left, the model says %v", *l, got.Remaining, left)
	}
}

// Whoever waits as long as told is let through if nobody came in between, and not
// two milliseconds earlier.
func TestWaitIsHonest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		l := Window{Rate: math.Exp(r.Float64()*30 - 10), Burst: math.Exp(r.Float64() * 20)}
		p := newPail(r.IntN(2) == 0, l)
		p.advance(time.Duration(r.Int64N(1e12)))
		cost := int64(l.Burst*r.Float64()) + 1
		if float64(cost) > l.Burst {
			continue
		}
		p.buckets[0].tokens, p.buckets[0].last = l.Burst*(r.Float64()-0.5), p.at.now
		got := p.take(cost)
		if got.OK || got.Wait > 1000*time.Hour {
			continue
		}
		p.advance(got.Wait - 2*time.Millisecond)
		if early := p.take(cost); got.Wait > 2*time.Millisecond && early.OK && l.slack()/l.Rate < 0.001 {
			t.Fatalf("%v: cost %d was let through two milliseconds before %v", l, cost, got.Wait)
		}
		p.advance(2 * time.Millisecond)
		if then := p.take(cost); !then.OK && !p.Debt {
			t.Fatalf("%v: cost %d is refused after the %v that it was told: %+v", l, cost, got.Wait, then)
		}
	}
}

// However the windows of rules change, and whatever a store forgets meanwhile, nobody gets more than buckets that are never
// forgotten would give. A change is the exception: what is full by then may begin anew. In the end nothing is kept.
func TestRulesThatChange(t *testing.T) {
	const users = 12
	pool := []Window{{Rate: 1, Burst: 10}, {Rate: 2, Burst: 10}, {Rate: 0.2, Burst: 20}, {Rate: 5, Burst: 100}, PerCalendar(15, Hour, nil)}
	type keyed struct {
		bucket
		windows []Window // those of its rule since it was used
	}
	seeds := uint64(100)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		var clock still
		rules, kept := make([]Rule, users), map[int]*keyed{}
		pick := func() []Window { return []Window{pool[r.IntN(len(pool))]} }
		for i := range rules {
			rules[i] = Rule{User: Named(fmt.Sprint(i)), Windows: pick()}
		}
		q := newQuota(t, Config{Name: "q", Debt: seed%2 == 0, Now: clock.now, Rules: rules})
		m := q.memory
		if r.IntN(2) == 0 {
			m.classes.most = 2 + r.IntN(4) // the numbers of some windows are given again, and some windows have none
		}
		at := func() moment { return moment{clock.now(), clock.now(), m.epoch} }
		for range 600 {
			clock.advance(time.Duration(r.IntN(3000)) * time.Millisecond)
			switch r.IntN(12) {
			case 0:
				m.Purge()
			case 1: // some rules change, those of one window above all
				window := pick()[0]
				for i := range rules {
					if (rules[i].Windows[0] == window && r.IntN(2) == 0) || r.IntN(20) == 0 {
						rules[i].Windows = pick()
					}
				}
				for i, k := range kept {
					full := func(w Window) bool { return k.fullBy(&w, at()) }
					if !slices.ContainsFunc(k.windows, func(w Window) bool { return !full(w) }) {
						delete(kept, i)
					} else {
						k.windows = append(k.windows, rules[i].Windows[0])
					}
				}
				if err := q.SetRules(rules); err != nil {
					t.Fatal(err)
				}
			default:
				i, cost := r.IntN(users), int64(1+r.IntN(12))
				w := &rules[i].Windows[0]
				if kept[i] == nil {
					kept[i] = &keyed{bucket: full(w, at())}
				}
				k := kept[i]
				k.windows = []Window{*w}
				k.refill(w, at())
				if !q.Allow(weir.Work{User: fmt.Sprint(i), Cost: cost}) {
					continue
				}
				if lack := k.lacks(w, float64(cost), q.settings.Load().debt); lack > 1e-6 {
					t.Fatalf("seed %d: user %d was let through and lacks %v of %v", seed, i, lack, *w)
				}
				k.charge(w, float64(cost))
			}
		}
		clock.advance(100 * time.Hour)
		if m.Purge(); m.Stats().Keys != 0 {
			t.Fatalf("seed %d: %+v, want no key", seed, m.Stats())
		}
	}
}

// A bucket without debts is the generic cell rate algorithm (ITU-T I.371) with an
// increment of 1/rate and a tolerance of (burst-1)/rate, for work that costs one.
func TestIsGCRA(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		rate, burst := 1+r.IntN(50), 1+r.IntN(20)
		increment := time.Second * 1000 / time.Duration(rate) // in thousandths of ns
		tolerance := increment * time.Duration(burst-1)
		p := newPail(false, Window{Rate: float64(rate), Burst: float64(burst)})
		arrival := time.Duration(math.MinInt64 / 2)
		for range 500 {
			p.advance(time.Duration(r.ExpFloat64() * float64(time.Second) / float64(rate)))
			now := p.at.now * 1000
			if slip := arrival - tolerance - now; slip > -3000 && slip < 3000 {
				break // the increment is rounded, and the two may differ by that
			}
			want := now >= arrival-tolerance
			if got := p.take(1).OK; got != want {
				t.Fatalf("%v at %v: %v, GCRA says %v", p.Windows[0], p.at.now, got, want)
			}
			if want {
				arrival = max(arrival, now) + increment
			}
		}
	}
}
