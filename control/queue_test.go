package control_test

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

func TestHealthyQueue(t *testing.T) {
	tests := []struct {
		rate     float64
		patience time.Duration
		want     int64
	}{
		{1, 4 * time.Second, 4},
		{.5, 4 * time.Second, 2},
		{.5, 5 * time.Second, 2},
		{0, time.Second, 0},
		{1, -time.Second, 0},
		{math.NaN(), time.Second, 0},
		{math.Inf(1), time.Second, math.MaxInt32},
	}
	for _, tt := range tests {
		if got := control.HealthyQueue(tt.rate, tt.patience); got != tt.want {
			t.Errorf("%v a second, %v: %d, want %d", tt.rate, tt.patience, got, tt.want)
		}
	}
}
