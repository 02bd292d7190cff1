package callers

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

// What the figures make of accounts: 3 s of calm, 2 s of fault, 3 s after it.
func TestFigures(t *testing.T) {
	p := plan{calm: 3 * time.Second, fault: 2 * time.Second, after: 3 * time.Second, capacity: 200}
	calm, bad := second{Due: 100, OK: 100, Attempts: 100}, second{Due: 100, OK: 20, Refused: 80, Attempts: 300}
	well := []second{calm, calm, calm, bad, bad, calm, calm, calm}
	late := []second{calm, calm, calm, bad, bad, bad, calm, calm}
	never := []second{calm, calm, calm, bad, bad, bad, bad, bad}
	starved := []second{calm, calm, calm, {Due: 100, OK: 5, Attempts: 100}, {Due: 100, OK: 5, Attempts: 100, Behind: true}, calm, calm, calm}
	tasks := []second{{Due: 50, OK: 1, Attempts: 9}, {Due: 50, OK: 40, Attempts: 250}, {Due: 50, OK: 40, Attempts: 250}, {}}
	values := func(results []result) (all [][]float64) {
		for _, r := range results {
			var v []float64
			for _, f := range r.figures {
				v = append(v, f.value)
			}
			all = append(all, v)
		}
		return all
	}
	for _, tt := range []struct {
		name     string
		row      string
		kinds    [2]string
		accounts [2][]second
		want     [][]float64
	}{
		{"two of one kind", "S5", [2]string{naive, naive}, [2][]second{well, well}, [][]float64{{3, 1.5, 0.2, 0, 0}}},
		{"a second late", "S5", [2]string{naive, naive}, [2][]second{well, late}, [][]float64{{3, 1.625, 0.2, 1, 0}}},
		{"never back", "S5", [2]string{ours, ours}, [2][]second{never, never}, [][]float64{{3, 2.25, 0.2, 3, 0}}},
		{"shares", "S5", [2]string{ours, naive}, [2][]second{starved, well}, [][]float64{{1, 1, 0.05, 0, 0.125, 0.4}, {3, 1.5, 0.2, 0, 0, 1.6}}},
		{"tasks", "S15", [2]string{ours, ours}, [2][]second{tasks, tasks}, [][]float64{{1.6, 5, 0}}},
		{"tasks beside others", "S15", [2]string{ours, naive}, [2][]second{tasks, tasks}, [][]float64{{1.6, 5, 0}, {1.6, 5, 0}}},
	} {
		got := values(p.figures(tt.row, "mix", tt.kinds, tt.accounts))
		if len(got) != len(tt.want) {
			t.Fatalf("%s: %v, want %v", tt.name, got, tt.want)
		}
		for i := range got {
			for j := range max(len(got[i]), len(tt.want[i])) {
				if len(got[i]) != len(tt.want[i]) || math.Abs(got[i][j]-tt.want[i][j]) > 1e-9 {
					t.Errorf("%s: %v, want %v", tt.name, got[i], tt.want[i])
					break
				}
			}
		}
	}
	text := report(p.figures("S5", "one of each", [2]string{ours, naive}, [2][]second{starved, well}))
	for _, want := range []string{"0.400", "✗", "✓"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestFaultyArguments(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "x"}, {"-role", "{"}, {"-role", `{"Slots":1}`, "-no"}} {
		if err := Main(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if err := playRole(`{"Slots":1}`, strings.NewReader("half\n"), io.Discard); err == nil {
		t.Error("a backend took a capacity that is no number")
	}
	if err := playRole(`{"Kind":"ours"}`, strings.NewReader("go\n"), io.Discard); err == nil {
		t.Error("clients without a time-out began")
	}
}
