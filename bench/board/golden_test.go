package board

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The committed pages are what the committed figures say: to render them again
// changes nothing.
func TestPagesAreWhatTheFiguresSay(t *testing.T) {
	docs := filepath.Join("..", "..", "docs", "scoreboard")
	dir := t.TempDir()
	cells, err := merged(readKnown(docs), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(dir, cells); err != nil {
		t.Fatal(err)
	}
	ordered := readCells(filepath.Join(docs, "order.json"))
	for i := range ordered {
		ordered[i].row = i
	}
	for _, name := range []string{"README.md", "scoreboard.json"} {
		want, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs", name)
		}
		os.WriteFile("/tmp/got-"+name, got, 0o644)
	}
}
