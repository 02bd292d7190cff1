package sim

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMaxMin(t *testing.T) {
	for _, c := range []struct {
		capacity               float64
		demands, weights, want []float64
	}{
		{10, []float64{20, 20}, []float64{1, 1}, []float64{5, 5}},
		{10, []float64{2, 20}, []float64{1, 1}, []float64{2, 8}},
		{7, []float64{100, 100, 100}, []float64{1, 2, 4}, []float64{1, 2, 4}},
		{7, []float64{100, 0.5, 100}, []float64{1, 2, 4}, []float64{1.3, 0.5, 5.2}},
		{10, []float64{1, 2, 3}, []float64{1, 1, 1}, []float64{1, 2, 3}},
	} {
		got := maxMin(c.capacity, c.demands, c.weights)
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-12 {
				t.Errorf("%v of %v by %v: %v, want %v", c.capacity, c.demands, c.weights, got, c.want)
				break
			}
		}
	}
}

// What defines max-min fairness: all is given out or all have what they ask for,
// nobody has more than that, and nobody who has less has less by weight than
// another.
func TestMaxMinIsMaxMin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		n := 1 + r.IntN(8)
		demands, weights := make([]float64, n), make([]float64, n)
		var asked float64
		for i := range n {
			demands[i], weights[i] = 10*r.Float64(), 0.1+r.Float64()
			asked += demands[i]
		}
		capacity := 20 * r.Float64()
		got := maxMin(capacity, demands, weights)
		var given float64
		for i, g := range got {
			given += g
			if g > demands[i]+1e-9 {
				t.Fatalf("%v of %v by %v: %v", capacity, demands, weights, got)
			}
			for j, h := range got {
				if g < demands[i]-1e-9 && h/weights[j] > g/weights[i]+1e-9 {
					t.Fatalf("%v of %v by %v: %v; %d has less than %d", capacity, demands, weights, got, i, j)
				}
			}
		}
		if math.Abs(given-min(capacity, asked)) > 1e-9 {
			t.Fatalf("%v of %v by %v: %v in all", capacity, demands, weights, given)
		}
	}
}

func TestShareErrors(t *testing.T) {
	fair := &Fair{Users: map[string]float64{"big": 2}, Tenants: map[string]float64{"heavy": 3}}
	exact := []claim{
		{"big", "heavy", 100, 45}, {"big", "light", 100, 15}, // 60 by 3 and 1
		{"small", "", 100, 20}, {"small", "", 50, 10}, // one tenant in two classes
	}
	if users, tenants := shareErrors(exact, fair); users > 1e-12 || tenants > 1e-12 {
		t.Errorf("errors of %v and %v where all have their shares", users, tenants)
	}
	exact[0].given, exact[1].given = 30, 30 // wrong within the user only
	if users, tenants := shareErrors(exact, fair); users > 1e-12 || math.Abs(tenants-1) > 1e-12 {
		t.Errorf("errors of %v and %v; 30 instead of 15 is an error of 1, and the users' is 0", users, tenants)
	}
	exact[2].given += 15 // 105 in all: 70 and 35
	if users, _ := shareErrors(exact, fair); math.Abs(users-10./35) > 1e-12 {
		t.Errorf("an error of %v; 45 instead of 35 is one of 2/7", users)
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{1, 1, 1, 1}, 1},
		{[]float64{4, 0, 0, 0}, 0.25},
		{nil, 0},
	} {
		if got := jain(c.values); got != c.want {
			t.Errorf("Jain's index of %v is %v, want %v", c.values, got, c.want)
		}
	}
}
