package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir/policy"
	"go.yaml.in/yaml/v3"
)

// Bounds of the input.
const (
	MaxSize   = 1 << 20 // bytes in a file
	MaxDepth  = 32      // levels of nesting
	maxValues = 50_000  // keys and values, after aliases are followed
)

// Load reads and checks the file at path. A file that cannot be read is an
// ordinary error; one that is wrong is a [*Faults].
func Load(path string) (*Config, error) {
	data, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("config %s: no such file; weir init %s writes one to start from", path, path)
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, data)
}

// ReadFile reads a file up to [MaxSize] and one byte more, by which the parsers
// know that it is too large.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}

// Parse reads and checks a configuration. name stands before each fault, and
// files named in the configuration are looked up relative to its directory.
func Parse(name string, data []byte) (*Config, error) {
	root, faults := parseYAML(name, data)
	if len(faults) > 0 {
		return nil, &Faults{sorted(faults)}
	}
	d := newDecoder(name)
	cfg := new(Config)
	d.decodeRoot(root, cfg)
	checkMeaning(cfg, d)
	if len(d.faults) > 0 {
		return nil, &Faults{sorted(d.faults)}
	}
	return cfg, nil
}

// decoder walks YAML nodes and Go values side by side. It collects faults
// instead of stopping, and remembers where each path stands in the file, so that
// later checks can point at a line.
type decoder struct {
	file   string
	faults []Fault
	pos    map[string]position
	// wrong holds the paths that already have a fault, and inside everything
	// around them: what is wrong in form is not reported again for its meaning.
	wrong, inside map[string]bool
	values        int // left of maxValues
}

type position struct{ line, col int }

func newDecoder(file string) *decoder {
	return &decoder{
		file:   file,
		pos:    map[string]position{"": {1, 1}},
		wrong:  map[string]bool{},
		inside: map[string]bool{},
		values: maxValues,
	}
}

// decodeRoot fills cfg from the root mapping.
func (d *decoder) decodeRoot(root *yaml.Node, cfg *Config) {
	cfg.setDefaults()
	d.value("", root, reflect.ValueOf(cfg).Elem(), field{})
}

// faultAt records a fault at a node.
func (d *decoder) faultAt(n *yaml.Node, path, remedy, format string, args ...any) {
	d.add(position{n.Line, n.Column}, path, remedy, fmt.Sprintf(format, args...))
}

func (d *decoder) add(at position, path, remedy, problem string) {
	d.markWrong(path)
	d.faults = append(d.faults, Fault{
		File: d.file, Line: max(at.line, 1), Col: max(at.col, 1), Path: path, Problem: problem, Remedy: remedy,
	})
}

func (d *decoder) markWrong(path string) {
	d.wrong[path] = true
	for path != "" && !d.inside[path] {
		d.inside[path] = true
		path = parent(path)
	}
}

// faulty reports whether path, something around it or something in it has a fault.
func (d *decoder) faulty(path string) bool {
	if d.inside[path] {
		return true
	}
	for ; path != ""; path = parent(path) {
		if d.wrong[path] {
			return true
		}
	}
	return false
}

// spend counts one value or key, and reports whether there may be another.
func (d *decoder) spend(n *yaml.Node, path string) bool {
	d.values--
	if d.values == -1 {
		d.faultAt(n, path, "write fewer, or repeat fewer aliases", "the file holds more than %d values", maxValues)
	}
	return d.values >= 0
}

// value decodes n into v. f is what fields.go says of the field v belongs to.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value, f field) {
	use := n
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		// The values behind an alias are reported where they are written; only
		// their number matters here, see maxValues.
		n = n.Alias
	}
	if !d.spend(use, path) {
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.faultAt(use, path, "write "+describe(v.Type(), f)+", or remove the line", "has no value")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		setDefaults(p)
		d.value(path, n, p.Elem(), f)
		v.Set(p)
	case reflect.Struct:
		d.structure(path, n, v, f)
	case reflect.Map:
		d.dictionary(path, n, v, f)
	case reflect.Slice:
		d.list(path, n, v, f)
	default:
		d.scalar(path, n, v, f)
	}
}

func setDefaults(p reflect.Value) {
	if s, ok := p.Interface().(defaulter); ok {
		s.setDefaults()
	}
}

