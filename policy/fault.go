package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Fault is one thing that is wrong with a policy.
type Fault struct {
	// Path leads to the field: gates.api.limit.min, routes[2].match[0]. Keys
	// are its steps (an index is its decimal number), for readers that know
	// where in a file each field stands.
	Path string
	Keys []string
	// Line is the line in the text it was read from, 0 if it is not known.
	Line int
	// Problem says what is wrong with the value, Instead what to write.
	Problem, Instead string
}

// Error returns the path, the problem, and what to write instead.
func (f Fault) Error() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Problem)
	if f.Instead != "" {
		b.WriteString("; " + f.Instead)
	}
	return b.String()
}

// Faults is everything that is wrong with a policy, in the order of the file's
// own structure: identity, gates by name, routes. It is never empty.
type Faults struct {
	List []Fault
}

// mostPrinted bounds what Error lists; nobody mends more at one sitting.
const mostPrinted = 100

// Error lists the faults, one to a line if there are several, and at most a
// hundred of them.
func (f *Faults) Error() string {
	if len(f.List) == 1 {
		return "policy: " + f.List[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "policy: %d faults", len(f.List))
	for i, fault := range f.List {
		if i == mostPrinted {
			fmt.Fprintf(&b, "\n\tand %d more", len(f.List)-i)
			break
		}
		b.WriteString("\n\t" + fault.Error())
	}
	return b.String()
}

// Unwrap lets errors.As find each Fault.
func (f *Faults) Unwrap() []error {
	errs := make([]error, len(f.List))
	for i, fault := range f.List {
		errs[i] = fault
	}
	return errs
}

// Under returns the same faults with paths that begin with the given keys, for
// a policy, or a part of one, that is embedded in a larger file.
func (f *Faults) Under(keys ...string) *Faults {
	out := &Faults{List: make([]Fault, len(f.List))}
	for i, fault := range f.List {
		fault.Keys = append(append([]string(nil), keys...), fault.Keys...)
		fault.Path = place(fault.Keys).String()
		out.List[i] = fault
	}
	return out
}

// place is the way to a field.
type place []string

// at returns the place one or more steps further in.
func (p place) at(keys ...string) place {
	return append(append(make(place, 0, len(p)+len(keys)), p...), keys...)
}

func (p place) index(i int) place { return p.at(strconv.Itoa(i)) }

// String writes names after dots, indexes in brackets, and quotes a name that
// would be read as something else.
func (p place) String() string {
	var b strings.Builder
	for i, key := range p {
		switch {
		case isIndex(key) && i > 0:
			b.WriteString("[" + key + "]")
		case !isPlain(key):
			b.WriteString("[" + strconv.Quote(key) + "]")
		case i > 0:
			b.WriteString("." + key)
		default:
			b.WriteString(key)
		}
	}
	return b.String()
}

func isIndex(key string) bool {
	return key != "" && strings.Trim(key, "0123456789") == ""
}

func isPlain(key string) bool {
	return key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// collector gathers faults while a policy is being checked.
type collector struct{ faults []Fault }

func (c *collector) add(p place, problem, instead string) {
	c.faults = append(c.faults, Fault{Path: p.String(), Keys: p, Problem: problem, Instead: instead})
}

func (c *collector) err() error {
	if len(c.faults) == 0 {
		return nil
	}
	return &Faults{List: c.faults}
}
