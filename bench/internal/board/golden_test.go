package board

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The committed pages are what the committed figures say: to write them again
// changes nothing.
func TestCommittedPages(t *testing.T) {
	for _, b := range []*board{Limits, order, lags} {
		dir := t.TempDir()
		committed, err := b.Read(docs)
		if err != nil {
			t.Fatal(err)
		}
		cells, err := b.merged(committed)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Write(dir, cells); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{b.page, b.data} {
			want, err := os.ReadFile(filepath.Join(docs, name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("docs/scoreboard/%s is not what its figures say", name)
			}
		}
	}
}
