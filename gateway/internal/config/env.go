package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// environment puts variables into the values of a file, and keeps them out of messages.
type environment struct {
	lookup func(name string) (string, bool)
	left   int                  // bytes that values may still add
	values map[string]string    // by name, those that were put in
	at     map[fault.Place]bool // where one was put in
}

func newEnvironment() *environment {
	return &environment{lookup: os.LookupEnv, left: MaxSize, values: map[string]string{}, at: map[fault.Place]bool{}}
}

const envForms = "write ${NAME}, or ${NAME:-default}; a dollar before a brace is $${"

// envName is what a variable may be called.
var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand puts variables into the text of a scalar. A value that is put in is text or a number, and
// never read as YAML. A text with faults stays as it is.
func (t *tree) expand(at fault.Path, out *setting.Node) {
	if t.env == nil || !strings.Contains(out.Text, "$") {
		return
	}
	var b strings.Builder
	for rest := out.Text; ; {
		before, after, dollar := strings.Cut(rest, "$")
		b.WriteString(before)
		if !dollar {
			break
		}
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			rest = after[1:]
			continue
		case !strings.HasPrefix(after, "{"):
			if name := leadingName(after); name != "" {
				t.bare(at, out.Place, name)
			}
			b.WriteByte('$')
			rest = after
			continue
		}
		inside, behind, closed := strings.Cut(after[1:], "}")
		value, problem, instead := t.env.value(inside, closed)
		if problem != "" {
			out.FromEnv = true // the decoder passes it over
			t.faults.AddFault(fault.Fault{Path: at, Place: out.Place, Problem: problem, Instead: instead})
			return
		}
		b.WriteString(value)
		out.FromEnv = true
		rest = behind
	}
	out.Text = b.String()
	if !out.FromEnv {
		return
	}
	t.env.at[out.Place] = true
	if out.Kind = kindOf(&yaml.Node{Kind: yaml.ScalarNode, Value: out.Text}); out.Kind != setting.Number && out.Kind != setting.Bool {
		out.Kind = setting.Text
	}
}

// bare notes a variable without braces, which is not replaced.
func (t *tree) bare(at fault.Path, p fault.Place, name string) {
	t.faults.AddNote(fault.Fault{Path: at, Place: p,
		Problem: "$" + setting.Clip(name) + " is not replaced by a variable", Instead: "write ${" + setting.Clip(name) + "}, or $$ for a dollar"})
}

// leadingName returns the name that a text begins with, if it is written as variables are.
func leadingName(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
	if end < 0 {
		end = len(text)
	}
	if name := text[:end]; envName.MatchString(name) {
		return name
	}
	return ""
}

// value returns what stands for NAME or NAME:-default, or what is wrong with it.
func (e *environment) value(inside string, closed bool) (value, problem, instead string) {
	name, fallback, has := strings.Cut(inside, ":-")
	switch {
	case !closed:
		return "", "a ${ has no }", envForms
	case strings.Contains(inside, "${"):
		return "", "a variable stands inside another", envForms
	case !envName.MatchString(name):
		instead := envForms
		if lead := leadingName(name); lead != "" && len(lead) < len(name) {
			rest := strings.TrimLeft(name[len(lead):], ".:-?=+ ")
			switch {
			case lead == "env" && envName.MatchString(rest):
				instead = "write ${" + rest + "}"
			case rest != "":
				instead = "write ${" + setting.Clip(lead) + ":-" + setting.Clip(rest) + "}"
			}
		}
		return "", fmt.Sprintf("${%s} names no variable", setting.Clip(inside)), instead
	}
	value, set := e.lookup(name)
	switch {
	case value == "" && has:
		return fallback, "", ""
	case !set:
		return "", fmt.Sprintf("the environment has no variable %s", setting.Clip(name)), "set it, or write ${" + setting.Clip(name) + ":-default}"
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", fmt.Sprintf("the variable %s has characters that are not plain text, such as the end of a line", setting.Clip(name)), "set it to one line of text"
	}
	if e.left -= len(value); e.left < 0 {
		return "", fmt.Sprintf("variables put more than %d bytes into the file", MaxSize), "use fewer, or shorter ones"
	}
	e.values[name] = value
	return value, "", ""
}

// shortest is how many bytes a value has at least to be a secret.
const shortest = 4

// hide takes the values of variables out of what is said of a setting: they may be secret.
func (e *environment) hide(f *fault.Fault) {
	own := e.at[f.Place]
	for _, name := range e.longestFirst() {
		if value := e.values[name]; len(value) < shortest || !own && len(value) < 2*shortest {
			continue
		}
		var left bool
		if f.Problem, left = e.replace(f.Problem, name); left {
			f.Problem = "the value of ${" + name + "} will not do"
		}
		if f.Instead, left = e.replace(f.Instead, name); left {
			f.Instead = "write the value here to learn more"
		}
	}
	if own && !strings.Contains(f.Problem, "${") {
		f.Problem += ", from a variable"
	}
}

// hideIn is hide for a text that stands for itself, as in Changes. What repeats a part of a value is not shown.
func (e *environment) hideIn(text string) string {
	if e == nil {
		return text // there is no file
	}
	for _, name := range e.longestFirst() {
		if len(e.values[name]) < shortest {
			continue
		}
		var left bool
		if text, left = e.replace(text, name); left {
			return "…"
		}
	}
	return text
}

// replace writes ${NAME} for the value of a variable, and reports whether the text repeats a part of it even so.
func (e *environment) replace(text, name string) (hidden string, left bool) {
	value, reference := e.values[name], "${"+name+"}"
	quoted := strconv.Quote(value)
	for _, form := range []string{value, quoted[1 : len(quoted)-1], setting.Clip(value)} {
		text = strings.ReplaceAll(text, form, reference)
	}
	return text, leaks(strings.ReplaceAll(text, reference, ""), value)
}

// longestFirst returns the names of the variables, those with long values first: a short value
// may be a part of a long one.
func (e *environment) longestFirst() []string {
	names := make([]string, 0, len(e.values))
	for name := range e.values {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := len(e.values[b]) - len(e.values[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names
}

// leaks reports whether a text repeats a part of a value that is long enough to matter. Its
// case does not count, because advice on methods and hosts changes it. What begins like a URL
// says nothing by its scheme. Of a very long value both ends are looked for: a message repeats
// no more.
func leaks(text, value string) bool {
	const end = 2048
	if len(value) > 2*end {
		value = value[:end] + value[len(value)-end:]
	}
	if _, rest, ok := strings.Cut(value, "://"); ok {
		value = rest
	}
	text, value = fold(text), fold(value)
	window := min(max(len(value), shortest), 2*shortest)
	for i := 0; i+window <= len(value); i++ {
		if strings.Contains(text, value[i:i+window]) {
			return true
		}
	}
	return false
}

// fold returns a text in which letters that differ in their case alone are the same.
func fold(text string) string { return strings.ToLower(strings.ToUpper(text)) }
