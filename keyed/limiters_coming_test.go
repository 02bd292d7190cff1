package keyed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// taught is a controller that knows what it was told last.
type taught struct{ limit float64 }

func (*taught) Name() string                              { return "taught" }
func (c *taught) Start() control.Decision                 { return control.Decision{Limit: int64(c.limit)} }
func (c *taught) Update(*control.Window) control.Decision { return c.Start() }
func (c *taught) Save() control.State                     { return control.State{Limit: c.limit} }
func (c *taught) Restore(s control.State)                 { c.limit = s.Limit }

// Whatever comes and goes, a key in use stays, and has in flight what it was given;
// one that returns has the limit that it left with, of as many as are remembered.
func TestComingAndGoing(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := time.Duration(0)
		const most, all = 3, 3*(1+remembered) - 1 // whom one goes for counts as well
		l := newLimiters(t, LimitersConfig{MaxKeys: most, Now: func() time.Duration { return now },
			New: Each(func(string) (limit.Config, error) { return limit.Config{Controller: &taught{5}}, nil })})
		flying, limits := map[string][]weir.Permit{}, map[string]int64{}
		for range 600 {
			now += sweepEvery
			key := fmt.Sprint(rng.IntN(all))
			switch p, err := l.TryAdmit(tenant(key)); {
			case err == nil:
				flying[key] = append(flying[key], p)
			case len(flying[key]) == 0 && len(flying) < most:
				t.Fatalf("seed %d: %s: %v", seed, key, err)
			}
			if rng.IntN(3) == 0 && len(flying[key]) > 0 {
				limits[key] = int64(1 + rng.IntN(9))
				l.pools[key].parts[""].SetLimit(limits[key])
			}
			for _, other := range slices.Sorted(maps.Keys(flying)) {
				permits := flying[other]
				if rng.IntN(3) > 0 {
					continue
				}
				if permits[0].Done(weir.OK); len(permits) == 1 {
					delete(flying, other)
				} else {
					flying[other] = permits[1:]
				}
			}
			for other := range l.pools {
				s, _ := l.Limiter(other, "")
				if want := limits[other]; want > 0 && s.Limit != want || s.InFlight != int64(len(flying[other])) {
					t.Fatalf("seed %d: %s has %d of %d, want %d of %d", seed, other, s.InFlight, s.Limit, len(flying[other]), want)
				}
			}
			for other := range flying {
				if l.pools[other] == nil {
					t.Fatalf("seed %d: %s is in use and gone", seed, other)
				}
			}
		}
		l.Close()
	}
}
