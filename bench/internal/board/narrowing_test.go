package board

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
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

// The page beside the picture says what is in it.
func TestBeliefNarrowsAsThePageSays(t *testing.T) {
	p := newPool(control.Default())
	said := func(at time.Duration) string {
		for p.now < at {
			p.window()
		}
		return fmt.Sprintf("%.0f to %.0f", p.d.Estimate.Low, p.d.Estimate.High)
	}
	want := fmt.Sprintf("After three seconds the belief says %s, after seven %s.", said(3*time.Second), said(7*time.Second))
	page, err := os.ReadFile("../../../docs/explain/limiter.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/explain/limiter.md does not say %q", want)
	}
}
