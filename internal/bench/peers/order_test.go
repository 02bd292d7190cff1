package peers

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestOrder runs the board about who goes first when asked to with -out, and
// writes it there; with -rows or -peers a part of it, which is printed.
func TestOrder(t *testing.T) {
	part := *rowList != "" || *peerList != ""
	if *out == "" && !part {
		t.Skip("the whole board takes minutes: make scoreboard-order-peers")
	}
	rows, err := OrderRows(1)
	if err != nil {
		t.Fatal(err)
	}
	cells := OrderBoard(t, rows, list(*rowList), list(*peerList), seeds(t))
	if part || *out == "" {
		var text bytes.Buffer
		if err := WriteOrder(&text, cells); err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + text.String())
		return
	}
	for name, write := range map[string]func(io.Writer, []Cell) error{"order-peers.md": WriteOrder, "order-peers.json": WriteOrderJSON} {
		var content bytes.Buffer
		if err := write(&content, cells); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*out, name), content.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
