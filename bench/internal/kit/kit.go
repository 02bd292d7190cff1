// Package kit is what the boards and benchmarks share: spreads of figures, goals
// and verdicts, tables, and the merge of new figures with old ones.
package kit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-go/weir/sim"
)

// Spread is a figure over the seeds or rounds.
type Spread = sim.Spread

// SpreadOf returns the spread of some values, zero for none. The median of an
// even number is the mean of the two in the middle.
func SpreadOf(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	if len(v) == 0 {
		return Spread{}
	}
	median := v[len(v)/2]
	if len(v)%2 == 0 {
		median = (v[len(v)/2-1] + median) / 2
	}
	return Spread{Median: median, Min: v[0], Max: v[len(v)-1]}
}

// Text is the median with the least and the largest, or alone where all are equal.
func Text(s Spread, verb string) string {
	mid, low, high := fmt.Sprintf(verb, s.Median), fmt.Sprintf(verb, s.Min), fmt.Sprintf(verb, s.Max)
	if low == high {
		return mid
	}
	return mid + " (" + low + "–" + high + ")"
}

// Over divides each value by the floor's of the same round: what else the
// machine did at that time concerns both.
func Over(values, floor []float64) []float64 {
	ratios := make([]float64, len(values))
	for i, v := range values {
		ratios[i] = v / floor[i]
	}
	return ratios
}

// Turned returns the list moved on by n, so that nobody always goes first.
func Turned[T any](list []T, n int) []T {
	if len(list) == 0 {
		return nil
	}
	n %= len(list)
	return slices.Concat(list[n:], list[:n])
}

// Groups parts a list by a key, in the order in which the keys come first.
func Groups[T any, K comparable](list []T, key func(*T) K) [][]T {
	var all [][]T
	at := map[K]int{}
	for i := range list {
		k := key(&list[i])
		if _, known := at[k]; !known {
			at[k] = len(all)
			all = append(all, nil)
		}
		all[at[k]] = append(all[at[k]], list[i])
	}
	return all
}

// Goal is a bound that a figure is to keep.
type Goal struct {
	What   string
	Bound  float64
	AtMost bool // else at least
	Every  bool // in every round, not on the median
}

// Judge compares a figure with the goal.
func (g *Goal) Judge(s Spread) Verdict {
	v := Verdict{What: g.What, Spread: s, Bound: g.Bound, AtMost: g.AtMost, Every: g.Every}
	v.Reached = v.figure() >= g.Bound
	if g.AtMost {
		v.Reached = v.figure() <= g.Bound
	}
	return v
}

// Verdict says whether a goal is reached.
type Verdict struct {
	What string `json:"what"`
	Spread
	Bound   float64 `json:"bound"`
	AtMost  bool    `json:"at_most"`
	Every   bool    `json:"every,omitempty"`
	Reached bool    `json:"reached"`
}

// figure is what is compared: the median, or the worst round.
func (v *Verdict) figure() float64 {
	switch {
	case !v.Every:
		return v.Median
	case v.AtMost:
		return v.Max
	}
	return v.Min
}

// String is the figure beside its bound, with a tick or a cross.
func (v *Verdict) String() string {
	relation, mark := "≥", "✗"
	if v.AtMost {
		relation = "≤"
	}
	if v.Reached {
		mark = "✓"
	}
	return fmt.Sprintf("%s %.3g %s %.3g %s", v.What, v.figure(), relation, v.Bound, mark)
}

// Table is a Markdown table; its first row is the head.
type Table [][]string

// Padded writes the table so that it can be read as text as well.
func (t Table) Padded() string {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, text := range row {
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	for n, row := range t {
		for i, text := range row {
			fmt.Fprintf(&b, "| %s%s ", text, strings.Repeat(" ", width[i]-utf8.RuneCountInString(text)))
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for _, w := range width {
			b.WriteString("| " + strings.Repeat("-", w) + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// Plain writes the table without padding. The rule is the line below the head.
func (t Table) Plain(rule string) string {
	var b strings.Builder
	for n, row := range t {
		b.WriteString("|")
		for _, text := range row {
			if text != "" || n > 0 {
				b.WriteString(" " + text)
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
		if n == 0 {
			b.WriteString(rule + "\n")
		}
	}
	return b.String()
}

// Rule is the line below a head of so many columns, all to the left.
func Rule(columns int) string { return strings.Repeat("| --- ", columns) + "|" }

// Figures is a rule whose columns are to the right but for the first.
func Figures(columns int) string { return "|---|" + strings.Repeat("---:|", columns-1) }

// Names restricts something to those named; empty, it restricts nothing. As a
// flag it is names with commas between them.
type Names []string

// Has reports whether a name is wanted.
func (n Names) Has(name string) bool { return len(n) == 0 || slices.Contains(n, name) }

// Set implements [flag.Value].
func (n *Names) Set(text string) error {
	*n = nil
	if text != "" {
		*n = strings.Split(text, ",")
	}
	return nil
}

// Scenarios is names of scenarios as a flag. A plain name becomes its code: S5 for
// retry-storm.
type Scenarios Names

// Set implements [flag.Value].
func (n *Scenarios) Set(text string) error {
	err := (*Names)(n).Set(text)
	for i, name := range *n {
		(*n)[i] = sim.Code(name)
	}
	return err
}

// String implements [flag.Value].
func (n *Scenarios) String() string { return (*Names)(n).String() }

// String implements [flag.Value].
func (n *Names) String() string { return strings.Join(*n, ",") }

// Of returns those of a list that are wanted.
func (n Names) Of(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return !n.Has(name) })
}

// Merge puts the cells of later lists over those of earlier ones at the same
// place, in the order of places. What is at no such place is dropped.
func Merge[C any, P comparable](places []P, place func(*C) P, lists ...[]C) []C {
	at := map[P]*C{}
	for _, list := range lists {
		for i := range list {
			at[place(&list[i])] = &list[i]
		}
	}
	var merged []C
	for _, p := range places {
		if c := at[p]; c != nil {
			merged = append(merged, *c)
			delete(at, p)
		}
	}
	return merged
}

// Write writes files into a directory, which it makes if there is none.
func Write(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// JSON writes a value with that indentation.
func JSON[T any](value T, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	err := e.Encode(value)
	return b.Bytes(), err
}

// Lines writes a list as JSON, an element a line.
func Lines[T any](list []T) ([]byte, error) {
	b := []byte("[\n")
	for i, element := range list {
		line, err := json.Marshal(element)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ",\n"...)
		}
		b = append(b, line...)
	}
	return append(b, "\n]\n"...), nil
}

// Read reads a file of JSON. One that is not there leaves the value as it is.
func Read[T any](file string, value *T) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, value)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
