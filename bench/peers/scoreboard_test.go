package peers

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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
	plan := Plan{Rows: list(*rowList), Backends: list(*backends), Peers: list(*peerList), Seeds: seeds(t)}
	part := plan.Rows != nil || plan.Backends != nil || plan.Peers != nil
	if *out == "" && !part {
		t.Skip("the scoreboard takes most of an hour: make scoreboard-peers")
	}
	cells, err := Board(t, plan)
	if err != nil {
		t.Fatal(err)
	}
	if *out == "" {
		var text bytes.Buffer
		if err := WriteMarkdown(&text, cells); err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + text.String())
		return
	}
	if part {
		cells = over(t, filepath.Join(*out, "peers.json"), cells)
	}
	for name, write := range map[string]func(io.Writer, []Cell) error{"peers.md": WriteMarkdown, "peers.json": WriteJSON} {
		var content bytes.Buffer
		if err := write(&content, cells); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*out, name), content.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// over puts cells over those in a file, if there is one.
func over(t *testing.T, file string, cells []Cell) []Cell {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return cells
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old, err := ReadJSON(f)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if cells, err = Merge(old, cells); err != nil {
		t.Fatal(err)
	}
	return cells
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func seeds(t *testing.T) []uint64 {
	var values []uint64
	for _, word := range list(*seedList) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			t.Fatalf("-seeds: %v", err)
		}
		values = append(values, n)
	}
	return values
}
