package live

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/weir/bench/internal/kit"
)

// The committed pages are what the committed figures say: to write them again
// changes nothing.
func TestCommittedPages(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs", "scoreboard")
	for _, name := range []string{"live", "live-order", "live-envoy"} {
		r := new(Results)
		if err := kit.Read(filepath.Join(docs, name+".json"), r); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(docs, name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Markdown(); got != string(want) {
			t.Errorf("docs/scoreboard/%s.md is not what its figures say", name)
		}
		data, err := kit.JSON(r, " ")
		if err != nil {
			t.Fatal(err)
		}
		if want, err := os.ReadFile(filepath.Join(docs, name+".json")); err != nil || !bytes.Equal(data, want) {
			t.Errorf("docs/scoreboard/%s.json reads back otherwise: %v", name, err)
		}
	}
}

// Pages repeat figures of the board behind an Envoy. They are what the board says.
func TestPagesAboutTheEnvoy(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	read := func(page string) string {
		text, err := os.ReadFile(filepath.Join(docs, page))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\n", " ")
	}
	board := read("scoreboard/live-envoy.md")
	find := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(board)
		if found == nil {
			t.Fatalf("the board has no %s", pattern)
		}
		return strings.ReplaceAll(found[1], "–", " to ")
	}
	const number = `(\d\.\d\d)`
	weir, filter := find(`- weir behind Envoy: worst [^,]+, median `+number), find(`- Envoy: worst [^,]+, median `+number)
	full, same := find(`\| 2x 2x \| pool-2000 \| weir behind Envoy \| (\S+ \(\S+\))`), find(`\| 2x 2x \| pool-2000 \| Envoy \| `+number)
	slow := find(`\| half half \| contention-53 \| weir \| [^✓✗]*goodput/fixed (0\.\d+)`)
	for _, tt := range [][2]string{
		{"howto/from-envoy-adaptive-concurrency.md", "the filter had " + filter + " of the best fixed limit's goodput, and weir " + weir + "."},
		{"howto/from-envoy-adaptive-concurrency.md", "weir had " + full + " of the capacity. The filter had " + same + "."},
		{"benchmarks/live.md", "| weir behind Envoy | " + weir + " |"},
		{"benchmarks/live.md", "| Envoy's own filter | " + filter + " |"},
		{"benchmarks.md", "whose median is " + filter + " where weir behind Envoy has " + weir + "."},
		{"explain/climbs-and-cuts.md", "such a case had " + slow},
	} {
		if !strings.Contains(read(tt[0]), tt[1]) {
			t.Errorf("docs/%s does not say %q", tt[0], tt[1])
		}
	}
}
