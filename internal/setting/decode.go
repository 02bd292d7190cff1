package setting

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// Defaulter is a struct with defaults. The decoder fills them in before it reads the keys
// of the document. So a key left out keeps its default, and an explicit 0 is seen as 0.
type Defaulter interface{ SetDefaults() }

// Decode fills the value that into points to from a tree, and reports whatever does not
// fit. That is: unknown keys, keys written twice or missing, values of another kind or
// out of bounds. It knows structs, maps with text keys, slices, pointers, scalars, and
// types with UnmarshalText.
func Decode(n *Node, into any, faults *fault.List) { decode(n, into, faults, false) }

// DecodePlain is Decode for a document that people write: the names that they give to gates
// and their like have to match [NamePattern].
func DecodePlain(n *Node, into any, faults *fault.List) { decode(n, into, faults, true) }

func decode(n *Node, into any, faults *fault.List, plainNames bool) {
	d := decoder{faults, plainNames}
	v := reflect.ValueOf(into).Elem()
	setDefaults(v)
	d.value(nil, n, n.Place, v, Field{})
}

type decoder struct {
	*fault.List
	plainNames bool
}

func (d decoder) fault(at fault.Path, p fault.Place, problem, instead string) {
	d.AddFault(fault.Fault{Path: at, Place: p, Problem: problem, Instead: instead})
}

// value decodes n into v. f says what v may be. Its faults stand at p.
func (d decoder) value(at fault.Path, n *Node, p fault.Place, v reflect.Value, f Field) {
	if n.Kind == Null {
		d.fault(at, p, "has no value", "write "+f.wants(v.Type())+", or remove the line")
		return
	}
	if n.FromEnv && d.Wrong(at) {
		return // it has no value
	}
	kind := v.Kind()
	if kind == reflect.Struct {
		f.unfold(n, v.Type())
	}
	switch {
	case kind == reflect.Pointer:
		in := reflect.New(v.Type().Elem())
		setDefaults(in.Elem())
		d.value(at, n, p, in.Elem(), f)
		v.Set(in)
	case kind == reflect.Struct && n.Kind == Group:
		d.group(at, n, p, v, f)
	case kind == reflect.Map && n.Kind == Group:
		d.dictionary(at, n, v, f)
	case kind == reflect.Slice && n.Kind == List:
		d.list(at, n, v, f)
	case n.Kind == Group || n.Kind == List || !isText(v.Type()) && (kind == reflect.Struct || kind == reflect.Map || kind == reflect.Slice):
		instead := "write " + f.wants(v.Type())
		if len(f.ShortFor) > 0 && kind == reflect.Struct {
			instead = "write " + strings.Join(slices.Sorted(maps.Keys(f.ShortFor)), " or ") + ", a number, or " + f.wants(v.Type())
		}
		switch {
		case kind == reflect.Struct && n.Kind == List && len(n.Items) > 0 && n.Items[0].Kind == Text:
			instead = cmp.Or(guess(n.Items[0], v), instead)
		case kind == reflect.Slice && n.Kind == Text:
			instead = "write a list: [" + flowList(n.Text) + "]"
		case kind == reflect.Struct && (n.Kind == Text || n.Kind == Number || n.Kind == Bool):
			instead = cmp.Or(guess(n, v), f.shortMeant(n, v.Type()), meant(at, n, Fields(v.Type())), instead)
		}
		d.fault(at, n.Place, "is "+n.says(), instead)
	default:
		d.scalar(at, n, v, f)
	}
}

// unfold makes the group of a scalar that stands for it: limit: 24 is limit: {limit: 24}.
func (f *Field) unfold(n *Node, t reflect.Type) {
	if n.Kind != Text && n.Kind != Number || f.Short == "" {
		return
	}
	text, word := f.ShortFor[n.Text]
	in := find(Fields(t), f.Short)
	one := &Node{Kind: n.Kind, Place: n.Place, Text: n.Text, FromEnv: n.FromEnv}
	switch {
	case word && text == "":
		*n = Node{Kind: Group, Place: n.Place}
		return
	case word:
		one.Kind, one.Text = Number, text
	case (in.Type.Kind() == reflect.String) != (n.Kind == Text) && !n.FromEnv:
		return
	}
	*n = Node{Kind: Group, Place: n.Place, Members: []Member{{Key: f.Short, Place: n.Place, Value: one}}}
}

