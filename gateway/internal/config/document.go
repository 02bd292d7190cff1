package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Document is a YAML or JSON file of any kind, turned into JSON, that still
// knows where each field stood: for files whose meaning another package checks.
type Document struct {
	JSON []byte
	d    *decoder
}

// ParseDocument reads a file within the same bounds as [Parse]. name stands
// before each fault; the error is a [*Faults].
func ParseDocument(name string, data []byte) (*Document, error) {
	root, faults := parseYAML(name, data)
	doc := &Document{d: newDecoder(name)}
	switch {
	case len(data) <= MaxSize && json.Valid(data):
		doc.JSON = data // as it is, even where YAML differs; without places then
	case len(faults) > 0:
		return nil, &Faults{sorted(faults)}
	}
	if root != nil {
		var b bytes.Buffer
		doc.d.json(&b, "", root, MaxDepth)
		if len(doc.d.faults) > 0 {
			return nil, &Faults{sorted(doc.d.faults)}
		}
		if doc.JSON == nil {
			doc.JSON = b.Bytes()
		}
	}
	return doc, nil
}

// Fault makes a fault of the field at path, with its line.
func (doc *Document) Fault(path, problem, remedy string) Fault {
	at := doc.d.where(path)
	return Fault{File: doc.d.file, Line: at.line, Col: at.col, Path: path, Problem: problem, Remedy: remedy}
}

// NewFaults returns an error of the given faults, ordered by line.
func NewFaults(list []Fault) *Faults { return &Faults{sorted(list)} }

// json writes n as JSON and takes down where each path stands.
func (d *decoder) json(b *bytes.Buffer, path string, n *yaml.Node, depth int) {
	use := n
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	if !d.spend(use, path) {
		return
	}
	if depth < 0 { // an alias inside the value it stands for
		d.faultAt(use, path, "write the values out", "is nested more than %d levels deep", MaxDepth)
		d.values = 0 // once is enough
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		first := true
		d.entries(path, n, reflect.TypeFor[map[string]any](), field{}, func(sub string, key, val *yaml.Node) {
			if !first {
				b.WriteByte(',')
			}
			first = false
			d.text(b, key.Value)
			b.WriteByte(':')
			d.json(b, sub, val, depth-1)
		})
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if d.values < 0 {
				return
			}
			if i > 0 {
				b.WriteByte(',')
			}
			sub := fmt.Sprintf("%s[%d]", path, i)
			d.pos[sub] = position{item.Line, item.Column}
			d.json(b, sub, item, depth-1)
		}
		b.WriteByte(']')
	default:
		d.jsonScalar(b, path, n)
	}
}

func (d *decoder) jsonScalar(b *bytes.Buffer, path string, n *yaml.Node) {
	switch n.ShortTag() {
	case "!!null":
		b.WriteString("null")
	case "!!bool":
		fmt.Fprint(b, n.Value == "true" || n.Value == "True" || n.Value == "TRUE")
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			b.WriteString(n.Value)
			return
		}
		var x float64
		if err := n.Decode(&x); err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			d.faultAt(n, path, "write a number such as 20 or 0.5", "%s is no number", quote(n.Value))
			return
		}
		b.WriteString(strconv.FormatFloat(x, 'g', -1, 64))
	default:
		d.text(b, n.Value)
	}
}

// text writes a JSON string. The text of a file is valid UTF-8, so that
// encoding it cannot fail.
func (d *decoder) text(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err == nil {
		b.Truncate(b.Len() - 1) // the newline
	}
}
