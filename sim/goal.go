package sim

import (
	"slices"
	"strings"
)

// AppliesTo reports whether the goal is meant for a standard backend.
func (g *Goal) AppliesTo(backend string) bool {
	return len(g.On) == 0 || slices.Contains(g.On, backend)
}

// Holds reports whether a value is within the goal's bounds.
func (g *Goal) Holds(v float64) bool {
	return (g.Min == nil || v >= *g.Min) && (g.Max == nil || v <= *g.Max)
}

// Relative reports whether the goal has bounds that are relative to the best
// fixed limit.
func (g *Goal) Relative() bool { return g.Times != nil || g.Over != nil || g.Part != nil }

// Against returns the goal with the bounds that are relative to the best fixed
// limit put as figures, given the median of that one.
func (g Goal) Against(oracle float64) Goal {
	bound := func(v float64) {
		if g.Max == nil || v < *g.Max {
			g.Max = &v
		}
	}
	if g.Times != nil {
		bound(*g.Times * oracle)
	}
	if g.Over != nil {
		bound(*g.Over + oracle)
	}
	if g.Part != nil {
		if v := *g.Part * oracle; g.Min == nil || v > *g.Min {
			g.Min = &v
		}
	}
	return g
}

// Beside returns the goal with the bound that is relative to what the class has
// when it is alone put as a figure, given the median of that.
func (g Goal) Beside(alone float64) Goal {
	if g.TimesAlone == nil {
		return g
	}
	if v := *g.TimesAlone * alone; g.Max == nil || v < *g.Max {
		g.Max = &v
	}
	return g
}

// Bounds writes the goal's bounds: ">= 0.95", "<= 100.0 ms".
func (g *Goal) Bounds() string {
	var parts []string
	if g.Min != nil {
		parts = append(parts, ">= "+Format(g.Metric, *g.Min))
	}
	if g.Max != nil {
		parts = append(parts, "<= "+Format(g.Metric, *g.Max))
	}
	return strings.Join(parts, ", ")
}
