package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// Fault is one thing that is wrong with a scenario.
type Fault struct {
	// Path is where: "traffic[0].phases[1].for". Line is the line of the JSON,
	// 0 where it is not known.
	Path string
	Line int
	// Text is what is wrong, and what to write instead.
	Text string
}

// Faults is everything that is wrong with a scenario, in one error.
type Faults struct {
	Faults []Fault
}

// Error lists the faults, one a line.
func (f *Faults) Error() string {
	var b strings.Builder
	for i, fault := range f.Faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		if fault.Line > 0 {
			fmt.Fprintf(&b, "line %d: ", fault.Line)
		}
		if fault.Path != "" {
			b.WriteString(fault.Path)
			b.WriteString(": ")
		}
		b.WriteString(fault.Text)
	}
	return b.String()
}

// faultList gathers faults.
type faultList []Fault

func (f *faultList) add(path, format string, args ...any) {
	*f = append(*f, Fault{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (f *faultList) check(ok bool, path, format string, args ...any) {
	if !ok {
		f.add(path, format, args...)
	}
}

func (f faultList) err() error {
	if len(f) == 0 {
		return nil
	}
	return &Faults{f}
}

// index is the path of an element of a list.
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
