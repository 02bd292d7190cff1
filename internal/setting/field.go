// Package setting reads settings from documents that people write, and reads them
// strictly. It reports every mistake at once, with its place and what to write instead.
//
// A document is a tree of [Node]. Package jsontree makes one of JSON; the gateway makes one of
// YAML. [Decode] fills a Go struct from it. The tags of a field, and nothing else, say
// what its setting may be:
//
//	json      its key
//	min, max  the bounds of a number or a duration
//	minus1    what -1 means, where it is allowed below min
//	enum      the words that it may be, with commas
//	default   what holds where it is left out
//	example   a value that is right, as in a document
//	form      what a text looks like, in words
//	empty     no: that a text may not be empty; who means nothing leaves it out
//	required  true: that it may not be left out; of an embedded struct, the key there that may not
//	short     of a group: the key there that a scalar in the place of the group stands for
//	words     of a group: scalars that stand for others: off=-1; auto= stands for {}
//	lift      of a group: keys of it that may stand beside it, if the first of them does
//	names     any: the keys of a map are words of others, such as tenants
//	was       the key that it had in earlier versions, read until 1.0
//	meant     words of other products, and what they are here: word=ours, with commas
//	renamed   words that it had in earlier versions, read until 1.0: old=new, with commas
//	gone      keys that a group had in earlier versions, with commas
//
// The comment of the field is the sentence of the schema and of the reference.
package setting

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// Field is one setting: a field of a struct, and what its tags say.
type Field struct {
	Key      string
	Owner    reflect.Type // the struct that declares it
	Go       string       // its name there
	Tag      reflect.StructTag
	Index    []int
	Type     reflect.Type
	Min, Max string
	MinusOne string
	Enum     []string
	Gone     []string
	Was      string
	Renamed  map[string]string // new words by the old
	Meant    map[string]string // ours by those of others
	Short    string
	ShortFor map[string]string
	Lift     []string
	Default  string
	Example  string
	Form     string
	Required bool
	NotEmpty bool
	AnyName  bool
}

var known sync.Map // of []Field by struct type

// Complete prepares a configuration that was written in Go: cfg points to a struct. It fills in the
// defaults, and reports what the tags do not allow. A fault names the Go field. Zero values are
// settings that were left out.
func Complete(cfg any, faults *fault.List) { complete(nil, reflect.ValueOf(cfg).Elem(), faults) }

func complete(at fault.Path, v reflect.Value, faults *fault.List) {
	for i := range v.NumField() {
		f := newField(v.Type(), v.Type().Field(i), "")
		switch value, at := v.Field(i), at.At(f.Go); value.Kind() {
		case reflect.Struct:
			complete(at, value, faults)
		case reflect.Slice, reflect.Map, reflect.Func, reflect.Interface:
		default:
			if f.fill(value); !value.IsZero() {
				faults.AddError(at, f.bounded(value))
			}
		}
	}
}

// Fields returns the settings of a struct in their order. Those of embedded structs stand among them.
func Fields(t reflect.Type) []Field {
	if list, ok := known.Load(t); ok {
		return list.([]Field)
	}
	var list []Field
	for i := range t.NumField() {
		sf := t.Field(i)
		key, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		switch {
		case sf.Anonymous && key == "":
			for _, f := range Fields(sf.Type) {
				f.Index = append([]int{i}, f.Index...)
				f.Required = f.Required || f.Key == sf.Tag.Get("required")
				list = append(list, f)
			}
		case key != "" && key != "-":
			list = append(list, newField(t, sf, key))
		}
	}
	known.Store(t, list)
	return list
}

