package live

import (
	"bytes"
	"os"
	"path/filepath"
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
