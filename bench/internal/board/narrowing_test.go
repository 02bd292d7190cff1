package board

import (
	"os"
	"path/filepath"
	"testing"
)

// The picture of a belief is what the tree draws today.
func TestDrawBelief(t *testing.T) {
	dir := t.TempDir()
	if err := drawBelief(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "belief.svg"))
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, "belief.svg", string(got))
	want, err := os.ReadFile("../../../docs/scoreboard/plots/belief.svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("docs/scoreboard/plots/belief.svg is not what the tree draws: make belief-plot")
	}
}