func newField(owner reflect.Type, sf reflect.StructField, key string) Field {
	get := sf.Tag.Get
	f := Field{
		Key: key, Owner: owner, Go: sf.Name, Tag: sf.Tag, Index: sf.Index, Type: sf.Type,
		Min: get("min"), Max: get("max"), MinusOne: get("minus1"), Default: get("default"),
		Example: get("example"), Form: get("form"), Required: get("required") == "true", NotEmpty: get("empty") == "no", AnyName: get("names") == "any",
	}
	list := func(words string) []string {
		return strings.FieldsFunc(words, func(r rune) bool { return r == ',' })
	}
	f.Enum, f.Gone, f.Was = list(get("enum")), list(get("gone")), get("was")
	f.Meant = pairs(list(get("meant")))
	f.Renamed, f.ShortFor = pairs(list(get("renamed"))), pairs(list(get("words")))
	f.Short, f.Lift = get("short"), list(get("lift"))
	return f
}

// pairs reads left=right.
func pairs(list []string) map[string]string {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]string, len(list))
	for _, pair := range list {
		left, right, _ := strings.Cut(pair, "=")
		m[left] = right
	}
	return m
}

// Fill sets the zero values of the struct that p points to, and of the structs inside it,
// to the defaults in their tags.
func Fill(p any) { fill(reflect.ValueOf(p).Elem()) }

func fill(v reflect.Value) {
	for _, f := range Fields(v.Type()) {
		switch at := v.FieldByIndex(f.Index); at.Kind() {
		case reflect.Struct:
			fill(at)
		case reflect.Slice:
		default:
			f.fill(at)
		}
	}
}

// fill sets a zero value to the default.
func (f *Field) fill(v reflect.Value) {
	if f.Default != "" && v.IsZero() {
		n := &Node{Kind: Text, Text: strings.Trim(f.Default, `"`)}
		_ = n.set(v) // a test reads every default
	}
}

// Check reports every setting in v, a struct, that its tags do not allow. Zero values are settings
// that were left out.
func Check(at fault.Path, v any, faults *fault.List) { check(at, reflect.ValueOf(v), Field{}, faults) }

func check(at fault.Path, v reflect.Value, f Field, faults *fault.List) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			check(at, v.Elem(), f, faults)
		}
	case reflect.Struct:
		for _, f := range Fields(v.Type()) {
			check(at.At(f.Key), v.FieldByIndex(f.Index), f, faults)
		}
	case reflect.Slice:
		for i := range v.Len() {
			check(at.Index(i), v.Index(i), Field{Enum: f.Enum}, faults)
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			item, of := v.MapIndex(key), Field{Min: f.Min, Max: f.Max}
			if check(at.At(key.String()), item, of, faults); item.IsZero() { // nobody leaves it out here
				faults.AddError(at.At(key.String()), of.bounded(item))
			}
		}
	default:
		if !v.IsZero() {
			faults.AddError(at, f.bounded(v))
		}
	}
}

// bounded returns what is wrong with a value by the tags, nil if nothing is.
func (f *Field) bounded(v reflect.Value) error {
	if len(f.Enum) > 0 && !slices.Contains(f.Enum, v.String()) {
		if meant := f.Meant[strings.ToLower(v.String())]; meant != "" {
			return fault.New(quote(v.String())+" is not known", "write "+meant)
		}
		return fault.New(quote(v.String())+" is not known", fault.Suggest(v.String(), f.Enum, "words"))
	}
	if f.MinusOne != "" && v.CanInt() && v.Int() == -1 {
		return nil
	}
	if x := number(v); x != x {
		return fault.New("NaN is not a number", "write a number"+such(f.Example))
	}
	if low, ok := Bound(v.Type(), f.Min); ok && number(v) < low {
		or := ""
		if f.MinusOne != "" {
			or = ", or -1: " + f.MinusOne
		}
		return fault.New(fmt.Sprintf("is %v, too small", v.Interface()), "write at least "+f.Min+or)
	}
	if high, ok := Bound(v.Type(), f.Max); ok && number(v) > high {
		return fault.New(fmt.Sprintf("is %v, too large", v.Interface()), "write at most "+f.Max+percent(v, high))
	}
	if x := number(v); x-x != 0 {
		return fault.New(fmt.Sprintf("is %v", x), "write a number that is finite")
	}
	return nil
}

