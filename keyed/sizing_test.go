package keyed

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// flying is a source whose lag is what is in flight: work keeps its slot until it
// has been applied.
type flying struct{ g *Pools }

func (f *flying) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "lag", Value: float64(f.g.Snapshot().InFlight), Known: true})
}

// Fifty databases that are always full, and one queue: the loop settles where the
// documentation of control.LagMap says, at a lag of 35,806 and 716 slots each, from
// the first window on full pools.
func TestLagLoopSettles(t *testing.T) {
	const databases = 50
	source := &flying{}
	g, now := byHand(t, Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{})), Signals: source, Queue: limit.Queue{Len: -1}})
	source.g = g
	held := make([][]weir.Permit, databases)
	fill := func() {
		for db := range held {
			w := tenant(fmt.Sprint("db-", db))
			for u, _ := g.Key(w.Tenant); u.InFlight > u.Limit; u, _ = g.Key(w.Tenant) {
				last := len(held[db]) - 1
				held[db][last].Done(weir.OK)
				held[db] = held[db][:last]
			}
			for {
				p, err := g.TryAdmit(w)
				if err != nil {
					break
				}
				held[db] = append(held[db], p)
			}
		}
	}
	for range 40 {
		fill()
		*now += 5 * time.Second
		g.Step()
	}
	fill()
	s := g.Snapshot()
	if s.Limit < 714 || s.Limit > 718 || s.InFlight < 35_700 || s.InFlight > 35_900 {
		t.Errorf("settled at %d slots and a lag of %d", s.Limit, s.InFlight)
	}
}
