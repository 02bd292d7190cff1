package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/jsontree"
	"github.com/weir-go/weir/internal/setting"
	"go.yaml.in/yaml/v3"
)

// Bounds of the input, besides setting.MaxDepth.
const (
	MaxSize   = 1 << 20 // bytes in a file
	maxValues = 50_000  // keys and values, after aliases are followed
)

// Load reads and checks the file at path. A file that cannot be read is an
// ordinary error; one that is wrong is a [*fault.Faults].
func Load(path string) (*Config, error) {
	data, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("config %s: no such file; weir init %s writes one to start from", path, path)
	}
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("config %s: is a directory; name a file in it, such as %s", path, filepath.Join(path, "weir.yaml"))
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, data)
}

// ReadFile reads a file up to [MaxSize] and one byte more. That byte tells the parsers that the
// file is too large. A pipe may be read too, as long as somebody writes to it: nothing waits for that.
func ReadFile(path string) ([]byte, error) {
	flags, pipe := os.O_RDONLY, false
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		flags, pipe = flags|syscall.O_NONBLOCK, true
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if pipe {
		_ = f.SetReadDeadline(time.Now().Add(pipePatience)) // where it cannot be set, reads do not wait either
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if pipe && (errors.Is(err, os.ErrDeadlineExceeded) || err == nil && len(data) == 0) {
		return nil, fmt.Errorf("%s is a pipe, and nobody has written all of it within %v; name a file", path, pipePatience)
	}
	return data, err
}

// pipePatience is how long a pipe may take to say everything.
const pipePatience = 5 * time.Second

// Parse reads and checks a configuration. name stands before each fault, and
// files named in the configuration are looked up relative to its directory.
func Parse(name string, data []byte) (*Config, error) {
	faults := &fault.List{File: name}
	env := newEnvironment()
	root := parseText(data, faults, env)
	if root == nil {
		return nil, faults.Err("")
	}
	cfg := &Config{name: name, root: root, env: env}
	setting.DecodePlain(root, cfg, faults)
	checkMeaning(cfg, faults)
	cfg.noted = faults.Notes()
	faults.Sort()
	translateNames(faults.All())
	for i := range faults.All() {
		env.hide(&faults.All()[i])
	}
	if err := faults.Err(""); err != nil {
		return nil, err
	}
	return cfg, nil
}

// ParseDocument makes a tree of any YAML or JSON file, within the same bounds as [Parse]. The list
// has the faults of the document; if there are any the tree is nil. The list knows where everything
// in the tree stands.
func ParseDocument(name string, data []byte) (*setting.Node, *fault.List) {
	faults := &fault.List{File: name}
	if len(data) <= MaxSize && json.Valid(data) { // as it is, even where YAML differs
		return jsontree.Parse(data, faults), faults
	}
	return parseText(data, faults, nil), faults
}

// Minimum is the shortest file that runs.
const Minimum = `  upstreams:
    app:
      targets: [http://127.0.0.1:3000]
  routes:
    - match: [/]
      upstream: app
`

// parseText makes a tree of the one document in a text. If the text has faults as YAML, the list
// has them and the tree is nil. env is nil where variables are not replaced.
func parseText(data []byte, faults *fault.List, env *environment) *setting.Node {
	fail := func(line, col int, problem, instead string) *setting.Node {
		faults.AddFault(fault.Fault{Place: fault.Place{Line: max(line, 1), Col: max(col, 1)}, Problem: problem, Instead: instead})
		return nil
	}
	if len(data) > MaxSize {
		return fail(1, 1, fmt.Sprintf("the file is larger than %d bytes", MaxSize), "a configuration is a few kilobytes; is this the right file?")
	}
	if line, col, what := badText(data); what != "" {
		return fail(line, col, what, "save the file as plain UTF-8 text")
	}
	t := tree{faults: faults, values: maxValues, env: env}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) && json.Valid(data) { // YAML knows fewer escapes
		return t.ofJSON(data)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if err == nil && saysNothing(&doc) || errors.Is(err, io.EOF) {
		return fail(1, 1, "the file says nothing", "the least it needs is:\n"+Minimum+"weir init writes a commented file to start from")
	}
	for err == nil {
		var next yaml.Node
		if err = dec.Decode(&next); err == nil && !saysNothing(&next) { // as behind a last line ---
			return fail(next.Line, next.Column, "a second document begins here (---)", "write one document in a file")
		}
	}
	if !errors.Is(err, io.EOF) {
		at, problem, instead := explain(string(data), err)
		return fail(at.Line, at.Col, problem, instead)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return fail(root.Line, root.Column, "the file holds no fields", "begin with:\n"+strings.TrimSuffix(Minimum, "\n"))
	}
	n := t.node(nil, root, 0)
	if t.broken {
		return nil
	}
	faults.Where = n.Where
	return n
}

// saysNothing reports whether a document has no value.
func saysNothing(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null"
}

// badText finds bytes that are no text: the library gives no line for them.
func badText(data []byte) (line, col int, what string) {
	line, col = 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, col, fmt.Sprintf("byte %#02x is not UTF-8 text", data[i])
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r < 0xa0 && r != nextLine:
			return line, col, fmt.Sprintf("control character %#02x in the text", r)
		case r == byteOrderMark && i > 0 || r == 0xfffe || r == 0xffff:
			return line, col, fmt.Sprintf("the character %U, which does not show, in the text", r)
		case r == '\n':
			line, col = line+1, 0
		}
		i += size
		col++
	}
	return 0, 0, ""
}

