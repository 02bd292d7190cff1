package limit

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestModel(t *testing.T) {
	seeds, steps := 400, 150
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		p := newPair(t, rng.Int64N(6)+1, rng.IntN(6), Order(seed%3))
		for range steps {
			p.step(rng.Uint32(), rng.Uint32())
		}
		if seed%2 == 0 {
			p.close()
			p.compare()
			for range 20 {
				p.step(rng.Uint32(), rng.Uint32())
			}
		}
	}
}

// Queues that last need more coming than going, for longer, and sometimes the
// reverse. The model counts what that brings into force.
func TestModelOfQueuesThatLast(t *testing.T) {
	seeds := 24
	if testing.Short() {
		seeds = 8
	}
	rush := []uint32{0, 1, 2, 3, 4, 0, 1, 2, 6, 7, 8, 9, 10, 11, 14, 12} // see step
	calm := []uint32{0, 7, 8, 9, 10, 11, 14, 7}
	seen := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 8))
		p := newPair(t, rng.Int64N(6)+1, []int{5, 40, 200}[seed%3], Adaptive)
		p.m.seen, p.tick = seen, time.Millisecond/2
		ops := len(rush) - seed%2 // without the last nobody leaves
		for range 600 {
			p.step(rush[rng.IntN(ops)], rng.Uint32())
		}
		for range 300 {
			p.step(calm[rng.IntN(len(calm))], rng.Uint32())
		}
	}
	for _, rule := range []string{"displaced", "turned", "drained", "deserted", "left early",
		"refused on arrival: deadline", "refused on arrival: queue_timeout"} {
		if seen[rule] == 0 {
			t.Errorf("%s: never", rule)
		}
	}
}

// all makes an operation of each three bytes: that of step, or the end of the gate.
func (p *pair) all(data []byte, step func(op, arg uint32)) {
	for ; len(data) >= 3; data = data[3:] {
		if data[0] == 255 {
			p.close()
			p.compare()
			continue
		}
		step(uint32(data[0]), uint32(data[1])|uint32(data[2])<<8)
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte{3, 4, 0})
	f.Add([]byte{1, 4, 0, 0, 9, 0, 0, 9, 0, 0, 9, 0, 255, 0, 0, 7, 0, 0, 0, 9, 0, 255, 0, 0, 14, 9, 0})
	f.Add([]byte{1, 1, 1, 0, 0, 0, 9, 0, 1, 1, 6, 3, 7, 7, 13, 0, 14, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 600 {
			return
		}
		p := newPair(t, int64(data[0]%8)+1, int(data[1]%8), Order(data[2]%3))
		p.all(data[3:], p.step)
	})
}

// Work of all priorities, users and tenants, of all costs, with weights, shares
// and orders that change on the way, against the model. It counts which rules
// were in force.
func TestModelOfAllKinds(t *testing.T) {
	seeds := 160
	if testing.Short() {
		seeds = 40
	}
	seen := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 9))
		p := newPair(t, rng.Int64N(6)+1, rng.IntN(9), Order(seed%4))
		p.m.seen = seen
		if seed%3 > 0 {
			p.tick /= 5 // most that come have to wait
		}
		for range 250 {
			p.stepMixed(rng.Uint32(), rng.Uint32())
		}
		if seed%5 == 0 {
			p.close()
			p.compare()
			for range 20 {
				p.stepMixed(rng.Uint32(), rng.Uint32())
			}
		}
	}
	for _, rule := range []string{"displaced", "out of turn", "outranked", "another user", "another tenant", "settled", "charged by time",
		"refused on arrival: deadline", "refused on arrival: queue_timeout"} {
		if seen[rule] == 0 {
			t.Errorf("%s: never", rule)
		}
	}
}

// The same with queues that last, which keep fewer places.
func TestModelOfAllKindsThatLast(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 8
	}
	rush := []uint32{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 6, 7, 8, 9, 14, 16, 12}
	calm := []uint32{0, 7, 8, 9, 10, 11, 14, 7}
	seen := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 10))
		p := newPair(t, rng.Int64N(6)+1, []int{15, 60, 200}[seed%3], Adaptive)
		p.m.seen, p.tick, p.patient = seen, time.Millisecond/2, true
		ops := len(rush) - seed%2 // without the last nobody leaves
		for range 700 {
			p.stepMixed(rush[rng.IntN(ops)], rng.Uint32())
		}
		for range 200 {
			p.stepMixed(calm[rng.IntN(len(calm))], rng.Uint32())
		}
	}
	for _, rule := range []string{"displaced", "outranked", "another user", "another tenant", "deserted", "drained"} {
		if seen[rule] == 0 {
			t.Errorf("%s: never", rule)
		}
	}
}

func FuzzModelOfAllKinds(f *testing.F) {
	f.Add([]byte{3, 4, 0})
	f.Add([]byte{1, 5, 1, 0, 9, 0, 0, 80, 19, 0, 0, 9, 255, 0, 0, 16, 0, 9, 7, 1, 1, 19, 4, 1})
	f.Add([]byte{1, 5, 1, 0, 0, 0, 0, 9, 1, 1, 7, 3, 2, 8, 80, 19, 4, 1, 16, 0, 9, 7, 1, 1, 14, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 600 {
			return
		}
		p := newPair(t, int64(data[0]%8)+1, int(data[1]%12), Order(data[2]%4))
		p.all(data[3:], p.stepMixed)
	})
}
