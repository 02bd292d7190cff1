package shed_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/shed"
)

func TestLoadAndWait(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		s          weir.Snapshot
		load, wait float64
		known      bool // the load
	}{
		{weir.Snapshot{Limit: 10, InFlight: 7}, 0.7, 0, true},
		{weir.Snapshot{Limit: 10, InFlight: 10, Wait: time.Second}, 1, 0, true}, // an estimate, but nobody waits
		{weir.Snapshot{Limit: 10, InFlight: 10, Waiting: 5, Wait: 30 * ms}, 1.5, 1.5, true},
		{weir.Snapshot{Limit: 10, InFlight: 20}, 2, 0, true}, // after a shrink
		{weir.Snapshot{}, 0, 0, false},
		{weir.Snapshot{Limit: 100, PerKey: true, InFlight: 150}, 0, 0, false}, // by 150 keys
	} {
		if v, ok := shed.LoadOf(still(c.s))(); v != c.load || ok != c.known {
			t.Errorf("the load of %+v is %v, %v; want %v, %v", c.s, v, ok, c.load, c.known)
		}
		if v, ok := shed.WaitOf(still(c.s), 20*ms)(); v != c.wait || !ok {
			t.Errorf("the wait of %+v is %v, %v; want %v", c.s, v, ok, c.wait)
		}
	}
	if _, ok := shed.WaitOf(still{}, 0)(); ok {
		t.Error("a wait over nothing is known")
	}
	if _, ok := shed.WaitOf(still{Limit: 10, InFlight: 10, Waiting: 5}, 20*ms)(); ok {
		t.Error("the wait before a gate that gives no estimate is known")
	}
}

type still weir.Snapshot

func (s still) Snapshot() weir.Snapshot { return weir.Snapshot(s) }
