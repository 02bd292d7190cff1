package fault

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"api", "backend", "writes", "adaptive"}
	for word, want := range map[string]string{
		"apy": "api", "pai": "api", "Backend": "backend", "bakend": "backend", "write": "writes",
		"x": "", "": "", "something": "", "adaptiv": "adaptive",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