// percent says what a share is that somebody wrote in percent.
func percent(v reflect.Value, high float64) string {
	if x := number(v); v.CanFloat() && high == 1 && x <= 100 {
		return fmt.Sprintf(", or %g for %g %%", x/100, x)
	}
	return ""
}

// Bound returns the number that a bound in a tag stands for, in the unit of t.
func Bound(t reflect.Type, text string) (float64, bool) {
	if isDuration(t) {
		d, err := time.ParseDuration(text)
		return float64(d), err == nil
	}
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil && (t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64)
}

func number(v reflect.Value) float64 {
	switch {
	case v.CanFloat():
		return v.Float()
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return 0
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

func isText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textType) }

var durationType = reflect.TypeFor[time.Duration]()

func isDuration(t reflect.Type) bool {
	return t == durationType || t.Kind() == reflect.Int64 && isText(t)
}

// DurationPattern is a regular expression for the written form, for schemas.
const DurationPattern = `^(-1|0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*)$`

// written is a duration in the written form, if it is not too long.
var written = regexp.MustCompile(DurationPattern)

// longDuration is a number with a unit in words, or as in ISO 8601: 5 seconds, PT15S.
var longDuration = regexp.MustCompile(`(?i)^(?:PT)?([0-9]+(?:\.[0-9]+)?)\s*(ms|msecs?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)$`)

// ParseDuration reads 250ms, 1m30s or 0. Any other number needs a unit, but for -1: that is one
// nanosecond below zero.
func ParseDuration(text string) (time.Duration, error) {
	if text == "-1" {
		return -1, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil {
		return d, nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fault.New(text+" has no unit", fmt.Sprintf("write %sms, %[1]ss or %[1]sm", text))
	}
	if written.MatchString(text) {
		return 0, fault.New(strconv.Quote(text)+" is too long", fmt.Sprintf("write at most %dh", math.MaxInt64/time.Hour))
	}
	if joined := strings.ReplaceAll(text, " ", ""); joined != text {
		if _, err := time.ParseDuration(joined); err == nil {
			return 0, fault.New(strconv.Quote(text)+" has a space", "write "+joined)
		}
	}
	if m := longDuration.FindStringSubmatch(text); m != nil {
		unit := strings.ToLower(m[2])
		if !strings.HasPrefix(unit, "ms") && !strings.HasPrefix(unit, "milli") {
			unit = unit[:1]
		} else {
			unit = "ms"
		}
		return 0, fault.New(strconv.Quote(text)+" is not a duration", "write "+m[1]+unit)
	}
	if days, err := strconv.Atoi(strings.TrimSuffix(text, "d")); err == nil {
		return 0, fault.New(strconv.Quote(text)+" is in days", fmt.Sprintf("write %dh", 24*days))
	}
	return 0, fault.New(strconv.Quote(text)+" is not a duration", "write a number with a unit, such as 250ms, 2s or 1m30s")
}

// Words says in words what the setting may be.
func (f *Field) Words() string { return f.words(f.Type) }

func (f *Field) words(t reflect.Type) string {
	switch {
	case len(f.Enum) > 0:
		return "one of " + strings.Join(f.Enum, ", ")
	case isDuration(t):
		return "a duration such as 250ms or 10s"
	case t.Kind() == reflect.Pointer:
		return f.words(t.Elem())
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "fields (name: value)"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String && f.Form != "":
		return f.Form
	case t.Kind() == reflect.String:
		return "a text"
	case t.Kind() == reflect.Float64, t.Kind() == reflect.Float32:
		return "a number"
	}
	return "a whole number"
}

// wants is words for a value of the type, with the example if that says more.
func (f *Field) wants(t reflect.Type) string {
	words := f.words(t)
	if len(f.Enum) > 0 || strings.Contains(words, "such as") || t.Kind() == reflect.Bool {
		return words
	}
	return words + such(f.Example)
}

func such(example string) string {
	if example == "" {
		return ""
	}
	return ", such as " + example
}
