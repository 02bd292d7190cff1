package peers

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

const orderPreface = `# Who goes first: peers

Limiters that have priorities or fairness and weir, before the same simulated backends, from the same scenario files, in virtual time. Written by
` + "`make scoreboard-order-peers`" + `; ` + "`bench/peers`" + ` says what each peer's settings are. Every figure is the median over the seeds, with the least and
the greatest in brackets where they differ. Shares are parts of one, latencies milliseconds. A star marks a peer that was told the backend's best
concurrency.
`

// WriteOrder writes the tables: a line for each peer.
func WriteOrder(w io.Writer, cells []Cell) error {
	var b strings.Builder
	b.WriteString(orderPreface)
	for _, name := range tables(cells) {
		orderTable(&b, name, cells)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func orderTable(b *strings.Builder, name string, cells []Cell) {
	var columns, peers []string
	at := map[[2]string]Cell{}
	for _, c := range cells {
		if c.Table != name {
			continue
		}
		if !slices.Contains(columns, c.Column) {
			columns = append(columns, c.Column)
		}
		peer := c.Peer
		if c.Told {
			peer += " *"
		}
		if !slices.Contains(peers, peer) {
			peers = append(peers, peer)
		}
		at[[2]string{peer, c.Column}] = c
	}
	fmt.Fprintf(b, "\n## %s\n\n| | %s |\n|---|%s\n", name, strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, p := range peers {
		fmt.Fprintf(b, "| %s |", p)
		for _, column := range columns {
			c := at[[2]string{p, column}]
			fmt.Fprintf(b, " %s |", c.figures())
		}
		b.WriteByte('\n')
	}
}

// figures is the cell with its spread.
func (c *Cell) figures() string {
	if c.Peer == "" {
		return ""
	}
	text := fmt.Sprintf("%.4g", c.Median)
	if low, high := fmt.Sprintf("%.4g", c.Min), fmt.Sprintf("%.4g", c.Max); low != high {
		text += fmt.Sprintf(" (%s-%s)", low, high)
	}
	return text
}

// ReadOrderJSON reads the cells that WriteOrderJSON has written.
func ReadOrderJSON(r io.Reader) (cells []Cell, err error) {
	err = json.NewDecoder(r).Decode(&cells)
	return cells, err
}

// MergeOrder puts new cells over old ones, in the order of the rows. Old cells
// that the rows no longer have are dropped.
func MergeOrder(rows []OrderRow, old, fresh []Cell) []Cell {
	byPlace := map[place]Cell{}
	for _, c := range slices.Concat(old, fresh) {
		byPlace[c.place()] = c
	}
	var merged []Cell
	for _, row := range rows {
		for _, f := range row.Figures {
			for _, p := range row.peers {
				if c, ok := byPlace[place{row.Name, row.Backend, f.Name, p.Name}]; ok {
					merged = append(merged, c)
				}
			}
		}
	}
	return merged
}

// WriteOrderJSON writes the cells.
func WriteOrderJSON(w io.Writer, cells []Cell) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(cells)
}