func (d *decoder) structure(path string, n *yaml.Node, v reflect.Value, f field) {
	keys := fieldsOf(v.Type())
	seen := d.entries(path, n, v.Type(), f, func(sub string, key, val *yaml.Node) {
		k, ok := keys.find(key.Value)
		if !ok {
			d.unknown(path, sub, key, keys)
			return
		}
		d.value(sub, val, v.FieldByIndex(k.index), k.field)
	})
	if seen == nil {
		return
	}
	for _, k := range keys {
		sub := join(path, k.name)
		if k.required && !seen[k.name] && !d.wrong[sub] {
			d.add(d.where(path), sub, "add "+k.name+": "+k.sample(), "is missing")
		}
	}
}

// unknown reports a key that no field has, with the group here that has it, as when it
// stands one level too far left, or the nearest one that exists. That one is marked as
// wrong too: it is not missing, it is misspelt.
func (d *decoder) unknown(path, sub string, key *yaml.Node, keys fieldList) {
	remedy := "known here: " + strings.Join(keys.names(), ", ")
	if below := keys.holders(key.Value); len(below) > 0 {
		remedy = "write it below " + strings.Join(below, " or below ")
	} else if best, ok := nearest(key.Value, keys.names()); ok {
		remedy = "write " + best
		d.markWrong(join(path, best))
	}
	d.faultAt(key, sub, remedy, "there is no such field")
}

func (d *decoder) dictionary(path string, n *yaml.Node, v reflect.Value, f field) {
	m := reflect.MakeMap(v.Type())
	d.entries(path, n, v.Type(), f, func(sub string, key, val *yaml.Node) {
		if why := badName(key.Value); why != "" && !f.anyName {
			d.faultAt(key, sub, "write 1 to 64 letters, digits, - and _", "%s", why)
		}
		item := reflect.New(v.Type().Elem())
		setDefaults(item)
		d.value(sub, val, item.Elem(), field{})
		m.SetMapIndex(reflect.ValueOf(key.Value), item.Elem())
	})
	v.Set(m)
}

// entries calls visit for each key of the mapping n, and returns the keys seen;
// nil if n is no mapping.
func (d *decoder) entries(path string, n *yaml.Node, t reflect.Type, f field, visit func(sub string, key, val *yaml.Node)) map[string]bool {
	if n.Kind != yaml.MappingNode {
		d.mistyped(path, n, t, f)
		return nil
	}
	first := map[string]int{}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if !d.spend(key, path) {
			return seen
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			d.faultAt(key, path, "write name: value", "the key is no plain name")
			continue
		case key.ShortTag() == "!!merge":
			d.faultAt(key, path, "write the fields out, or use an alias for a whole value", "merge keys (<<) are not supported")
			continue
		case seen[key.Value]:
			d.faultAt(key, join(path, key.Value), "remove one of the two", "is written twice, first on line %d", first[key.Value])
			continue
		}
		first[key.Value], seen[key.Value] = key.Line, true
		sub := join(path, key.Value)
		d.pos[sub] = positionOf(key, val)
		visit(sub, key, val)
	}
	return seen
}

func (d *decoder) list(path string, n *yaml.Node, v reflect.Value, f field) {
	if n.Kind != yaml.SequenceNode {
		d.mistyped(path, n, v.Type(), f)
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		if d.values < 0 {
			return
		}
		sub := fmt.Sprintf("%s[%d]", path, i)
		d.pos[sub] = position{item.Line, item.Column}
		setDefaults(list.Index(i).Addr())
		d.value(sub, item, list.Index(i), field{form: f.form})
	}
	v.Set(list)
}

var equals = regexp.MustCompile(`^\w+ ?= `)

// mistyped reports a node of the wrong shape.
func (d *decoder) mistyped(path string, n *yaml.Node, t reflect.Type, f field) {
	remedy := "write " + describe(t, f)
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String && n.Kind == yaml.ScalarNode {
		remedy = fmt.Sprintf("write a list: [%s]", flowScalar(n.Value))
		if item, ok := strings.CutPrefix(n.Value, "-"); ok {
			remedy = "put a space after the dash: - " + clip(strings.TrimSpace(item))
		}
	}
	if t == limitType && n.Kind == yaml.ScalarNode {
		remedy = wholeLimit(n, remedy)
	}
	if n.Kind == yaml.ScalarNode && equals.MatchString(n.Value) {
		remedy = "write name: value, not name = value"
	}
	d.faultAt(n, path, remedy, "is %s", describeNode(n))
}

