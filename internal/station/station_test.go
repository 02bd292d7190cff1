package station

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBest(t *testing.T) {
	tests := []struct {
		law        Law
		n          int
		throughput float64
	}{
		{Law{Sigma: 0.05, Kappa: 0.0005}, 44, 10.739},
		{Law{Sigma: 0.05}, 1881, 20},
		{Law{Slots: 100}, 100, 100},
		{Law{Cores: 2, Thrash: 0.03}, 2, 2},
	}
	for _, tt := range tests {
		if n, x := tt.law.Best(); n != tt.n || x < tt.throughput*0.999 || x > tt.throughput*1.001 {
			t.Errorf("%+v: %.3f at %d, want %.3f at %d", tt.law, x, n, tt.throughput, tt.n)
		}
	}
}

// The throughput of n jobs is n times the speed of each, as far as they are in
// service.
func TestThroughputFollowsSpeed(t *testing.T) {
	for _, law := range []Law{{Sigma: 0.05, Kappa: 0.0005}, {Slots: 3}, {Cores: 3, Thrash: 0.1}} {
		for n := 1; n < 20; n++ {
			served := n
			if law.Slots > 0 {
				served = min(n, law.Slots)
			}
			if x := float64(served) * law.Speed(served); x < law.Throughput(n)*(1-1e-9) || x > law.Throughput(n)*(1+1e-9) {
				t.Errorf("%+v: %d jobs at speed %.4f, throughput %.4f", law, n, law.Speed(served), law.Throughput(n))
			}
		}
	}
}

// Jobs are taken out at random, of those in service and of those that wait. The others finish when a station without the
// ones taken out would finish them.
func TestRemove(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s, slots := New(Law{Slots: 3}), make([]time.Duration, 3) // when each slot is free, by hand
		var taken, left []int32
		for job := range int32(20) { // at once: 3 in service, 17 in the queue
			s.Enter(0, job, float64(1+rnd.IntN(1000))/1000)
		}
		work := map[int32]float64{}
		for _, j := range s.jobs.items {
			work[j.job] = j.tag
		}
		for i := range s.queue.n {
			work[s.queue.buf[i].job] = s.queue.buf[i].work
		}
		for job := range int32(20) {
			if rnd.IntN(3) == 0 {
				taken = append(taken, job)
			} else {
				left = append(left, job)
			}
		}
		rnd.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
		for _, job := range taken {
			if !s.Remove(0, job) || s.Remove(0, job) {
				t.Fatalf("seed %d: job %d is there once", seed, job)
			}
		}
		// Those in service stay, and what waits moves up in its order.
		var want []time.Duration
		for _, job := range left {
			i := slices.Index(slots, slices.Min(slots))
			slots[i] += time.Duration(work[job] * 1e9)
			want = append(want, slots[i])
		}
		slices.Sort(want)
		for i := range want {
			at := s.Next()
			s.Finish(at)
			if d := at - want[i]; d < -time.Microsecond || d > time.Microsecond {
				t.Fatalf("seed %d: finish %d at %v, want %v", seed, i, at, want[i])
			}
		}
		if s.Len() != 0 || s.Next() != Never {
			t.Fatalf("seed %d: %d jobs are left", seed, s.Len())
		}
	}
}

// Whatever is taken out of a heap, it stays in order.
func TestHeapRemove(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var h Heap[serving]
		var want []float64
		for job := range int32(1 + rnd.IntN(40)) {
			h.Push(serving{tag: float64(rnd.IntN(30)), order: uint32(job), job: job})
		}
		for range h.Len() / 2 {
			job := rnd.Int32N(40)
			had := slices.ContainsFunc(h.items, func(s serving) bool { return s.job == job })
			if h.Remove(func(s serving) bool { return s.job == job }) != had {
				t.Fatal("what was taken out was not there, or the other way round")
			}
		}
		for _, s := range h.items {
			want = append(want, s.tag)
		}
		slices.Sort(want)
		for _, tag := range want {
			if got := h.Pop().tag; got != tag {
				t.Fatalf("%v comes first, want %v", got, tag)
			}
		}
	}
}
