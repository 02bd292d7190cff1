package peers

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
)

// ReadJSON reads the cells that WriteJSON has written.
func ReadJSON(r io.Reader) ([]Cell, error) {
	var file struct {
		Cells []Cell `json:"cells"`
	}
	err := json.NewDecoder(r).Decode(&file)
	return file.Cells, err
}

// place is where a cell is on the board.
type place struct{ scenario, backend, column, peer string }

func (c *Cell) place() place { return place{c.Scenario, c.Backend, c.Column, c.Peer} }

// Merge puts new cells over old ones, in the order of the board. Old cells that
// the board no longer has are dropped.
func Merge(old, fresh []Cell) ([]Cell, error) {
	rows, err := Rows()
	if err != nil {
		return nil, err
	}
	order := map[place]int{}
	for _, row := range rows {
		for _, f := range row.Figures {
			for _, p := range Peers() {
				order[place{row.Name, row.Backend, f.Name, p.Name}] = len(order)
			}
		}
	}
	byPlace := map[place]Cell{}
	for _, list := range [][]Cell{old, fresh} {
		for _, c := range list {
			if _, ok := order[c.place()]; ok {
				byPlace[c.place()] = c
			}
		}
	}
	merged := make([]Cell, 0, len(byPlace))
	for _, c := range byPlace {
		merged = append(merged, c)
	}
	slices.SortFunc(merged, func(a, b Cell) int { return cmp.Compare(order[a.place()], order[b.place()]) })
	return merged, nil
}
