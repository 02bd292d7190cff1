package control

import (
	"fmt"
	"slices"
)

// highest returns the known reading of the highest value: the signal that
// implies the smallest limit. Only those named count, or all if none is. What
// is no pressure (NaN, negative) is passed over. Of equals the first counts.
func highest(readings []Reading, named []string) (r Reading, known bool) {
	for _, next := range readings {
		if len(named) > 0 && !slices.Contains(named, next.Name) {
			continue
		}
		if next.Known && next.Value >= 0 && (!known || next.Value > r.Value) {
			r, known = next, true
		}
	}
	return r, known
}

// over says of a pressure what it is.
func (r Reading) over() string { return fmt.Sprintf("%s at %.3g of what is wanted", r.Name, r.Value) }
