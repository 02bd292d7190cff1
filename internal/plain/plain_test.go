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
