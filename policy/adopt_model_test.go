package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// A gate that has been through other settings decides like one that is made with its last ones, once nothing is left of what
// came before.
func TestAdoptedGateDecidesAsANewOne(t *testing.T) {
	rounds, seed := 300, uint64(1)
	if os.Getenv("WEIR_LONG") != "" {
		rounds, seed = 20_000, rand.Uint64()
	}
	for range rounds {
		synctest.Test(t, func(t *testing.T) { compareAdopted(t, seed) })
		if t.Failed() {
			return
		}
		seed++
	}
}

func compareAdopted(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	quotas := random.IntN(2) == 0
	spec := func() Spec {
		for {
			s := apiSpec(LimitSpec{})
			if quotas {
				s.Gates["api"] = GateSpec{Quota: randomQuota(random)}
			} else {
				s.Gates["api"] = randomLimit(random)
			}
			if p, err := Compile(s, Options{}); err == nil { // else some settings do not fit together
				p.Close()
				return s
			}
		}
	}
	specs := []Spec{spec()}
	adopted := must(t, specs[0], Options{})
	for range 1 + random.IntN(4) {
		specs = append(specs, spec())
		next := must(t, specs[len(specs)-1], Options{Previous: adopted})
		adopted.Replace(next)
		adopted = next
		if quotas { // a limit would learn how long work takes, and tell that later
			play(adopted.Gate("api"), rand.New(rand.NewPCG(seed, random.Uint64())), 10)
			time.Sleep(time.Duration(random.IntN(100)) * time.Hour)
		}
	}
	time.Sleep(1000 * time.Hour) // all buckets are full
	fresh := must(t, specs[len(specs)-1], Options{})
	order := random.Uint64()
	got := play(adopted.Gate("api"), rand.New(rand.NewPCG(seed, order)), 60)
	want := play(fresh.Gate("api"), rand.New(rand.NewPCG(seed, order)), 60)
	if !slices.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		text, _ := json.Marshal(specs)
		t.Errorf("seed %d, %s: from %d on\n%s\nand a new gate\n%s", seed, text, i,
			strings.Join(got[i:min(len(got), i+5)], "\n"), strings.Join(want[i:min(len(want), i+5)], "\n"))
	}
	adopted.Close()
	fresh.Close()
	time.Sleep(time.Hour) // what closes later
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func randomLimit(random *rand.Rand) GateSpec {
	l := &LimitSpec{Limit: 1 + random.Int64N(4), Exempt: pick[int64](random, 0, -1, 1), RefuseOversize: random.IntN(3) == 0, Count: pick(random, "", "cost", "requests")}
	l.Queue = QueueSpec{Len: pick(random, 0, -1, 1, 3, 10), MaxWait: pick(random, Duration(0), Duration(50*time.Millisecond), Duration(time.Second)),
		Order: pick(random, "", "fifo", "lifo", "edf", "adaptive"), ByTime: random.IntN(4) == 0}
	if random.IntN(2) == 0 {
		l.Queue.Shares = map[string]float64{"background": pick(random, 0.1, 0.5), "normal": 0.2}
	}
	if random.IntN(2) == 0 {
		l.Queue.Weights = WeightsSpec{Users: map[string]float64{"u1": pick(random, 0.5, 4)}, Tenants: map[string]float64{"t0": 2}}
	}
	g := GateSpec{Limit: l, Mode: pick(random, "", Enforce, Enforce, Observe, Off)}
	if random.IntN(3) == 0 {
		g.Each = &EachSpec{By: pick(random, "tenant", "user"), MaxKeys: pick(random, 0, 2)}
		if random.IntN(2) == 0 {
			g.Each.Overrides = map[string]OverrideSpec{"t1": {Limit: 2}, "u0": {Scale: pick(random, 0.5, 3)}}
		}
	}
	return g
}

