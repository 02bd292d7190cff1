package live

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// keepOrder takes over, from the report DIR/NAME.json, what part three has of rows
// and guards that were not measured now. What was measured now replaces what the
// report has, as a whole: rounds of two days are not put together.
func (r *Results) keepOrder(dir, name string) error {
	old, err := readOrder(dir, name)
	if err != nil {
		return err
	}
	if old.Machine != r.Machine {
		return fmt.Errorf("-merge: the report %s is of another machine (%+v, this one is %+v): measure all rows anew", name, old.Machine, r.Machine)
	}
	measured := r.Order
	for _, c := range old.Order {
		anew := slices.ContainsFunc(measured, func(o *OrderCell) bool { return o.Row == c.Row && o.Guard == c.Guard })
		if !anew {
			if c.Measured == "" { // a report from before cells said so
				c.Measured, c.Pace = old.Measured, old.Pace
			}
			r.Order = append(r.Order, c)
		}
	}
	return nil
}

// readOrder reads a report to merge with.
func readOrder(dir, name string) (*Results, error) {
	file := filepath.Join(dir, name+".json")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-merge: %w", err)
	}
	old := new(Results)
	if err := json.Unmarshal(data, old); err != nil {
		return nil, fmt.Errorf("-merge: %s: %w", file, err)
	}
	return old, nil
}