const (
	nextLine      = '\u0085' // a line ends here in YAML
	byteOrderMark = '\ufeff' // some editors begin a file with it
)

// inBrackets is a variable in a list or in fields in brackets, without quotes.
var inBrackets = regexp.MustCompile(`[\[{,][^"'#]*\$\{([A-Za-z_][A-Za-z0-9_]*)`)

// foreignBlock is the beginning of a block in nginx, Caddy and HAProxy.
var foreignBlock = regexp.MustCompile(`^\s*[A-Za-z@*~:/][^:#"'\[\]{}]*\s\{\s*$|^(?:http|server|events|stream)\s*\{|^(?:frontend|backend|listen|defaults|global)(?:\s+[\w-]+)?\s*$`)

// likeJSON is the beginning of a text that is meant to be JSON.
var likeJSON = regexp.MustCompile(`^\x{feff}?\s*\{\s*"`)

var libraryLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// explain says what the YAML library has against a text. The library names a line
// near the mistake and the state of its parser.
func explain(text string, err error) (at fault.Place, problem, instead string) {
	if likeJSON.MatchString(text) {
		var faults fault.List
		if jsontree.Parse([]byte(strings.TrimPrefix(text, string(byteOrderMark))), &faults); faults.Len() > 0 {
			f := faults.All()[0]
			return f.Place, "is not valid JSON: " + f.Problem, "look for a missing comma or bracket here and before"
		}
	}
	depth := 0 // of brackets, where tabs are spaces
	for i, line := range strings.Split(text, "\n") {
		space := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if col := strings.IndexByte(space, '\t'); col >= 0 && len(space) < len(line) && depth <= 0 {
			return fault.Place{Line: i + 1, Col: col + 1}, "the line is indented with a tab", "indent with spaces, two for each level"
		}
		brackets, _ := inLine(line)
		depth += brackets
	}
	for i, line := range strings.Split(text, "\n") {
		if foreignBlock.MatchString(line) {
			return fault.Place{Line: i + 1, Col: 1}, "the line is in the syntax of another product, not in YAML",
				"write a name and a colon. What belongs to it stands on lines that are indented further"
		}
		if trimmed := strings.TrimRight(line, " \t\r"); strings.HasSuffix(trimmed, ";") && !strings.Contains(line, "#") {
			return fault.Place{Line: i + 1, Col: len(trimmed)}, "the line ends with a semicolon", "remove it; in YAML a value ends with its line"
		}
	}
	m := libraryLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	line, _ := strconv.Atoi(m[1])
	if strings.HasPrefix(m[2], "did not find expected") { // the library names where the group begins
		line = afterReadable(text, line)
	}
	at = fault.Place{Line: min(max(line, 1), 1+strings.Count(text, "\n")), Col: 1}
	switch message := m[2]; {
	case strings.HasPrefix(message, "did not find expected ','"):
		for i, line := range strings.Split(text, "\n") {
			if name := inBrackets.FindStringSubmatch(line); name != nil {
				return fault.Place{Line: i + 1, Col: 1 + strings.Index(line, "${")}, "a variable stands inside brackets without quotes",
					`write it in quotes, as in "${` + setting.Clip(name[1]) + `}"`
			}
		}
		return at, "a comma or a closing bracket is missing in what begins on this line",
			`write [a, b] for a list and {name: value, name: value} for fields. Texts with brackets stand in quotes: ["/v1/{id}"]`
	case strings.HasPrefix(message, "unknown anchor"):
		name, _, _ := strings.Cut(strings.TrimPrefix(message, "unknown anchor '"), "'")
		if i := strings.Index(text, "*"+name); i >= 0 {
			at = fault.Place{Line: 1 + strings.Count(text[:i], "\n"), Col: i - strings.LastIndexByte(text[:i], '\n')}
		}
		return at, "the alias *" + setting.Clip(name) + " refers to no anchor",
			"write &" + setting.Clip(name) + " before the value that it stands for. A text that begins with * stands in quotes"
	case strings.HasPrefix(message, "found unexpected end of stream"):
		for i, line := range strings.Split(text, "\n") {
			if _, open := inLine(line); open {
				at.Line = i + 1
				break
			}
		}
		return at, "a text in quotes has no end", "close the quote that is opened on this line"
	case strings.HasPrefix(message, "mapping values are not allowed"):
		return at, "a key stands where none can be",
			`here and on the line before, write a space after each colon. Texts with ": " stand in quotes, and neighbours have the same indent`
	case strings.HasPrefix(message, "found character that cannot start any token"):
		return at, "a text begins with a character that YAML keeps for itself", "put the text in quotes"
	default:
		return at, "is not valid YAML: " + message, "check this line and the one before it. Each is written name: value, with the same indent as its neighbours"
	}
}

