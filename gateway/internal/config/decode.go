package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-go/weir/policy"
)

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
