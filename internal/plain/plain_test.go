package plain

import (
	"slices"
	"strings"
	"testing"
)

func TestSentences(t *testing.T) {
	for _, c := range []struct {
		name string
		of   func(string) []string
		text string
		want []string
	}{
		{"ends", Page, "One. Two! \"Three?\" Four; still four:\nfive e.g.this", []string{"One", "Two", `"Three`, "Four; still four", "five e.g.this"}},
		{"lines", Page, "One\nsentence\n\nanother", []string{"One sentence", "another"}},
		{"items", Page, "# Head\ntext\n- one\n- two\n  goes on\n1. three", []string{"# Head text", "one", "two goes on", "three"}},
		{"cells", Page, "| a b | c |\n| --- | --- |\n| d. e | f |", []string{"a b", "c", "---", "---", "d", "e", "f"}},
		{"code", Page, "Write `a b c` as in [this page](a/b.md).\n\n```yaml\na: 1. 2\n```\n\n    weir run\n<!-- not shown -->", []string{"Write code as in [this page]."}},
		{"help", Printed, "One\ntwo:\n  row one\n  row two\n\nthree", []string{"One two:", "row one", "row two", "three"}},
		{"quotes", Printed, "the key \"a \\\" b. c\" is `d e`; write {a: [b, c]} or [d, e]", []string{"the key code is code; write code or code"}},
	} {
		if got := c.of(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestFaults(t *testing.T) {
	fits := strings.TrimSpace(strings.Repeat("word ", most))
	got := Faults([]string{fits, fits + " more"})
	if want := []string{"26 words, and 25 are the most: " + fits + " more"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCrowded(t *testing.T) {
	for _, c := range []struct {
		text  string
		count int
	}{
		{"It has 505 at 55,000, and 10 from there on.", 3},
		{"0.30 for pools, 0.20 for soft ones, 12 % and 15x else.", 4},
		{"It takes 3 ms (2 to 40) at 4 a second, and 19 s else.", 3},
		{"From 7 to 656 ms, or 1 s to 2 s, or 3 % to 4 % of 50.", 4},
		{"Three figures stand in words, **7** and 8.", 2},
		{"`a 1` and [2 of 3](4.md) at 5.", 1},
		{"S7 on B3 has the p99 of HTTP/2 by RFC 9110, version 3, seeds 1 to 5, and weir 0.9.1 says 503, 429 or 404.", 0},
		{"`min` (1), `max` (1000), `limit` (20) and `wait` (2s).", 0},
		{"Text.\n\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |", 0},
	} {
		n := 0
		for _, s := range Page(bare(c.text)) {
			n += figures(s)
		}
		if n != c.count {
			t.Errorf("%s: %d figures, want %d", c.text, n, c.count)
		}
		if crowded := len(Crowded(c.text)) > 0; crowded != (c.count > mostFigures) {
			t.Errorf("%s: crowded: %v", c.text, crowded)
		}
	}
}