// shortMeant guesses the scalar that was meant, where one may stand for a group.
func (f *Field) shortMeant(n *Node, t reflect.Type) string {
	if _, err := strconv.Atoi(n.Text); err == nil && f.Short != "" {
		if in := find(Fields(t), f.Short); n.Kind == Number && in.Type.Kind() == reflect.String {
			return "write it with its unit, as in " + in.Example
		}
		return "write " + n.Text
	}
	_, off := f.ShortFor["off"]
	if off && slices.Contains([]string{"no", "none", "false", "never", "disabled", "disable"}, strings.ToLower(n.Text)) {
		return "write off"
	}
	words := slices.Sorted(maps.Keys(f.ShortFor))
	if word := fault.Nearest(n.Text, words); word != "" {
		return "write " + word + ", or a number"
	}
	return ""
}

// Guesser is a group that knows what a scalar in its place was meant to be.
type Guesser interface {
	// Guess returns the group as it should be written, empty if it does not know.
	Guess(scalar string) string
}

func guess(n *Node, v reflect.Value) string {
	if g, ok := v.Addr().Interface().(Guesser); ok && !n.FromEnv {
		if group := g.Guess(n.Text); group != "" {
			return "write " + group
		}
	}
	return ""
}

// meant guesses which field of a group the scalar in its place is; empty if none fits.
func meant(at fault.Path, n *Node, fields []Field) string {
	if instead := spaced(n.Text, fields); instead != "" {
		return instead
	}
	for _, f := range fields {
		text := n.Text
		i := slices.IndexFunc(f.Enum, func(word string) bool { return strings.EqualFold(word, text) })
		if i >= 0 {
			text = f.Enum[i]
		}
		if i >= 0 || n.Kind == Number && len(at) > 0 && at[len(at)-1] == f.Key {
			return "write {" + f.Key + ": " + text + "}"
		}
	}
	return ""
}

// spaced is the remedy for a field without the space after its colon; empty if text is none.
func spaced(text string, fields []Field) string {
	key, value, colon := strings.Cut(text, ":")
	if !colon || find(fields, key) == nil {
		return ""
	}
	return "write a space after the colon: " + key + ": " + Clip(value)
}

func (d decoder) group(at fault.Path, n *Node, p fault.Place, v reflect.Value, of Field) {
	fields := Fields(v.Type())
	seen := map[string]bool{}
	d.rename(at, n, fields)
	d.lower(at, n, fields)
	for _, m := range d.members(at, n) {
		f := find(fields, m.Key)
		if f == nil {
			d.unknown(at, &m, fields, of.Gone)
			continue
		}
		seen[m.Key] = true
		d.value(at.At(m.Key), m.Value, m.where(), v.FieldByIndex(f.Index), *f)
	}
	for _, f := range fields {
		if sub := at.At(f.Key); f.Required && !seen[f.Key] && !d.Wrong(sub) {
			d.fault(sub, p, "is missing", "add "+f.Key+": "+f.Example)
		}
	}
}

// rename gives the members of a group that have the key of an earlier version their key of
// today, and notes it. A member with both keys is reported, and its old key is taken out.
func (d decoder) rename(at fault.Path, n *Node, fields []Field) {
	for _, f := range fields {
		i := slices.IndexFunc(n.Members, func(m Member) bool { return f.Was != "" && m.Key == f.Was })
		if i < 0 {
			continue
		}
		if m := &n.Members[i]; n.Get(f.Key) != nil {
			d.fault(at.At(m.Key), m.Place, "is the old name of "+f.Key+", which is written too", "leave "+m.Key+" out")
			n.Members = slices.Delete(slices.Clone(n.Members), i, i+1)
		} else {
			d.AddNote(fault.Fault{Path: at.At(m.Key), Place: m.Place, Problem: "has another name now; the old one is read until 1.0", Instead: "write " + f.Key})
			m.Key = f.Key
		}
	}
}

// lower puts members that stand beside a group into it, where they may: rate: 10/s is
// quota: {rate: 10/s}.
func (d decoder) lower(at fault.Path, n *Node, fields []Field) {
	for _, f := range fields {
		if len(f.Lift) == 0 || n.Get(f.Lift[0]) == nil || n.Get(f.Key) != nil {
			continue
		}
		group := &Node{Kind: Group}
		var rest []Member
		for _, m := range n.Members {
			if slices.Contains(f.Lift, m.Key) {
				group.Members = append(group.Members, m)
			} else {
				rest = append(rest, m)
			}
		}
		group.Place = group.Members[0].Place
		n.Members = append(rest, Member{Key: f.Key, Place: group.Place, Value: group})
	}
}

func find(fields []Field, key string) *Field {
	for i := range fields {
		if fields[i].Key == key {
			return &fields[i]
		}
	}
	return nil
}

