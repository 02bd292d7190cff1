// Package fault says what is wrong with settings: where, what, and what to write instead.
//
// Whoever checks settings collects faults in a [List] instead of stopping at the first. The
// error that comes of them is a [*Faults], for people to read and for programs to take apart
// with errors.As. Nobody has to read the text to learn which setting was meant.
package fault

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Fault is one thing that is wrong. It is an error by itself, for functions that read one value.
type Fault struct {
	// Path leads to the setting. It is empty for a value by itself.
	Path Path
	// File, Line and Col say where the setting stands, Line and Col from 1. They are empty
	// where that is not known.
	File string
	Place
	// Problem says what is wrong with the value, Instead what to write.
	Problem, Instead string
}

// Place is a place in a text, from 1; the zero value is no place.
type Place struct{ Line, Col int }

// New returns the fault of one value, which [List.AddError] puts at its path.
func New(problem, instead string) error { return Fault{Problem: problem, Instead: instead} }

// Error returns the place, the path, the problem, and what to write instead.
func (f Fault) Error() string {
	var b strings.Builder
	switch {
	case f.File != "":
		fmt.Fprintf(&b, "%s:%d:%d: ", f.File, max(f.Line, 1), max(f.Col, 1))
	case f.Line > 0:
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if len(f.Path) > 0 {
		b.WriteString(f.Path.String() + ": ")
	}
	b.WriteString(f.Problem)
	if f.Instead != "" {
		b.WriteString("; " + f.Instead)
	}
	return b.String()
}

// Faults is everything that is wrong. It is never empty.
type Faults struct {
	// Of says whose faults they are, such as policy. The text begins with it. It is
	// empty for a file, because each fault names the file.
	Of   string
	List []Fault
	// More counts the faults that are not in the list.
	More int
}

// mostPrinted bounds what Error lists. Nobody mends more at one sitting.
const mostPrinted = 100

// Error lists the faults, one to a line if there are several.
func (fs *Faults) Error() string {
	var lines []string
	for i, f := range fs.List {
		if i == mostPrinted {
			lines = append(lines, fmt.Sprintf("and %d more; mend these first", len(fs.List)-i+fs.More))
			break
		}
		lines = append(lines, f.Error())
	}
	switch {
	case fs.Of == "":
		return strings.Join(lines, "\n")
	case len(fs.List) == 1:
		return fs.Of + ": " + lines[0]
	}
	return fmt.Sprintf("%s: %d faults\n\t%s", fs.Of, len(fs.List)+fs.More, strings.Join(lines, "\n\t"))
}

// Unwrap lets errors.As find each Fault.
func (fs *Faults) Unwrap() []error {
	errs := make([]error, len(fs.List))
	for i, f := range fs.List {
		errs[i] = f
	}
	return errs
}

// Path is the way to a setting: the keys of groups, and the indexes of lists, in brackets.
type Path []string

// At returns the path one or more steps further in.
func (p Path) At(keys ...string) Path {
	return append(append(make(Path, 0, len(p)+len(keys)), p...), keys...)
}

// Index returns the path to an item of a list.
func (p Path) Index(i int) Path { return p.At("[" + strconv.Itoa(i) + "]") }

func isIndex(key string) bool {
	return len(key) > 2 && key[0] == '[' && strings.Trim(key[1:len(key)-1], "0123456789") == "" && key[len(key)-1] == ']'
}

// String writes names after dots and indexes in brackets: routes[2].match. A name that would
// be read as something else stands in brackets and quotes.
func (p Path) String() string {
	var b strings.Builder
	for i, key := range p {
		switch {
		case isIndex(key):
			b.WriteString(key)
		case !plain(key):
			b.WriteString("[" + strconv.Quote(key) + "]")
		case i > 0:
			b.WriteString("." + key)
		default:
			b.WriteString(key)
		}
	}
	return b.String()
}

func plain(key string) bool {
	return key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// List collects faults. The zero value is ready.
type List struct {
	// File and Where say where a setting stands. Both may be left out.
	File  string
	Where func(Path) Place

	faults []Fault
	notes  []Fault
	more   int             // those that were only counted
	wrong  map[string]bool // paths with a fault
	around map[string]bool // those and everything around them
}

// Add adds a fault of the setting at a path.
func (l *List) Add(at Path, problem, instead string) {
	l.AddFault(Fault{Path: at, Problem: problem, Instead: instead})
}

// Check adds a fault of a value unless ok. must says what it has to be.
func (l *List) Check(ok bool, at Path, value any, must string, args ...any) {
	if ok {
		return
	}
	shown := fmt.Sprint(value)
	if reflect.ValueOf(value).Kind() == reflect.String {
		shown = strconv.Quote(shown)
	}
	l.Add(at, shown+" will not do", fmt.Sprintf(must, args...))
}

// Require adds a fault unless ok, with the problem as fmt.Sprintf makes it.
func (l *List) Require(ok bool, at Path, problem string, args ...any) {
	if !ok {
		l.Add(at, fmt.Sprintf(problem, args...), "")
	}
}

// mostKept bounds the faults in a list.
const mostKept = 1000

// AddFault adds a fault. It finds out where the setting stands, if the fault does not say.
//
// A list keeps at most 1,000 faults, and counts the others: nobody reads them.
func (l *List) AddFault(f Fault) {
	l.Blame(f.Path)
	if len(l.faults) == mostKept {
		l.more++
		return
	}
	if f.File != "" && f.File != l.File { // of another file, which this one names
		l.faults = append(l.faults, f)
		return
	}
	if f.File = l.File; f.Line == 0 && l.Where != nil {
		f.Place = l.Where(f.Path)
	}
	l.faults = append(l.faults, f)
}

// AddNote adds what is no fault, but better written otherwise. It keeps as many as faults.
func (l *List) AddNote(f Fault) {
	if f.File = l.File; len(l.notes) < mostKept {
		l.notes = append(l.notes, f)
	}
}

// Notes returns what AddNote has added.
func (l *List) Notes() []Fault { return l.notes }

// AddError adds what an error says, at a path: its faults if it is of this package, else its text.
func (l *List) AddError(at Path, err error) {
	var one Fault
	var many *Faults
	switch {
	case err == nil:
	case errors.As(err, &many):
		for _, f := range many.List {
			f.Path, f.Place = at.At(f.Path...), Place{}
			l.AddFault(f)
		}
		l.more += many.More
	case errors.As(err, &one):
		one.Path = at.At(one.Path...)
		l.AddFault(one)
	default:
		l.Add(at, err.Error(), "")
	}
}

// AddFresh is AddError without the faults of settings that have one already, themselves or inside.
func (l *List) AddFresh(at Path, err error) {
	var many *Faults
	if !errors.As(err, &many) {
		l.AddError(at, err)
		return
	}
	fresh := slices.DeleteFunc(slices.Clone(many.List), func(f Fault) bool { return l.around[at.At(f.Path...).String()] })
	l.AddError(at, &Faults{List: fresh})
}

// Blame marks a path as wrong without a fault of its own, so that [List.Has] knows of it.
func (l *List) Blame(at Path) {
	if l.wrong == nil {
		l.wrong, l.around = map[string]bool{}, map[string]bool{}
	}
	l.wrong[at.String()] = true
	for ; !l.around[at.String()]; at = at[:len(at)-1] {
		if l.around[at.String()] = true; len(at) == 0 {
			break
		}
	}
}

// Has reports whether the setting at a path, one around it or one inside it has a fault. What
// is wrong in form need not be reported again for its meaning.
func (l *List) Has(at Path) bool {
	if l.around[at.String()] {
		return true
	}
	for i := len(at) - 1; i > 0; i-- {
		if l.wrong[at[:i].String()] {
			return true
		}
	}
	return false
}

// Wrong reports whether the setting at this very path has a fault.
func (l *List) Wrong(at Path) bool { return l.wrong[at.String()] }

// All returns the faults that were kept.
func (l *List) All() []Fault { return l.faults }

// Len returns the number of faults.
func (l *List) Len() int { return len(l.faults) + l.more }

// Err returns the faults as a [*Faults], nil if there are none. of says whose they are.
func (l *List) Err(of string) error {
	if len(l.faults) == 0 {
		return nil
	}
	return &Faults{Of: of, List: l.faults, More: l.more}
}

// Sort orders the faults by their places, and drops repetitions, which come of an alias that
// is used twice.
func (l *List) Sort() {
	slices.SortStableFunc(l.faults, func(a, b Fault) int {
		if a.File != b.File && (a.File == l.File || b.File == l.File) { // those of other files come last
			return map[bool]int{true: -1, false: 1}[a.File == l.File]
		}
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	l.faults = slices.CompactFunc(l.faults, func(a, b Fault) bool {
		return a.File == b.File && a.Place == b.Place && a.Problem == b.Problem && a.Instead == b.Instead
	})
}
