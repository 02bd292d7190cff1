// Package jsontree is the JSON front of package setting: it makes a tree of a JSON document.
package jsontree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// mostValues bounds the values of a document, because each takes far more memory than text. It is
// enough for 10,000 rules with every setting.
const mostValues = 250_000

// Parse makes a tree of JSON. A key whose value is null counts as left out. Text that
// is no JSON is one fault in the list, and the tree is nil then.
func Parse(data []byte, faults *fault.List) *setting.Node {
	return newParser(data).parse(faults)
}

// ParseWithNull is Parse for what people write, of at most so many values. It keeps a key whose value
// is null. So a decoder says that it is unknown, is written twice, or has no value.
func ParseWithNull(data []byte, most int, faults *fault.List) *setting.Node {
	p := newParser(data)
	p.most, p.nulls = most, true
	return p.parse(faults)
}

// parser reads the tokens of package json, and knows where each begins.
type parser struct {
	data []byte
	dec  *json.Decoder
	at   int         // the next byte that now does not count
	now  fault.Place // of the byte at
	n    int         // values so far
	path fault.Path  // of what is wrong

	most  int  // values that there may be
	nulls bool // keep keys whose value is null
}

func newParser(data []byte) *parser {
	p := &parser{data: data, dec: json.NewDecoder(bytes.NewReader(data)), now: fault.Place{Line: 1, Col: 1}, most: mostValues}
	p.dec.UseNumber()
	return p
}

func (p *parser) parse(faults *fault.List) *setting.Node {
	if !utf8.Valid(p.data) {
		faults.AddFault(p.broken(fault.New("the text has bytes that are not UTF-8", "save the text as UTF-8")))
		return nil
	}
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

func (p *parser) broken(err error) fault.Fault {
	var f fault.Fault
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &f):
		f.Path = p.path
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
func (p *parser) advance(to int) {
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
func (p *parser) place() fault.Place {
	to := int(p.dec.InputOffset())
	for to < len(p.data) && bytes.IndexByte([]byte(" \t\r\n,:"), p.data[to]) >= 0 {
		to++
	}
	p.advance(to)
	return p.now
}

func (p *parser) value(depth int) (*setting.Node, error) {
	n := &setting.Node{Place: p.place()}
	if depth > setting.MaxDepth {
		return nil, fault.New(fmt.Sprintf("is nested more than %d levels deep", setting.MaxDepth), "no setting is that deep")
	}
	if p.n++; p.n > p.most {
		return nil, fault.New(fmt.Sprintf("is value number %d", p.n), fmt.Sprintf("write at most %d in one document", p.most))
	}
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case bool:
		n.Kind, n.Text = setting.Bool, strconv.FormatBool(t)
	case json.Number:
		n.Kind, n.Text = setting.Number, t.String()
	case string:
		n.Kind, n.Text = setting.Text, t
	case json.Delim:
		if n.Kind = setting.List; t == '{' {
			n.Kind = setting.Group
		}
		return n, p.inside(n, depth)
	}
	return n, nil
}

// token reads a token. A text with half a surrogate pair would be read as another text, and two
// different texts as the same.
func (p *parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if _, text := t.(string); text && hasHalfPair(p.data[p.at:p.dec.InputOffset()]) {
		return nil, fault.New("a text has half of a surrogate pair", `write both halves, as in "\ud83d\ude00"`)
	}
	return t, err
}

// hasHalfPair reports whether the JSON of a text escapes half of a surrogate pair.
func hasHalfPair(text []byte) bool {
	unit := func(i int) rune {
		if i+6 > len(text) || text[i] != '\\' || text[i+1] != 'u' {
			return 0
		}
		u, _ := strconv.ParseUint(string(text[i+2:i+6]), 16, 16) // the decoder has read it already
		return rune(u)
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case !utf16.IsSurrogate(u):
			i++ // what is escaped
		case utf16.DecodeRune(u, unit(i+6)) == utf8.RuneError:
			return true
		default:
			i += 11
		}
	}
	return false
}

// inside reads the items of a list or the members of a group, and its end.
func (p *parser) inside(n *setting.Node, depth int) error {
	for p.dec.More() {
		var m setting.Member
		if n.Kind == setting.Group {
			m.Place = p.place()
			t, err := p.token()
			if err != nil {
				return err
			}
			m.Key, _ = t.(string)
		}
		v, err := p.value(depth + 1)
		switch {
		case err != nil && n.Kind == setting.List:
			p.path = append(fault.Path{}.Index(len(n.Items)), p.path...)
			return err
		case err != nil:
			p.path = append(fault.Path{m.Key}, p.path...)
			return err
		case n.Kind == setting.List:
			n.Items = append(n.Items, v)
		case v.Kind != setting.Null || p.nulls:
			m.Value = v
			n.Members = append(n.Members, m)
		}
	}
	p.place() // of another token, where the end is missing
	_, err := p.dec.Token()
	return err
}
