package setting

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/weir-go/weir/internal/fault"
)

// Kind says what a [Node] is.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = iota
	Bool
	Number
	Text
	List
	Group
)

// Node is a value of a document: a scalar with its text, a list with items, or a group with members.
type Node struct {
	Kind Kind
	fault.Place
	Text    string
	Items   []*Node
	Members []Member
}

// Member is a key of a group, and its value.
type Member struct {
	Key   string
	Place fault.Place // of the key
	Value *Node
}

// MaxDepth is how many levels a document may have.
const MaxDepth = 32

// ParseJSON makes a tree of JSON. A key whose value is null counts as left out. Text that
// is no JSON is one fault in the list, and the tree is nil then.
func ParseJSON(data []byte, faults *fault.List) *Node {
	p := &jsonParser{data: data, dec: json.NewDecoder(bytes.NewReader(data)), now: fault.Place{Line: 1, Col: 1}}
	p.dec.UseNumber()
	n, err := p.value(0)
	if err == nil {
		p.place()
		if _, end := p.dec.Token(); !errors.Is(end, io.EOF) {
			err = fault.New("there is more text after the end of the value", "write one JSON value")
		}
	}
	if err != nil {
		faults.AddFault(p.broken(err))
		return nil
	}
	faults.Where = n.Where
	return n
}

// jsonParser reads the tokens of package json, and knows where each begins.
type jsonParser struct {
	data []byte
	dec  *json.Decoder
	at   int         // the next byte that now does not count
	now  fault.Place // of the byte at
}

func (p *jsonParser) broken(err error) fault.Fault {
	var f fault.Fault
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &f):
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		f = fault.Fault{Problem: "the text ends in the middle", Instead: "write valid JSON"}
	default:
		if errors.As(err, &syntax) {
			p.advance(int(syntax.Offset) - 1)
		}
		f = fault.Fault{Problem: err.Error(), Instead: "write valid JSON"}
	}
	f.Place = p.now
	return f
}

// advance moves the place to an offset.
func (p *jsonParser) advance(to int) {
	for ; p.at < min(to, len(p.data)); p.at++ {
		switch b := p.data[p.at]; {
		case b == '\n':
			p.now = fault.Place{Line: p.now.Line + 1, Col: 1}
		case utf8.RuneStart(b):
			p.now.Col++
		}
	}
}

// place returns where the next token begins.
func (p *jsonParser) place() fault.Place {
	to := int(p.dec.InputOffset())
	for to < len(p.data) && bytes.IndexByte([]byte(" \t\r\n,:"), p.data[to]) >= 0 {
		to++
	}
	p.advance(to)
	return p.now
}

func (p *jsonParser) value(depth int) (*Node, error) {
	n := &Node{Place: p.place()}
	if depth > MaxDepth {
		return nil, fault.New(fmt.Sprintf("is nested more than %d levels deep", MaxDepth), "no setting is that deep")
	}
	t, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case bool:
		n.Kind, n.Text = Bool, strconv.FormatBool(t)
	case json.Number:
		n.Kind, n.Text = Number, t.String()
	case string:
		n.Kind, n.Text = Text, t
	case json.Delim:
		if n.Kind = List; t == '{' {
			n.Kind = Group
		}
		return n, p.inside(n, depth)
	}
	return n, nil
}

// inside reads the items of a list or the members of a group, and its end.
func (p *jsonParser) inside(n *Node, depth int) error {
	for p.dec.More() {
		var m Member
		if n.Kind == Group {
			m.Place = p.place()
			t, err := p.dec.Token()
			if err != nil {
				return err
			}
			m.Key, _ = t.(string)
		}
		v, err := p.value(depth + 1)
		switch {
		case err != nil:
			return err
		case n.Kind == List:
			n.Items = append(n.Items, v)
		case v.Kind != Null:
			m.Value = v
			n.Members = append(n.Members, m)
		}
	}
	_, err := p.dec.Token()
	return err
}

// Get returns the value of a key, nil if there is none.
func (n *Node) Get(key string) *Node {
	for _, m := range n.Members {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// Has reports whether there is something at a path.
func (n *Node) Has(path fault.Path) bool {
	for _, step := range path {
		in := n.Get(step)
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Items) {
			in = n.Items[i]
		}
		if in == nil {
			return false
		}
		n = in
	}
	return true
}

// Where returns where the setting at a path stands, or the nearest thing around it. That
// is the value if it is short, else its key.
func (n *Node) Where(path fault.Path) fault.Place {
	at := n.Place
	for _, step := range path {
		next := (*Node)(nil)
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Items) {
			next = n.Items[i]
			at = next.Place
		}
		for _, m := range n.Members {
			if m.Key == step {
				next, at = m.Value, m.where()
				break
			}
		}
		if next == nil {
			return at
		}
		n = next
	}
	return at
}

// where is the place that a fault of the member points at.
func (m *Member) where() fault.Place {
	switch m.Value.Kind {
	case Bool, Number, Text:
		return m.Value.Place
	}
	return m.Place
}

// says is what a node is, for a message.
func (n *Node) says() string {
	switch n.Kind {
	case Group:
		return "a group of fields"
	case List:
		return "a list"
	case Number:
		return "a number"
	case Bool:
		return "true or false"
	case Null:
		return "empty"
	}
	return "the text " + quote(n.Text)
}

// quote quotes text from a document for a message, shortened.
func quote(s string) string { return strconv.Quote(Clip(s)) }

// Clip bounds what a message repeats of a document.
func Clip(s string) string {
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
