package board

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/sim"
)

func cell(scenario, controller, metric string, median float64, held bool, reached ...bool) Cell {
	c := Cell{Scenario: scenario, Backend: "B1", Controller: controller, Metric: metric, From: "0s", To: "1m0s", HeldOut: held, Goal: ">= 0.950"}
	c.Median = median
	if len(reached) > 0 {
		c.Reached = &reached[0]
	}
	return c
}

func TestTally(t *testing.T) {
	cells := []Cell{
		cell("S1", "oracle", "goodput", 1, false, true), cell("S1", "default", "goodput", 0.9, false, false),
		cell("S2", "oracle", "goodput", 0.5, false, false), cell("S2", "default", "goodput", 0.4, false, false),
		cell("S3", "default", "settle", 0, true, true), cell("S3", "default", "late", 1, true),
		cell(quotaRow, "default", "served", 1, true, true),
	}
	if got := reached(cells, "default"); got != "tuned 0 of 2, held-out 1 of 1" {
		t.Errorf("reached: %s", got)
	}
	tally := Tally(cells)
	for _, want := range []string{"| default | 0 of 2", "| 1 of 1", "0.800: S2 on B1, goodput 0s-1m0s", "| oracle  | 1 of 2"} {
		if !strings.Contains(tally, want) {
			t.Errorf("no %q in\n%s", want, tally)
		}
	}
	if got := disputed(cells, "default"); got != "0" {
		t.Errorf("%s disputed of the same figure with all seeds", got)
	}
	missed := missed(cells, "default")
	if strings.Count(missed, "\n") != 2 || !strings.Contains(missed, "S2 on B1, goodput 0s-1m0s: 0.400 (0.000-0.000), goal >= 0.950; the best fixed limit: 0.500, a miss too") {
		t.Errorf("missed:\n%s", missed)
	}
}

// A goal is disputed if its bound lies between the least and the largest of the seeds, whatever the median does.
func TestDisputed(t *testing.T) {
	least, most := 0.95, 20.0
	spread := func(min, median, max float64, atLeast, atMost *float64) Cell {
		c := cell("S22", "default", "p99", median, false, true)
		c.Min, c.Max, c.AtLeast, c.AtMost = min, max, atLeast, atMost
		return c
	}
	cells := []Cell{
		spread(0.96, 0.97, 1, &least, nil), spread(0.8, 0.97, 1, &least, nil), spread(0.8, 0.9, 1, &least, nil), spread(0.8, 0.9, 0.94, &least, nil),
		spread(5, 12, 20, nil, &most), spread(5, 12, 50, nil, &most), spread(21, 26, 50, nil, &most),
	}
	reported := spread(0, 1, 2, &least, nil)
	reported.Reached = nil
	quota := spread(0, 1, 2, &least, nil)
	quota.Scenario = quotaRow
	other := spread(0, 1, 2, &least, nil)
	other.Controller = "fixed"
	cells = append(cells, reported, quota, other)
	if got := disputed(cells, "default"); got != "3" {
		t.Errorf("%s disputed, want 3", got)
	}
	if got := plainTally(cells, []string{"none", "default"}); !strings.Contains(got, "| default | 7 of 7 ") || !strings.Contains(got, "| 3 ") || strings.Contains(got, "none") {
		t.Errorf("tally:\n%s", got)
	}
}

func TestMergedKeepsWhatIsStillThere(t *testing.T) {
	place := func(c Cell) Cell { c.Backend, c.From, c.To = "B4", "20s", "1m0s"; return c }
	old := []Cell{place(cell("S1", "none", "goodput", 0, false)), place(cell("S1", "default", "goodput", 0.1, false)), cell("S0", "none", "goodput", 0, false)}
	fresh := []Cell{place(cell("S1", "default", "goodput", 0.9, false))}
	got, err := Limits.merged(old, fresh)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Controller != "none" || got[1].Median != 0.9 {
		t.Errorf("%+v", got)
	}
}

// Figures of one metric and several classes keep their lines.
func TestMergedTellsClassesApart(t *testing.T) {
	var old []Cell
	for _, class := range []string{"large", "next", "early"} {
		c := cell("S24", "none", "served", 1, true)
		c.Class = class
		old = append(old, c)
	}
	got, err := Limits.merged(old, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	for i := range got {
		if got[i].Class != old[i].Class {
			t.Errorf("%+v", got)
		}
	}
}

// A plot is well-formed, whatever the figures, and has all its parts.
func TestDrawing(t *testing.T) {
	series := func(v ...float64) *sim.Series {
		return &sim.Series{Width: 1e9, Offered: v, Good: v, Capacity: v, Limit: v, Inside: v, P50: v, P99: v}
	}
	s, err := sim.Load("S4")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string][]float64{"figures": {0, 3, 1e5, 0, 0.02}, "nothing": {0, 0}, "one": {7}} {
		p := &page{plot{row: "S<4>", backend: "B2", to: 5e9, about: `a & "b"`}, s, 100, map[string]*sim.Series{"default": series(values...), "oracle": series(values...)}}
		svg := p.drawing().SVG()
		wellFormed(t, name, svg)
		for _, want := range []string{"time, s", "goodput, %", "limit, ", "latency", "default, nothing configured", "S&lt;4&gt;"} {
			if !strings.Contains(svg, want) {
				t.Errorf("%s: no %q in the plot", name, want)
			}
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%s: figures that are none:\n%s", name, svg)
		}
	}
}

func wellFormed(t *testing.T, name, svg string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, svg)
		}
	}
}

// A part of the board is put into the whole, with its page and its plot.
func TestMergeIntoABoard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out, errs bytes.Buffer
	args := []string{"-out", dir, "-merge", "-rows", "S28", "-backends", "B4", "-svg", filepath.Join(dir, "part")}
	if code := Main(args, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	if code := Main([]string{"-out", dir, "-merge", "-rows", "S10", "-backends", "B4", "-controllers", "default"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	cells, err := Limits.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, c := range cells {
		rows[c.Scenario+" "+c.Controller]++
	}
	if rows["S28 aimd"] != 3 || rows["S28 default"] != 3 || rows["S10 default"] != 2 || rows["S10 aimd"] != 0 {
		t.Errorf("cells: %v", rows)
	}
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil || !strings.Contains(string(text), "| S10 ") || !strings.Contains(string(text), "| S28 ") || strings.Contains(string(text), "%!") {
		t.Errorf("%v, page:\n%.2000s", err, text)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "part", "S28-B4.svg"))
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, "S28-B4", string(svg))
}
