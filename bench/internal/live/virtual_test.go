package live

import (
	"strings"
	"testing"
)

// The rows of the gateway play in virtual time, alike each time.
func TestVirtual(t *testing.T) {
	play := func(seeds string, more ...string) (string, error) {
		var out strings.Builder
		err := Main(t.Context(), append([]string{"-virtual", seeds}, more...), nil, &out, &out)
		return out.String(), err
	}
	rows := []string{"-rows", "2x,half,bimodal", "-backends", "contention-1060,pool-2000", "-pace", "0.2"}
	first, err := play("2", rows...)
	if err != nil || strings.Count(first, "\n| ") != 8 || !strings.Contains(first, "| half back  | pool-2000") || !strings.Contains(first, "share of the fixed limit's: worst ") {
		t.Errorf("%v\n%s", err, first)
	}
	if again, err := play("2", rows...); err != nil || again != first {
		t.Errorf("another time: %v\n%s", err, again)
	}
	for want, args := range map[string][]string{
		"-1: must be from 1 to":    {"-1"},
		"no row of the gateway":    {"1", "-rows", "S9"},
		"pace 0: must be from":     {"1", "-pace", "0"},
		"invalid value \"many\"":   {"many"},
		"from 1 to 1000 seeds, as": {"1001"},
	} {
		if _, err := play(args[0], args[1:]...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
