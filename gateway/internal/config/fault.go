package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a file, and how to mend it.
type Fault struct {
	File      string
	Line, Col int    // from 1
	Path      string // the field: gates.api.limit.min, routes[0].match; may be empty
	Problem   string // what is wrong
	Remedy    string // what to write instead; may be empty
}

// String returns "file:line:col: path: problem; remedy".
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", f.File, f.Line, f.Col)
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Problem)
	if f.Remedy != "" {
		b.WriteString("; " + f.Remedy)
	}
	return b.String()
}

// Faults is everything that is wrong with a file, ordered by line. It is the
// error of [Parse] and, once the file could be read, of [Load].
type Faults struct{ List []Fault }

// maxPrinted bounds what Error prints; nobody mends more at one sitting.
const maxPrinted = 200

// Error prints one fault a line.
func (fs *Faults) Error() string {
	var lines []string
	for i, f := range fs.List {
		if i == maxPrinted {
			lines = append(lines, fmt.Sprintf("and %d more faults; mend these first", len(fs.List)-i))
			break
		}
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n")
}

// sorted orders faults by place and drops repetitions, which come from an alias
// that is used twice.
func sorted(list []Fault) []Fault {
	slices.SortStableFunc(list, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return slices.CompactFunc(list, func(a, b Fault) bool {
		return a.Line == b.Line && a.Col == b.Col && a.Problem == b.Problem && a.Remedy == b.Remedy
	})
}
