package control

import "testing"

func TestKneeSaysWhatItFound(t *testing.T) {
	for _, tt := range []struct {
		e    float64
		want string
	}{
		{0.123, "1% more concurrency, 0.12% more throughput"},
		{0, "1% more concurrency, 0.00% more throughput"},
		{-1.684, "1% more concurrency, 1.68% less throughput"},
	} {
		if got := inWords(tt.e); got != tt.want {
			t.Errorf("an elasticity of %v: %q, want %q", tt.e, got, tt.want)
		}
	}
}