// unknown reports a key that no field has. It names the groups here that have it, as when it
// stands one level too far left, or the nearest key. That one is wrong too: it is not missing.
func (d decoder) unknown(at fault.Path, m *Member, fields []Field, gone []string) {
	var keys, below []string
	for _, f := range fields {
		keys = append(append(keys, f.Key), f.Lift...)
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct && find(Fields(t), m.Key) != nil {
			below = append(below, f.Key)
		}
	}
	instead := "known here: " + strings.Join(keys, ", ")
	best, field := fault.Nearest(m.Key, keys), spaced(m.Key, fields)
	switch {
	case slices.Contains(gone, m.Key):
		d.fault(at.At(m.Key), m.Place, "is a constant now", "remove it")
		return
	case field != "":
		instead, best = field, ""
	case len(below) > 0:
		instead = "write it below " + strings.Join(below, " or below ")
		if n := m.Value; len(below) == 1 && (n.Kind == Text || n.Kind == Number || n.Kind == Bool) && !n.FromEnv {
			instead += ", as " + below[0] + ": {" + m.Key + ": " + flow(n.Text) + "}"
		}
		if best == m.Key || m.Value.Kind == List { // a short form, or not meant
			best = ""
		}
		if best != "" { // limits of a gate with fields: its limit, or those of its quota
			instead = "write " + best + ", or " + instead
		}
	case best != "":
		instead = "write " + best
	}
	for _, f := range fields {
		if best != "" && (f.Key == best || slices.Contains(f.Lift, best)) {
			d.Blame(at.At(f.Key))
		}
	}
	d.fault(at.At(m.Key), m.Place, "there is no such field", instead)
}

var goodName = regexp.MustCompile(NamePattern)

// NamePattern is a regular expression for the names that people give to gates and their like. They
// are labels of metrics and parts of paths, and so are kept plain.
const NamePattern = `^[A-Za-z0-9_-]{1,64}$`

// BadName says what is wrong with such a name, nothing if it is right.
func BadName(name string) string {
	switch {
	case goodName.MatchString(name):
		return ""
	case name == "":
		return "the name is empty"
	case len(name) > 64:
		return fmt.Sprintf("the name is %d bytes long", len(name))
	}
	return fmt.Sprintf("the name %s has characters that are not allowed", quote(name))
}

func (d decoder) dictionary(at fault.Path, n *Node, v reflect.Value, f Field) {
	if nameless(n, v.Type().Elem()) {
		instead := "write a name above them"
		if f.Example != "" {
			instead += ", as in " + at.String() + ": " + f.Example
		}
		d.fault(at, n.Place, "has fields where a name belongs", instead)
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Members))
	members := d.members(at, n)
	for len(members) > 0 {
		member := members[0]
		members = members[1:]
		sub := at.At(member.Key)
		if why := BadName(member.Key); why != "" && d.plainNames && f.Plain() {
			d.fault(sub, member.Place, why, "write 1 to 64 letters, digits, - and _")
		}
		item := reflect.New(v.Type().Elem()).Elem()
		setDefaults(item)
		if strays := outdented(&member, members, item.Type()); strays > 0 {
			first := members[0]
			d.fault(sub, member.Place, "has no value", fmt.Sprintf("indent what belongs to it, from line %d on (%s)", first.Place.Line, first.Key))
			members = members[strays:]
		} else {
			d.value(sub, member.Value, member.where(), item, Field{Min: f.Min, Max: f.Max})
		}
		m.SetMapIndex(reflect.ValueOf(member.Key).Convert(v.Type().Key()), item)
	}
	v.Set(m)
}

// outdented returns how many of the members behind a name without a value are its fields, which stand too far left. A group may
// be a name of its own.
func outdented(name *Member, behind []Member, t reflect.Type) (n int) {
	if name.Value.Kind != Null || t.Kind() != reflect.Struct {
		return 0
	}
	fields := Fields(t)
	for n < len(behind) && find(fields, behind[n].Key) != nil && behind[n].Value.Kind != Group && behind[n].Value.Kind != Null && behind[n].Place.Line > name.Place.Line {
		n++
	}
	return n
}

// nameless reports whether a group that should have names is one of the values that they stand for. All of its keys are
// fields of that then, and one that is required is no group, as the value of a name is.
func nameless(n *Node, t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	required := false
	for _, m := range n.Members {
		f := find(Fields(t), m.Key)
		if f == nil {
			return false
		}
		required = required || f.Required && m.Value.Kind != Group
	}
	return required
}

// Plain reports whether the keys of a map have to be plain names.
func (f *Field) Plain() bool { return !f.AnyName }

// members returns the members of a group, each key once.
func (d decoder) members(at fault.Path, n *Node) []Member {
	first := make(map[string]int, len(n.Members))
	list := n.Members[:0:0]
	for _, m := range n.Members {
		if line, ok := first[m.Key]; ok {
			d.fault(at.At(m.Key), m.Place, fmt.Sprintf("is written twice, first on line %d", line), "remove one of the two")
			continue
		}
		first[m.Key] = m.Place.Line
		list = append(list, m)
	}
	return list
}

