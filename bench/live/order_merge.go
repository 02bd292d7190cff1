package live

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// keepOrder takes over, from the report DIR/NAME.json, what part three has of rows
// and guards that were not measured now, or not without all runs being void. What was
// measured now replaces what the report has, as a whole: rounds of two days are not
// put together.
func (r *Results) keepOrder(dir, name string) error {
	old, err := readOrder(dir, name)
	if err != nil {
		return err
	}
	if old.Machine != r.Machine {
		return fmt.Errorf("-merge: the report %s is of another machine (%+v, this one is %+v): measure all rows anew", name, old.Machine, r.Machine)
	}
	now := slices.Clone(r.Order)
	for _, c := range old.Order {
		if slices.ContainsFunc(now, func(o *OrderCell) bool { return o.Row == c.Row && o.Guard == c.Guard && len(o.Rounds) > 0 }) {
			continue
		}
		if c.Measured == "" { // a report from before cells said so
			c.Measured, c.Pace = old.Measured, old.Pace
		}
		r.Order = slices.DeleteFunc(r.Order, func(o *OrderCell) bool { return o.Row == c.Row && o.Guard == c.Guard && o.Class == c.Class })
		r.Order = append(r.Order, c)
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
