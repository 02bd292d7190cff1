package control

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A backend that stands still in the first count says nothing about how many it can do. The count goes on afterwards.
func TestBeliefAndAStandstillInAClimb(t *testing.T) {
	const begin = 1500 * ms
	for _, stall := range []time.Duration{0, 2 * time.Second, 5 * time.Second} {
		for seed := range uint64(4) {
			b := newBelief(t, BeliefConfig{})
			g, wait := worldOf(b, 0), queueOf(200)
			g.random = rand.New(rand.NewPCG(seed, 9))
			g.serve = func(g *world) time.Duration {
				end := wait(g.now, g.around(300*ms))
				if end > begin && g.now < begin+stall {
					return max(end, begin+stall) + g.around(300*ms)
				}
				return end
			}
			lowest := math.Inf(1)
			g.decided = func(Decision) {
				if b.mode == tracking {
					lowest = min(lowest, math.Exp(b.at))
				}
			}
			g.run(begin + stall + 30*time.Second)
			if lowest < 100 || math.Exp(b.at) > 350 {
				t.Errorf("%v of standstill, seed %d: the climb landed at %.0f, and %.0f is believed best; it can do 200", stall, seed, lowest, math.Exp(b.at))
			}
		}
	}
}

// Work that costs ten slots takes as long as it takes, also while few are inside.
func TestBeliefOriginOfCostlyWork(t *testing.T) {
	for _, cost := range []int64{1, 10} {
		b := newBelief(t, BeliefConfig{Initial: 64})
		g := worldOf(b, 0)
		g.cost, g.demand = cost, 2
		g.serve = func(g *world) time.Duration {
			return g.now + time.Duration(g.random.ExpFloat64()*float64(50*ms))
		}
		for g.now < 2*time.Second {
			g.window()
		}
		if _, speed, _ := b.origin.seen(); math.Exp(-speed) < 0.04 || math.Exp(-speed) > 0.065 {
			t.Errorf("a cost of %d: work is said to take %.0f ms, and takes 50", cost, 1000*math.Exp(-speed))
		}
	}
}

// A climb ends at Max, and does not say that it goes on.
func TestBeliefClimbsNoHigherThanMax(t *testing.T) {
	for _, cfg := range []BeliefConfig{{Max: 30}, {Initial: 20, Min: 20, Max: 20}} {
		b := newBelief(t, cfg)
		g := worldOf(b, 0)
		g.serve = pooled(200, 20*ms)
		steps := 0
		g.decided = func(d Decision) {
			if strings.Contains(d.Reason, "a step up") {
				steps++
			}
		}
		g.run(5 * time.Second)
		if most := int(cfg.Max-20+9) / 10; b.mode != tracking || steps > most {
			t.Errorf("%+v: %d steps up, want at most %d; mode %v", cfg, steps, most, b.mode)
		}
	}
}