var limitType = reflect.TypeFor[policy.LimitSpec]()

// wholeLimit says how to write a limit for which somebody has written just the
// number, or just the controller.
func wholeLimit(n *yaml.Node, otherwise string) string {
	if n.ShortTag() == "!!int" {
		return "write {limit: " + clip(n.Value) + "}"
	}
	switch word, ok := nearest(n.Value, policy.Controllers()); {
	case !ok, word == "fixed":
		return otherwise
	case word == "knee":
		return "write {}, which is {controller: knee}"
	default:
		return "write {controller: " + word + "}"
	}
}

// where returns the place of path, or of the nearest thing around it that is in
// the file.
func (d *decoder) where(path string) position {
	for {
		if p, ok := d.pos[path]; ok {
			return p
		}
		path = parent(path)
	}
}

// positionOf is where faults of a field point: at its value where that is short,
// and at its key where the value goes over lines.
func positionOf(key, val *yaml.Node) position {
	if val.Kind == yaml.ScalarNode && val.ShortTag() != "!!null" || val.Kind == yaml.AliasNode {
		return position{val.Line, val.Column}
	}
	return position{key.Line, key.Column}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// parent cuts the last component off a path; the parent of the root is the root.
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

var durationType = reflect.TypeFor[policy.Duration]()

// scalar decodes a string, boolean, number or duration and holds it against the
// bounds of its field.
func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value, f field) {
	if n.Kind != yaml.ScalarNode {
		d.mistyped(path, n, v.Type(), f)
		return
	}
	problem, remedy := setScalar(v, n, f)
	if problem == "" {
		problem, remedy = outOfBounds(v, f)
	}
	if problem != "" {
		d.faultAt(n, path, remedy, "%s", problem)
	}
}

// setScalar sets v from the text of n. It returns what is wrong, if anything.
// Numbers are read here and not by the YAML library, which takes 010 for 8.
func setScalar(v reflect.Value, n *yaml.Node, f field) (problem, remedy string) {
	text := n.Value
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	remedy = "write " + describe(v.Type(), f)
	switch {
	case v.Type() == durationType:
		dur, problem, remedy := parseDuration(text)
		if problem == "" {
			v.SetInt(int64(dur))
		}
		return problem, remedy
	case v.Kind() == reflect.String:
		return setString(v, n, f)
	case v.Kind() == reflect.Bool:
		if !plain || (text != "true" && text != "false") {
			return fmt.Sprintf("%s is neither true nor false", quote(text)), "write true or false"
		}
		v.SetBool(text == "true")
	case v.CanInt():
		i, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, v.Type().Bits())
		if err != nil || !plain {
			return fmt.Sprintf("%s is no whole number", quote(text)), remedy
		}
		v.SetInt(i)
	case v.CanFloat():
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !plain || math.IsNaN(x) || math.IsInf(x, 0) || strings.ContainsAny(text, "xXpP") {
			return fmt.Sprintf("%s is no number", quote(text)), remedy
		}
		v.SetFloat(x)
	}
	return "", ""
}

func setString(v reflect.Value, n *yaml.Node, f field) (problem, remedy string) {
	if n.ShortTag() == "!!str" {
		v.SetString(n.Value)
		return "", ""
	}
	remedy = "write it in quotes: " + quote(n.Value)
	if f.form != "" {
		remedy = "write " + describe(v.Type(), f)
	}
	return fmt.Sprintf("%s is %s, not a text", quote(n.Value), describeNode(n)), remedy
}