// inLine returns how many more brackets a line opens than it closes, and whether a text in quotes is
// open at its end. Quotes and brackets in a comment do not count, and neither does an apostrophe in a word.
func inLine(line string) (brackets int, open bool) {
	var quote, before byte = 0, ' '
	for i := 0; i < len(line); i++ {
		b := line[i]
		switch {
		case quote == '"' && b == '\\':
			i++
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '#' && (before == ' ' || before == '\t'):
			return brackets, false
		case (b == '"' || b == '\'') && strings.IndexByte(" \t[{,:'", before) >= 0: // 'it''s' is two of them
			quote = b
		case b == '[' || b == '{':
			brackets++
		case b == ']' || b == '}':
			brackets--
		}
		before = b
	}
	return brackets, quote != 0
}

// mostRead bounds the bytes that afterReadable parses.
const mostRead = 4 << 20

// afterReadable returns the line after the longest beginning of text that is YAML. The parser
// stops there. Where it finds none it returns the line after line, because the library counts from 0.
func afterReadable(text string, line int) int {
	text = strings.TrimRight(text, "\n")
	lines := strings.SplitAfter(text, "\n")
	read := &lineReader{left: slices.Clone(lines)}
	var doc yaml.Node
	_ = yaml.NewDecoder(read).Decode(&doc) // it reads little more than the line where it stops
	n, size := len(lines), len(text)
	for shorter := len(lines) - len(read.left) - 1; n > max(shorter, 0); n-- {
		size -= len(lines[n-1])
	}
	for left := mostRead; n > 0 && left > 0; n-- {
		if yaml.Unmarshal([]byte(text[:size]), &doc) == nil {
			return n + 1
		}
		left -= size
		size -= len(lines[n-1])
	}
	return line + 1
}

