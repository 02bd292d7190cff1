package station

import "testing"

func TestBest(t *testing.T) {
	tests := []struct {
		law        Law
		n          int
		throughput float64
	}{
		{Law{Sigma: .05, Kappa: .0005}, 44, 10.739},
		{Law{Sigma: .05}, 1881, 20},
		{Law{Slots: 100}, 100, 100},
		{Law{Cores: 2, Thrash: .03}, 2, 2},
	}
	for _, tt := range tests {
		if n, x := tt.law.Best(); n != tt.n || x < tt.throughput*.999 || x > tt.throughput*1.001 {
			t.Errorf("%+v: %.3f at %d, want %.3f at %d", tt.law, x, n, tt.throughput, tt.n)
		}
	}
}

// The throughput of n jobs is n times the speed of each, as far as they are in
// service.
func TestThroughputFollowsSpeed(t *testing.T) {
	for _, law := range []Law{{Sigma: .05, Kappa: .0005}, {Slots: 3}, {Cores: 3, Thrash: .1}} {
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