func randomQuota(random *rand.Rand) *QuotaSpec {
	limit := func() QuotaLimitSpec {
		if random.IntN(4) == 0 {
			return QuotaLimitSpec{Limits: []string{pick(random, "2/s burst 4", "1/s burst 3"), pick(random, "20/h", "5 a day")}}
		}
		return QuotaLimitSpec{Rate: pick(random, "1/s", "3/s", "10/h", "5/10s", "6 a day"), Burst: pick[float64](random, 0, 0, 2, 7)}
	}
	q := &QuotaSpec{QuotaLimitSpec: limit(), By: pick(random, nil, []string{"user"}, []string{"tenant"}, []string{"user", "tenant"}),
		Count: pick(random, "", "requests"), Debt: random.IntN(4) == 0, Permissive: random.IntN(6) == 0}
	if random.IntN(2) == 0 {
		q.Queue = QuotaQueueSpec{Len: 1 + random.IntN(5), MaxWait: pick(random, Duration(time.Second), Duration(10*time.Second))}
	}
	for i, user := range []string{"u1", "u2"} {
		switch random.IntN(5) {
		case 0:
			q.Rules = append(q.Rules, QuotaRuleSpec{Rule: quota.Rule{User: quota.Named(user)}, QuotaLimitSpec: QuotaLimitSpec{Rate: "2/s"}})
		case 1:
			q.Rules = append(q.Rules, QuotaRuleSpec{Rule: quota.Rule{User: quota.Named(user), Exempt: i == 0, Blocked: i == 1}})
		}
	}
	return q
}

// play has work arrive at a gate and end, and returns what became of each.
func play(g *Gate, random *rand.Rand, steps int) (all []string) {
	type inside struct {
		n int
		p weir.Permit
	}
	var running []inside
	waiters := map[int]weir.Waiter{}
	answer := func(n int, p weir.Permit, err error) {
		delete(waiters, n)
		var r *weir.Rejection
		switch {
		case errors.As(err, &r):
			all = append(all, fmt.Sprintf("%d: %s", n, r.Reason))
		case err != nil:
			all = append(all, fmt.Sprintf("%d: %v", n, err))
		default:
			all = append(all, fmt.Sprintf("%d: in", n))
			running = append(running, inside{n, p})
		}
	}
	type answered struct {
		inside
		err error
	}
	var mu sync.Mutex // guards those that timers have answered
	var late []answered
	wake := func(n int) func(weir.Permit, error) {
		return func(p weir.Permit, err error) {
			mu.Lock()
			defer mu.Unlock()
			late = append(late, answered{inside{n, p}, err})
		}
	}
	hear := func() {
		mu.Lock()
		got := late
		late = nil
		mu.Unlock()
		for _, a := range got {
			answer(a.n, a.p, a.err)
		}
	}
	for n := range steps {
		switch random.IntN(6) {
		case 0, 1, 2:
			w := weir.Work{User: fmt.Sprint("u", random.IntN(3)), Tenant: fmt.Sprint("t", random.IntN(3)), Priority: pick(random, weir.Background, weir.Normal, weir.High),
				Cost: pick[int64](random, 0, 1, 1, 2, 5), Exempt: random.IntN(10) == 0}
			if random.IntN(5) == 0 {
				w.MaxWait = pick(random, weir.NoWait, 20*time.Millisecond)
			}
			p, waiter, err := g.Arrive(w, wake(n))
			if errors.Is(err, weir.ErrWaiting) {
				waiters[n] = waiter
				all = append(all, fmt.Sprintf("%d: waits", n))
			} else {
				answer(n, p, err)
			}
		case 3:
			if len(running) > 0 {
				i := random.IntN(len(running))
				one := running[i]
				running = slices.Delete(running, i, i+1)
				one.p.Done(weir.OK)
			}
		case 4:
			if len(waiters) > 0 {
				first := n
				for k := range waiters {
					first = min(first, k)
				}
				w := waiters[first]
				delete(waiters, first)
				all = append(all, fmt.Sprintf("%d: leaves %v", first, w.Cancel()))
			}
		case 5:
			before := len(all)
			time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
			synctest.Wait()
			hear()
			slices.Sort(all[before:]) // timers of different keys may end together
		}
		hear()
	}
	for len(running) > 0 {
		one := running[0]
		running = running[1:]
		one.p.Done(weir.OK)
		hear()
	}
	for _, w := range waiters {
		w.Cancel()
	}
	hear()
	for len(running) > 0 {
		one := running[0]
		running = running[1:]
		one.p.Done(weir.OK)
	}
	s := g.Snapshot()
	return append(all, fmt.Sprintf("%d inside, %d wait", s.InFlight, s.Waiting))
}
