package peers

import (
	"testing"
)

// TestMergeOrder: a part takes the place of what it was, and nothing else.
func TestMergeOrder(t *testing.T) {
	b, err := Order(1)
	if err != nil {
		t.Fatal(err)
	}
	cell := func(peer string, median float64) Cell {
		c := Cell{Scenario: "priority-2000", Column: "2000/s: goodput", Peer: peer}
		c.Median = median
		return c
	}
	got := b.Merge([]Cell{cell("no control", 1), cell("weir", 2), cell("gone", 3)}, []Cell{cell("weir", 4)})
	if len(got) != 2 || got[0].Peer != "weir" || got[0].Median != 4 || got[1].Median != 1 {
		t.Errorf("merged: %+v", got)
	}
}

// TestOrderShort runs every peer of every row for a twentieth of its time: it plays,
// and shows what it is there to show.
func TestOrderShort(t *testing.T) {
	if testing.Short() {
		t.Skip("a simulation takes ten times as long under the race detector; run without -short")
	}
	b, err := Order(0.05)
	if err != nil {
		t.Fatal(err)
	}
	cells := b.Run(t, Plan{Seeds: []uint64{1}})
	at := func(column, peer string) float64 {
		for _, c := range cells {
			if c.Column == column && c.Peer == peer {
				return c.Median
			}
		}
		t.Fatalf("no figure %s of %s", column, peer)
		return 0
	}
	// A prioritizer that moves its threshold once a second refuses what a strict
	// queue would serve; guarantees do not.
	if refused := at("4000/s: critical refused", "failsafe-go prioritizer (fixed, 1s, 10x)"); refused < 0.2 {
		t.Errorf("the prioritizer refused %.3f of the critical tenth, its figures elsewhere are .7", refused)
	}
	if refused := at("4000/s: critical refused", "partitions (fixed, 0.7 and 0.3)"); refused > 0.05 {
		t.Errorf("partitions refused %.3f of the critical tenth", refused)
	}
	if jain := at("one: Jain", "Kubernetes APF"); jain < 0.9 {
		t.Errorf("Jain's index of Kubernetes' victims is %.3f", jain)
	}
	if served := at("2000/s: goodput", "weir (fixed)"); served < 0.8 {
		t.Errorf("weir's goodput is %.3f", served)
	}
}
