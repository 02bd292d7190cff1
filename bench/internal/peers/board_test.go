package peers

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

var (
	out      = flag.String("out", "", "run the whole scoreboard and write peers.md and peers.json into this directory")
	rowList  = flag.String("rows", "", "only these scenarios, separated by commas")
	backends = flag.String("backends", "", "only these standard backends")
	peerList = flag.String("peers", "", "only these peers")
	seedList = flag.String("seeds", "1,2,3", "the seeds")
)

// TestScoreboard runs all of it when asked to with -out, and writes it there. A
// part of it, asked for with -rows, -backends or -peers, replaces its own cells
// of what is there already; without -out it is only printed.
func TestScoreboard(t *testing.T) {
	b, err := Limits()
	if err != nil {
		t.Fatal(err)
	}
	onDemand(t, b)
}

// TestOrder does the same for the board about who goes first.
func TestOrder(t *testing.T) {
	b, err := Order(1)
	if err != nil {
		t.Fatal(err)
	}
	onDemand(t, b)
}

func onDemand(t *testing.T, b *board) {
	plan := Plan{Seeds: seeds(t)}
	if err := (*kit.Scenarios)(&plan.Rows).Set(*rowList); err != nil {
		t.Fatal(err)
	}
	for list, text := range map[*kit.Names]*string{&plan.Backends: backends, &plan.Peers: peerList} {
		if err := list.Set(*text); err != nil {
			t.Fatal(err)
		}
	}
	if *out == "" && !plan.part() {
		t.Skip("the whole board takes most of an hour: make scoreboard-peers, make scoreboard-order-peers")
	}
	cells := b.Run(t, plan)
	if *out == "" {
		t.Log("\n" + b.Markdown(cells))
		return
	}
	if plan.part() {
		old, err := b.Read(*out)
		if err != nil {
			t.Fatal(err)
		}
		cells = b.Merge(old, cells)
	}
	if err := b.Write(*out, cells); err != nil {
		t.Fatal(err)
	}
}

func seeds(t *testing.T) (values []uint64) {
	for _, word := range strings.Split(*seedList, ",") {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			t.Fatalf("-seeds: %v", err)
		}
		values = append(values, n)
	}
	return values
}

// The committed pages are what the committed figures say: to write them again
// changes nothing.
func TestCommittedPages(t *testing.T) {
	limits, err := Limits()
	if err != nil {
		t.Fatal(err)
	}
	order, err := Order(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []*board{limits, order} {
		docs, dir := filepath.Join("..", "..", "..", "docs", "scoreboard"), t.TempDir()
		cells, err := b.Read(docs)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Write(dir, b.Merge(cells)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{b.file + ".md", b.file + ".json"} {
			want, err := os.ReadFile(filepath.Join(docs, name))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("docs/scoreboard/%s is not what its figures say: %v", name, err)
			}
		}
	}
}

func share(column, peer string, low, high float64) Cell {
	return Cell{
		Table: "T", Column: column, Peer: peer, Metric: "goodput", Goodput: true,
		Spread: sim.Spread{Median: (low + high) / 2, Min: low, Max: high},
	}
}

func TestJudge(t *testing.T) {
	const told, other = "semaphore (refusing)", "failsafe-go"
	tests := []struct {
		name             string
		cells            []Cell
		below, belowTold int
		reached          bool
	}{
		{"best everywhere", []Cell{share("a", "weir", 0.95, 0.97), share("a", other, 0.5, 0.6)}, 0, 0, true},
		{"below within the spread", []Cell{share("a", "weir", 0.93, 0.97), share("a", other, 0.96, 0.98)}, 0, 0, true},
		{"below beyond it", []Cell{share("a", "weir", 0.93, 0.95), share("a", other, 0.96, 0.98)}, 1, 1, false},
		{"more than everything", []Cell{share("a", "weir", 0.98, 1), share("a", other, 1.05, 1.1)}, 0, 0, true},
		{"below one who was told", []Cell{share("a", "weir", 0.93, 0.95), share("a", told, 0.96, 0.98), share("a", other, 0.5, 0.5)}, 0, 1, true},
		{"twice a bad worst", []Cell{share("a", "weir", 0.6, 0.6), share("a", other, 0.3, 0.3)}, 0, 0, true},
		{"not twice it", []Cell{share("a", "weir", 0.6, 0.6), share("a", other, 0.31, 0.31)}, 0, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := judge(tt.cells)
			if v.Below != tt.below || v.BelowTold != tt.belowTold || v.Reached != tt.reached {
				t.Errorf("below %d, with the told %d, reached %v", v.Below, v.BelowTold, v.Reached)
			}
			if len(v.Losses) != tt.belowTold {
				t.Errorf("losses %+v", v.Losses)
			}
		})
	}
}

func TestJudgeLooksAtGoodputOnly(t *testing.T) {
	late := share("b", "failsafe-go", 90, 90)
	late.Goodput = false
	v := judge([]Cell{share("a", "weir", 0.95, 0.95), share("a", "failsafe-go", 0.4, 0.4), late})
	if v.Figures != 1 || v.BestWorst.Value != 0.4 || v.Peers[1].Half != 1 || v.Peers[1].Mean != 0.4 {
		t.Errorf("%+v", v)
	}
}

func TestWrite(t *testing.T) {
	never := Cell{Table: "T", Column: "ramp", Peer: "weir", Metric: "settle", To: "1m30s", Spread: sim.Spread{Median: 90}}
	cells := []Cell{share("a", "weir", 0.9, 0.95), share("a", "semaphore (waiting)", 0.2, 0.21), never}
	b := &board{file: "peers", judged: true}
	text := b.Markdown(cells)
	for _, want := range []string{"## T\n", "| | a | ramp |", "| **weir** | 0.93 (0.90-0.95) | never |", "| semaphore (waiting) * | 0.21 |  |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	dir := t.TempDir()
	if err := b.Write(dir, cells); err != nil {
		t.Fatal(err)
	}
	if back, err := b.Read(dir); err != nil || len(back) != 3 || back[0].Max != 0.95 {
		t.Errorf("read back %+v, %v", back, err)
	}
}

func TestMerge(t *testing.T) {
	at := func(column, peer string, v float64) Cell {
		return Cell{Scenario: "S1", Backend: column, Column: column, Peer: peer, Spread: sim.Spread{Median: v}}
	}
	old := []Cell{at("B1", "weir", 1), at("B1", "no control", 2), at("B1", "somebody gone", 3)}
	b, err := Limits()
	if err != nil {
		t.Fatal(err)
	}
	got := b.Merge(old, []Cell{at("B2", "weir", 5), at("B1", "weir", 4)})
	want := []Cell{at("B1", "weir", 4), at("B1", "no control", 2), at("B2", "weir", 5)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestJudgeClearly(t *testing.T) {
	for high, want := range map[float64]int{0.95: 0, 0.93: 1} {
		v := judge([]Cell{share("a", "weir", 0.92, high), share("a", "failsafe-go", 0.96, 0.98)})
		if v.Below != 1 || v.Clearly != want {
			t.Errorf("weir at most %v, the other at least 0.96: %+v", high, v)
		}
	}
}
