package peers

import (
	"bytes"
	"flag"
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

// TestScoreboard runs all of it, when asked to with -out, or prints what is
// asked for with -rows, -backends and -peers.
func TestScoreboard(t *testing.T) {
	if *out == "" && *rowList == "" && *peerList == "" {
		t.Skip("the scoreboard takes half an hour: make scoreboard-peers")
	}
	cells, err := Board(t, Plan{Rows: list(*rowList), Backends: list(*backends), Peers: list(*peerList), Seeds: seeds(t)})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := WriteMarkdown(&text, cells); err != nil {
		t.Fatal(err)
	}
	if *out == "" {
		t.Log("\n" + text.String())
		return
	}
	var data bytes.Buffer
	if err := WriteJSON(&data, cells); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"peers.md": text.Bytes(), "peers.json": data.Bytes()} {
		if err := os.WriteFile(filepath.Join(*out, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
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
