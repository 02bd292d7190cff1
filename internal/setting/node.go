package setting

import (
	"strconv"
	"strings"
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
	FromEnv bool // a part of the text comes from the environment: it may be any scalar
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

// inside returns what is one step inside the node, and its place; nil if there is nothing. An
// index may be without its brackets.
func (n *Node) inside(step string) (*Node, fault.Place) {
	if i, err := strconv.Atoi(strings.Trim(step, "[]")); err == nil && i >= 0 && i < len(n.Items) {
		return n.Items[i], n.Items[i].Place
	}
	for _, m := range n.Members {
		if m.Key == step {
			return m.Value, m.where()
		}
	}
	return nil, fault.Place{}
}

// Get returns the value of a key, nil if there is none.
func (n *Node) Get(key string) *Node {
	in, _ := n.inside(key)
	return in
}

// Has reports whether there is something at a path.
func (n *Node) Has(path fault.Path) bool { return n.At(path) != nil }

// At returns what stands at a path, nil if nothing does.
func (n *Node) At(path fault.Path) *Node {
	for _, step := range path {
		if n, _ = n.inside(step); n == nil {
			return nil
		}
	}
	return n
}

// Where returns where the setting at a path stands, or the nearest thing around it. That
// is the value if it is short, else its key.
func (n *Node) Where(path fault.Path) fault.Place {
	at := n.Place
	for _, step := range path {
		next, place := n.inside(step)
		if next == nil {
			break
		}
		n, at = next, place
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
