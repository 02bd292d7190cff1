package board

import (
	"os"
	"path/filepath"
	"testing"
)

// The README's picture is what the tree draws today.
func TestDrawGoodput(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates fifteen loads, twice each")
	}
	dir := t.TempDir()
	if err := drawGoodput(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "goodput.svg"))
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, "goodput.svg", string(got))
	want, err := os.ReadFile("../../../docs/scoreboard/plots/goodput.svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("docs/scoreboard/plots/goodput.svg is not what the tree draws: make goodput-plot")
	}
}
