package config

import (
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder walks YAML nodes and Go values side by side. It collects faults
// instead of stopping, and remembers where each path stands in the file, so that
// later checks can point at a line.
type decoder struct {
	file   string
	faults []Fault
	pos    map[string]position
	// wrong holds the paths that already have a fault: what is wrong in form
	// is not reported a second time for its meaning.
	wrong  map[string]bool
	values int // left of maxValues
}

type position struct{ line, col int }

func newDecoder(file string) *decoder {
	return &decoder{
		file:   file,
		pos:    map[string]position{"": {1, 1}},
		wrong:  map[string]bool{},
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
	d.wrong[path] = true
	d.faults = append(d.faults, Fault{
		File: d.file, Line: max(at.line, 1), Col: max(at.col, 1), Path: path, Problem: problem, Remedy: remedy,
	})
}

// value decodes n into v. f is what fields.go says of the field v belongs to.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value, f field) {
	use := n
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		// The values behind an alias are reported where they are written; only
		// their number matters here, see maxValues.
		n = n.Alias
	}
	if d.values--; d.values < 0 {
		if d.values == -1 {
			d.faultAt(use, path, "write fewer, or repeat fewer aliases", "the file holds more than %d values", maxValues)
		}
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" && v.Kind() != reflect.String {
		d.faultAt(use, path, "write "+describe(v.Type(), f)+" after the colon, or remove the line", "has no value")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		setDefaults(p)
		d.value(path, n, p.Elem(), f)
		v.Set(p)
	case reflect.Struct:
		d.structure(path, n, v)
	case reflect.Map:
		d.dictionary(path, n, v)
	case reflect.Slice:
		d.list(path, n, v)
	default:
		d.scalar(path, n, v, f)
	}
}

func setDefaults(p reflect.Value) {
	if s, ok := p.Interface().(defaulter); ok {
		s.setDefaults()
	}
}

func (d *decoder) structure(path string, n *yaml.Node, v reflect.Value) {
	keys := fieldsOf(v.Type())
	seen := d.entries(path, n, v.Type(), field{}, func(sub string, key, val *yaml.Node) {
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
			d.add(d.where(path), path, "add "+k.name+": "+k.sample(), "has no "+k.name)
			d.wrong[sub] = true
		}
	}
}

// unknown reports a key that no field has, with the nearest one that exists. The
// field meant is marked as wrong too: it is not missing, it is misspelt.
func (d *decoder) unknown(path, sub string, key *yaml.Node, keys fieldList) {
	remedy := "known here: " + strings.Join(keys.names(), ", ")
	if best, ok := nearest(key.Value, keys.names()); ok {
		remedy = "write " + best
		d.wrong[join(path, best)] = true
	}
	d.faultAt(key, sub, remedy, "there is no such field")
}

func (d *decoder) dictionary(path string, n *yaml.Node, v reflect.Value) {
	m := reflect.MakeMap(v.Type())
	d.entries(path, n, v.Type(), field{}, func(sub string, key, val *yaml.Node) {
		if why := badName(key.Value); why != "" {
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

func (d *decoder) list(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.mistyped(path, n, v.Type(), field{})
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		sub := fmt.Sprintf("%s[%d]", path, i)
		d.pos[sub] = position{item.Line, item.Column}
		setDefaults(list.Index(i).Addr())
		d.value(sub, item, list.Index(i), field{})
	}
	v.Set(list)
}

// mistyped reports a node of the wrong shape.
func (d *decoder) mistyped(path string, n *yaml.Node, t reflect.Type, f field) {
	remedy := "write " + describe(t, f)
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String && n.Kind == yaml.ScalarNode {
		remedy = fmt.Sprintf("write a list: [%s]", flowScalar(n.Value))
	}
	d.faultAt(n, path, remedy, "is %s", describeNode(n))
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