// lineReader gives a text line by line, so that left tells how far somebody has read.
type lineReader struct{ left []string }

// Read implements io.Reader.
func (r *lineReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.left[0])
	if r.left[0] = r.left[0][n:]; r.left[0] == "" {
		r.left = r.left[1:]
	}
	return n, nil
}

// tree makes nodes of those of the YAML library, or of JSON.
type tree struct {
	faults *fault.List
	values int  // left of maxValues
	full   bool // that has been reported
	env    *environment
	broken bool // what is wrong is not only a value
}

func (t *tree) fail(p fault.Place, at fault.Path, problem, instead string) {
	t.broken = true
	t.faults.AddFault(fault.Fault{Path: at, Place: p, Problem: problem, Instead: instead})
}

// ofJSON returns the tree of a text that is JSON, nil if it is too large or too deep.
func (t *tree) ofJSON(data []byte) *setting.Node {
	n := jsontree.ParseWithNull(data, maxValues, t.faults)
	if n != nil {
		t.variables(nil, n)
	}
	if t.broken {
		return nil
	}
	return n
}

// variables puts them into the texts of a tree.
func (t *tree) variables(at fault.Path, n *setting.Node) {
	if !t.count(n.Place, at) {
		return
	}
	if n.Kind == setting.Text {
		t.expand(at, n)
	}
	for i, item := range n.Items {
		t.variables(at.Index(i), item)
	}
	for _, m := range n.Members {
		t.values--
		t.variables(at.At(m.Key), m.Value)
	}
}

// count counts a value, and reports whether there may be as many.
func (t *tree) count(p fault.Place, at fault.Path) bool {
	if t.values--; t.values < 0 && !t.full {
		t.full = true
		t.fail(p, at, fmt.Sprintf("the file holds more than %d values", maxValues), "write fewer, or repeat fewer aliases")
	}
	return t.values >= 0
}

// node returns the tree of n. What stands behind an alias is told where it is written.
func (t *tree) node(at fault.Path, n *yaml.Node, depth int) *setting.Node {
	out := &setting.Node{Place: fault.Place{Line: n.Line, Col: n.Column}, Text: n.Value}
	if !t.count(out.Place, at) {
		return out
	}
	if depth > setting.MaxDepth { // or an alias stands inside its own value
		t.fail(out.Place, at, fmt.Sprintf("is nested more than %d levels deep", setting.MaxDepth), "no field is that deep; check the brackets")
		t.values, t.full = 0, true // once is enough
		return out
	}
	switch n.Kind {
	case yaml.AliasNode:
		return t.node(at, n.Alias, depth)
	case yaml.MappingNode:
		out.Kind = setting.Group
		for i := 0; i+1 < len(n.Content) && t.values >= 0; i += 2 {
			t.member(at, out, n.Content[i], n.Content[i+1], depth)
		}
	case yaml.SequenceNode:
		out.Kind = setting.List
		for i, item := range n.Content {
			if t.values < 0 {
				break
			}
			out.Items = append(out.Items, t.node(at.Index(i), item, depth+1))
		}
	default:
		out.Kind = kindOf(n)
		t.expand(at, out)
	}
	return out
}

func (t *tree) member(at fault.Path, group *setting.Node, key, value *yaml.Node, depth int) {
	t.values--
	p := fault.Place{Line: key.Line, Col: key.Column}
	switch {
	case key.Kind != yaml.ScalarNode:
		t.fail(p, at, "the key is not a plain name", "write name: value")
	case key.ShortTag() == "!!merge":
		t.fail(p, at, "merge keys (<<) are not supported", "write the fields out, or use an alias for a whole value")
	default:
		group.Members = append(group.Members, setting.Member{
			Key: key.Value, Place: p, Value: t.node(at.At(key.Value), value, depth+1),
		})
	}
}

func kindOf(n *yaml.Node) setting.Kind {
	switch n.ShortTag() {
	case "!!null":
		return setting.Null
	case "!!bool":
		return setting.Bool
	case "!!int", "!!float":
		return setting.Number
	}
	return setting.Text
}