func (d decoder) list(at fault.Path, n *Node, v reflect.Value, f Field) {
	v.Set(reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items)))
	for i, item := range n.Items {
		setDefaults(v.Index(i))
		d.value(at.Index(i), item, item.Place, v.Index(i), Field{Form: f.Form, Enum: f.Enum, Min: f.Min, Max: f.Max})
	}
}

func setDefaults(v reflect.Value) {
	if s, ok := v.Addr().Interface().(Defaulter); ok {
		s.SetDefaults()
	}
}

func (d decoder) scalar(at fault.Path, n *Node, v reflect.Value, f Field) {
	if now := f.Renamed[n.Text]; now != "" && n.Kind == Text {
		d.AddNote(fault.Fault{Path: at, Place: n.Place, Problem: quote(n.Text) + " has another name now; the old one is read until 1.0", Instead: "write " + now})
		n.Text = now
	}
	err := n.set(v)
	if f.NotEmpty && n.Kind == Text && n.Text == "" {
		err = fault.New("is empty", "leave it out, or write "+f.wants(v.Type()))
	}
	if n.Kind == Text && !n.FromEnv && err == nil && (v.CanInt() || v.CanUint() || v.CanFloat() || v.Kind() == reflect.Bool) && !isText(v.Type()) && !isDuration(v.Type()) {
		err = fault.New(quote(n.Text)+" is a text, because of the quotes", "write "+n.Text)
	}
	var moment *time.ParseError
	if errors.As(err, &moment) {
		err = fault.New(quote(n.Text)+" is not a time", `write one as in "2026-01-02T15:04:05Z"`)
	}
	if err == errOther {
		problem := fmt.Sprintf("%s is %s", quote(n.Text), isNot(v))
		instead := "write " + f.wants(v.Type())
		if v.Kind() == reflect.String {
			problem = fmt.Sprintf("%s is %s, not a text", quote(n.Text), n.says())
			if f.Form == "" && len(f.Enum) == 0 {
				instead = "write it in quotes: " + quote(n.Text)
			}
		}
		if x, err := strconv.ParseFloat(n.Text, 64); v.CanUint() && err == nil && x < 0 {
			problem = quote(n.Text) + " is below 0"
		}
		if meant := f.Meant[n.Text]; meant != "" {
			problem, instead = quote(n.Text)+" is not known", "write "+meant
		}
		err = fault.New(problem, instead)
	}
	if err == nil {
		err = f.bounded(v)
	}
	if err != nil {
		var one fault.Fault
		if f, ok := err.(fault.Fault); ok {
			one = f
		} else {
			one.Problem = err.Error()
		}
		one.Path, one.Place = at, n.Place
		d.AddFault(one)
	}
}

func isNot(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Bool:
		return "neither true nor false"
	case v.CanFloat():
		return "not a number"
	}
	return "not a whole number"
}

type otherKind struct{}

func (otherKind) Error() string { return "a value of another kind" }

// errOther is the error of a value of another kind.
var errOther = otherKind{}

// set sets v from the text of a scalar.
func (n *Node) set(v reflect.Value) error {
	if isText(v.Type()) {
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Text))
	}
	if v.Type() == durationType {
		d, err := ParseDuration(n.Text)
		v.SetInt(int64(d))
		return err
	}
	var err error
	switch kind := v.Kind(); {
	case kind == reflect.String && (n.Kind == Text || n.FromEnv):
		v.SetString(n.Text)
	case kind == reflect.Bool && (n.Text == "true" || n.Text == "false"):
		v.SetBool(n.Text == "true")
	case kind == reflect.String || kind == reflect.Bool:
		return errOther
	case v.CanInt():
		var i int64
		if i, err = strconv.ParseInt(strings.ReplaceAll(n.Text, "_", ""), 10, v.Type().Bits()); err == nil {
			v.SetInt(i)
		}
	case v.CanUint():
		var i uint64
		if i, err = strconv.ParseUint(strings.ReplaceAll(n.Text, "_", ""), 10, v.Type().Bits()); err == nil {
			v.SetUint(i)
		}
	case v.CanFloat():
		var x float64
		if x, err = strconv.ParseFloat(n.Text, 64); err == nil && (x-x != 0 || strings.ContainsAny(n.Text, "xXpP")) {
			err = errOther
		}
		v.SetFloat(x)
	}
	if err != nil {
		return errOther
	}
	return nil
}

var plainScalar = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// flowList writes the items of a text with commas so that they can stand inside [ ].
func flowList(s string) string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, flow(item))
		}
	}
	return strings.Join(items, ", ")
}

// flow writes s so that it can stand inside [ ].
func flow(s string) string {
	if plainScalar.MatchString(s) {
		return Clip(s)
	}
	return quote(s)
}
