package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// parseYAML turns text into the root mapping of its one document, or says what
// is wrong with it as YAML.
func parseYAML(file string, data []byte) (*yaml.Node, []Fault) {
	fault := func(line, col int, problem, remedy string) (*yaml.Node, []Fault) {
		return nil, []Fault{{File: file, Line: max(line, 1), Col: max(col, 1), Problem: problem, Remedy: remedy}}
	}
	if len(data) > MaxSize {
		return fault(1, 1, fmt.Sprintf("the file is larger than %d bytes", MaxSize), "a configuration is a few kilobytes; is this the right file?")
	}
	if line, col, what := badText(data); what != "" {
		return fault(line, col, what, "save the file as plain UTF-8 text")
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if err == nil && len(doc.Content) > 0 && doc.Content[0].ShortTag() == "!!null" || errors.Is(err, io.EOF) {
		return fault(1, 1, "the file says nothing", "the least it needs is:\n"+Minimum+"weir init writes a commented file to start from")
	}
	if err != nil {
		return nil, explain(file, string(data), err)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return fault(root.Line, root.Column, "the file is "+describeNode(root)+", not fields", "begin with:\n"+strings.TrimSuffix(Minimum, "\n"))
	}
	if n := tooDeep(root, MaxDepth); n != nil {
		return fault(n.Line, n.Column, fmt.Sprintf("is nested more than %d levels deep", MaxDepth), "no field is that deep; check the brackets")
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		return fault(second.Line, second.Column, "a second document begins here (---)", "write one document in a file")
	} else if !errors.Is(err, io.EOF) {
		return nil, explain(file, string(data), err)
	}
	return root, nil
}

// Minimum is the shortest file that runs.
const Minimum = `  upstreams:
    app:
      targets: [http://127.0.0.1:3000]
  routes:
    - match: [/]
      upstream: app
`

// badText finds bytes that are no text: the library gives no line for them.
func badText(data []byte) (line, col int, what string) {
	line, col = 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, col, fmt.Sprintf("byte %#02x is no UTF-8 text", data[i])
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f:
			return line, col, fmt.Sprintf("control character %#02x in the text", r)
		case r == '\n':
			line, col = line+1, 0
		}
		i += size
		col++
	}
	return 0, 0, ""
}

// tooDeep returns the first node below depth levels, or nil. Aliases are not
// followed: the decoder goes only as deep as the types do.
func tooDeep(n *yaml.Node, depth int) *yaml.Node {
	if depth < 0 {
		return n
	}
	for _, c := range n.Content {
		if deep := tooDeep(c, depth-1); deep != nil {
			return deep
		}
	}
	return nil
}

var libraryLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// explain rewrites an error of the YAML library. The library names a line near
// the mistake and the state of its parser; what a person did is nearly always
// one of a few things that can be seen in the text.
func explain(file, text string, err error) []Fault {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	if faults := tabs(file, lines); len(faults) > 0 {
		return faults
	}
	m := libraryLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	near, message := 1, err.Error()
	if m != nil {
		near, _ = strconv.Atoi(m[1])
		message = m[2]
	}
	near = min(max(near, 1), len(lines))
	if name, ok := strings.CutPrefix(message, "unknown anchor '"); ok {
		name = strings.TrimSuffix(name, "' referenced")
		line, col := find(lines, "*"+name)
		return []Fault{{File: file, Line: line, Col: col, Problem: "the alias *" + clip(name) + " refers to no anchor", Remedy: "write &" + clip(name) + " before the value it stands for, or put a text that begins with * in quotes"}}
	}
	looks := []func([]string, int) (Fault, bool){dash, environment, noSpace, badStart, twoColons, unclosed, bare, indent}
	if strings.HasPrefix(message, "did not find expected") && !strings.Contains(message, ",") {
		// The library names the line where the group of fields begins, so that
		// the mistake may stand far below.
		looks = []func([]string, int) (Fault, bool){dash, indent, noSpace, badStart, twoColons, unclosed, bare}
	}
	if strings.HasPrefix(message, "did not find expected ','") {
		looks = slices.Insert(looks, 0, braces)
	}
	for _, look := range looks {
		if f, ok := look(lines, near); ok {
			f.File = file
			return []Fault{f}
		}
	}
	if strings.HasPrefix(message, "did not find expected ','") {
		return []Fault{{File: file, Line: near, Col: 1, Problem: "a comma or a closing bracket is missing in what begins on this line", Remedy: "write [a, b] for a list, {name: value, name: value} for fields"}}
	}
	return []Fault{{File: file, Line: near, Col: 1, Problem: "is no valid YAML: " + message, Remedy: "check this line and the one before it: name: value, with the same indent as its neighbours"}}
}

// tabs reports every line that is indented with a tab.
func tabs(file string, lines []string) []Fault {
	var faults []Fault
	for i, s := range lines {
		space := s[:len(s)-len(strings.TrimLeft(s, " \t"))]
		if at := strings.IndexByte(space, '\t'); at >= 0 && len(space) < len(s) {
			faults = append(faults, Fault{File: file, Line: i + 1, Col: at + 1, Problem: "the line is indented with a tab", Remedy: "indent with spaces, two for each level"})
		}
	}
	return faults
}

// find returns the place of the first line that holds s.
func find(lines []string, s string) (line, col int) {
	for i, l := range lines {
		if at := strings.Index(l, s); at >= 0 {
			return i + 1, at + 1
		}
	}
	return 1, 1
}

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
