package fault

import (
	"strings"
	"testing"
)

// A name of digits is no index.
func TestPath(t *testing.T) {
	path := Path{"gates", "8080", "a.b", "[x]"}.Index(3).At("key")
	if got, want := path.String(), `gates.8080["a.b"]["[x]"][3].key`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

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

func TestFaultsBeyondTheBound(t *testing.T) {
	var l, outer List
	for range mostKept + 500 {
		l.Add(Path{"rate"}, "is wrong", "")
	}
	outer.AddError(Path{"api"}, l.Err(""))
	for _, l := range []*List{&l, &outer} {
		if got := l.Err("").Error(); len(l.All()) != mostKept || l.Len() != mostKept+500 || !strings.HasSuffix(got, "and 1400 more; mend these first") {
			t.Errorf("%d faults kept of %d: ...%s", len(l.All()), l.Len(), got[len(got)-40:])
		}
	}
}