// parseDuration reads 250ms, 1m30s, 0 and -1, and knows what people write instead.
func parseDuration(text string) (d policy.Duration, problem, remedy string) {
	if d.UnmarshalText([]byte(text)) == nil {
		return d, "", ""
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, quote(text) + " has no unit", fmt.Sprintf("write %ss for seconds or %sms for milliseconds", clip(text), clip(text))
	}
	if squeezed := strings.ReplaceAll(text, " ", ""); squeezed != text && d.UnmarshalText([]byte(squeezed)) == nil {
		return 0, quote(text) + " has a space in it", "write " + squeezed
	}
	if digits, ok := strings.CutSuffix(text, "d"); ok {
		if days, err := strconv.Atoi(digits); err == nil && 0 < days && days < 10_000 {
			return 0, "days are no unit here", fmt.Sprintf("write %dh", 24*days)
		}
	}
	return 0, quote(text) + " is no duration", "write for instance 250ms, 10s or 1m30s"
}

// outOfBounds holds a decoded value against what fields.go allows.
func outOfBounds(v reflect.Value, f field) (problem, remedy string) {
	if len(f.enum) > 0 && !slices.Contains(f.enum, v.String()) {
		remedy = "write one of: " + strings.Join(f.enum, ", ")
		if best, ok := nearest(v.String(), f.enum); ok {
			remedy = "write " + best
		}
		return fmt.Sprintf("%s is not known", quote(v.String())), remedy
	}
	if f.minusOne != "" && v.CanInt() && v.Int() == -1 {
		return "", ""
	}
	if low, ok := bound(v.Type(), f.least); ok && number(v) < low {
		return fmt.Sprintf("is %s, too small", shown(v)), "write at least " + f.least + f.orMinusOne()
	}
	if high, ok := bound(v.Type(), f.most); ok && number(v) > high {
		return fmt.Sprintf("is %s, too large", shown(v)), "write at most " + f.most
	}
	return "", ""
}

// bound reads a limit of fields.go in the unit of t; false if there is none.
func bound(t reflect.Type, text string) (float64, bool) {
	if text == "" {
		return 0, false
	}
	if t == durationType {
		d, err := time.ParseDuration(text)
		return float64(d), err == nil
	}
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil
}

func number(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	if v.CanInt() {
		return float64(v.Int())
	}
	return 0
}

func shown(v reflect.Value) string {
	return fmt.Sprint(v.Interface()) // a duration prints as it is written
}

// describe says in words what a field of type t wants.
func describe(t reflect.Type, f field) string {
	words := kind(t, f)
	if f.example != "" && len(f.enum) == 0 && !strings.Contains(words, "such as") {
		words += ", such as " + f.example
	}
	return words
}

func kind(t reflect.Type, f field) string {
	switch {
	case len(f.enum) > 0:
		return "one of " + strings.Join(f.enum, ", ")
	case t == durationType:
		return "a duration such as 250ms or 10s"
	case t.Kind() == reflect.Pointer:
		return kind(t.Elem(), f)
	case t.Kind() == reflect.Slice:
		return "a list (lines that begin with -)"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "fields (name: value), indented below it"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String && f.form != "":
		return f.form
	case t.Kind() == reflect.String:
		return "a text"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// describeNode says what a node is instead.
func describeNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "empty"
	case "!!timestamp":
		return "a date"
	}
	return fmt.Sprintf("the text %s", quote(n.Value))
}

// quote quotes text from the file for a message, shortened.
func quote(s string) string { return strconv.Quote(clip(s)) }

// clip bounds what a message repeats of the file.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

var plainScalar = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// flowScalar writes s so that it can stand inside [ ].
func flowScalar(s string) string {
	if plainScalar.MatchString(s) {
		return clip(s)
	}
	return quote(s)
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// badName says what is wrong with the name of a gate or an upstream. Names are
// metric labels and parts of paths, so they are kept plain.
func badName(name string) string {
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

// nearest returns the candidate that word is most likely a misspelling of.
//
// Among very many candidates it does not look: that would take long, and a
// person with so many names has other means to find one.
func nearest(word string, candidates []string) (string, bool) {
	if len(candidates) > 500 {
		return "", false
	}
	word = strings.ToLower(strings.ReplaceAll(word, "-", "_"))
	best, least := "", 0
	for _, c := range candidates {
		if d := editDistance(word, strings.ReplaceAll(strings.ToLower(c), "-", "_")); best == "" || d < least {
			best, least = c, d
		}
	}
	return best, best != "" && least <= max(1, min(len(word), len(best))/3)
}

// editDistance counts insertions, deletions, substitutions and swaps of
// neighbours. Long words are no misspellings and cost nothing.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
