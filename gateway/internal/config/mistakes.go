package config

import (
	"fmt"
	"regexp"
	"strings"
)

// Each function here looks for one common mistake in the text of a file that the
// YAML library has refused, at or just above the line it named (from 1).

// around yields the lines in question, the nearest first, without comments and
// blank ones.
func around(lines []string, near int, visit func(i int, s string) bool) {
	for _, i := range []int{near, near - 1, near + 1, near - 2} {
		if i < 1 || i > len(lines) {
			continue
		}
		if t := strings.TrimSpace(lines[i-1]); t != "" && t[0] != '#' && visit(i, lines[i-1]) {
			return
		}
	}
}

// indent finds a line from near on that goes back to a column at which nothing
// began, or that is indented below a line that already has its value.
func indent(lines []string, near int) (Fault, bool) {
	var levels []int // the columns at which something above began
	value := false   // the line above has its value on it
	open := 0        // brackets
	for i, s := range lines {
		t := strings.TrimLeft(s, " ")
		if t == "" || t[0] == '#' || strings.HasPrefix(t, "---") {
			continue
		}
		inside := open > 0
		if open = max(open+brackets(t), 0); inside {
			continue
		}
		n := len(s) - len(t)
		if len(levels) == 0 {
			levels = []int{n}
		}
		deepest := levels[len(levels)-1]
		if n < levels[0] && i+1 >= near {
			return Fault{Line: i + 1, Col: n + 1,
				Problem: fmt.Sprintf("is indented by %d spaces, but the file begins with %d", n, levels[0]),
				Remedy:  "indent both alike, best by none"}, true
		}
		if n > deepest && value && i+1 >= near {
			return Fault{Line: i + 1, Col: n + 1,
				Problem: fmt.Sprintf("is indented by %d spaces, below a line that already has a value", n),
				Remedy:  fmt.Sprintf("indent it by %d like that line", deepest)}, true
		}
		for len(levels) > 1 && n < levels[len(levels)-1] {
			levels = levels[:len(levels)-1]
		}
		if top := levels[len(levels)-1]; n > top {
			if n < deepest && i+1 >= near {
				return Fault{Line: i + 1, Col: n + 1,
					Problem: fmt.Sprintf("is indented by %d spaces, but nothing above begins there", n),
					Remedy:  fmt.Sprintf("indent it by %d or by %d, as the lines above", top, deepest)}, true
			}
			levels = append(levels, n)
		}
		for strings.HasPrefix(t, "- ") { // an item begins a level of its own after the dash
			rest := strings.TrimLeft(t[1:], " ")
			n += len(t) - len(rest)
			levels, t = append(levels, n), rest
		}
		value = hasValue.MatchString(t)
	}
	return Fault{}, false
}

// brackets counts how many more are opened than closed on a line.
func brackets(s string) int {
	return strings.Count(s, "[") + strings.Count(s, "{") - strings.Count(s, "]") - strings.Count(s, "}")
}

var hasValue = regexp.MustCompile(`^[A-Za-z0-9_-]+:\s+[A-Za-z0-9"'/.\[{]`)

var keyNoSpace = regexp.MustCompile(`^\s*(?:- )?([A-Za-z_][A-Za-z0-9_-]*):([^\s/].*)$`)

// noSpace finds name:value.
func noSpace(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		m := keyNoSpace.FindStringSubmatchIndex(s)
		if m == nil {
			return false
		}
		name, value := s[m[2]:m[3]], s[m[4]:m[5]]
		f, ok = Fault{Line: i, Col: m[3] + 1,
			Problem: fmt.Sprintf("no space after the colon of %s", clip(name)),
			Remedy:  fmt.Sprintf("write %s: %s", clip(name), clip(value))}, true
		return true
	})
	return f, ok
}

var oddStart = regexp.MustCompile("^\\s*(?:- )?[A-Za-z0-9_-]+:\\s+([%@`*&!|>{\\[\"'].*)$")

// badStart finds a value that begins with a character YAML keeps for itself.
func badStart(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		m := oddStart.FindStringSubmatchIndex(s)
		if m == nil || !strings.ContainsRune("%@`*&!", rune(s[m[2]])) {
			return false
		}
		f, ok = Fault{Line: i, Col: m[2] + 1,
			Problem: fmt.Sprintf("the value begins with %c, which YAML keeps for itself", s[m[2]]),
			Remedy:  "put the value in quotes: " + quote(strings.TrimSpace(s[m[2]:m[3]]))}, true
		return true
	})
	return f, ok
}

var nestedColon = regexp.MustCompile(`^(\s*(?:- )?)([A-Za-z0-9_-]+):\s+([^"'\[{#]*:\s.*)$`)

var flowItem = regexp.MustCompile(`[\[,]\s*((?:[A-Z]+ )?[^\s"'\[\]{},]*/[^"'\[\],]*\{[^"'\[\],]*?)\s*[\],]`)

// braces finds a pattern with a wildcard that stands in a list without quotes.
// It looks from near on, because the library names the line on which the group
// around the list begins.
func braces(lines []string, near int) (Fault, bool) {
	for i := max(near, 1); i <= len(lines); i++ {
		s := lines[i-1]
		m := flowItem.FindStringSubmatchIndex(s)
		if m == nil || strings.HasPrefix(strings.TrimSpace(s), "#") {
			continue
		}
		return Fault{Line: i, Col: m[2] + 1,
			Problem: "a pattern with { } stands in a list without quotes",
			Remedy:  "put it in quotes: " + quote(s[m[2]:m[3]])}, true
	}
	return Fault{}, false
}

// twoColons finds name: value with a colon and a space in the value.
func twoColons(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		m := nestedColon.FindStringSubmatchIndex(s)
		if m == nil {
			return false
		}
		name, value := s[m[4]:m[5]], strings.TrimSpace(s[m[6]:m[7]])
		f, ok = Fault{Line: i, Col: m[6] + 1,
			Problem: fmt.Sprintf("two fields on one line: %s", quote(s[m[4]:])),
			Remedy:  fmt.Sprintf("move %s to the next line, indented, or put it in quotes: %s: %s", quote(value), clip(name), quote(value))}, true
		return true
	})
	return f, ok
}

// unclosed finds a bracket or a quote that is still open at the end of the file.
func unclosed(lines []string, _ int) (Fault, bool) {
	var open []mark
	for i, s := range lines {
		open = scanOpen(open, s, i+1)
	}
	if len(open) == 0 {
		return Fault{}, false
	}
	last := open[len(open)-1]
	closing := map[byte]string{'[': "]", '{': "}", '"': `"`, '\'': "'"}[last.c]
	return Fault{Line: last.line, Col: last.col,
		Problem: fmt.Sprintf("%c is opened here and not closed", last.c),
		Remedy:  "close it with " + closing}, true
}

// mark is an open bracket or quote and its place.
type mark struct {
	c         byte
	line, col int
}

// scanOpen follows brackets and quotes through a line.
func scanOpen(open []mark, s string, line int) []mark {
	for i := 0; i < len(s); i++ {
		c := s[i]
		n := len(open)
		if n > 0 && (open[n-1].c == '"' || open[n-1].c == '\'') {
			if c == '\\' && open[n-1].c == '"' {
				i++
			} else if c == open[n-1].c {
				open = open[:n-1]
			}
			continue
		}
		begins := i == 0 || strings.IndexByte(" [{,:-", s[i-1]) >= 0
		switch {
		case c == '#' && (i == 0 || s[i-1] == ' '):
			return open
		case c == '[' || c == '{' || begins && (c == '"' || c == '\''):
			open = append(open, mark{c, line, i + 1})
		case (c == ']' || c == '}') && n > 0:
			open = open[:n-1]
		}
	}
	return open
}

var variable = regexp.MustCompile(`\$\{?[A-Za-z_][A-Za-z0-9_]*\}?`)

// environment finds ${NAME}, which other programs replace.
func environment(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		at := variable.FindStringIndex(s)
		if ok = at != nil; ok {
			f = Fault{Line: i, Col: at[0] + 1, Problem: clip(s[at[0]:at[1]]) + ": environment variables are not replaced here", Remedy: "write the value itself"}
		}
		return ok
	})
	return f, ok
}

var dashNoSpace = regexp.MustCompile(`^(\s*)-([A-Za-z].*)$`)

// dash finds -name: value, which is no list item.
func dash(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		m := dashNoSpace.FindStringSubmatchIndex(s)
		if ok = m != nil; ok {
			f = Fault{Line: i, Col: m[3] + 1, Problem: "no space after the dash", Remedy: "write - " + clip(s[m[4]:m[5]])}
		}
		return ok
	})
	return f, ok
}

var (
	listItem = regexp.MustCompile(`^(\s*)- `)
	noColon  = regexp.MustCompile(`^(\s*)([^\s:#-][^:#]*)$`)
	deeper   = regexp.MustCompile(`^(\s*)\S`)
)

// bare finds a line that has neither dash nor colon: a list item without its
// dash below others, or the name of a group without its colon.
func bare(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		plain := listItem.FindStringSubmatch(s) == nil && !strings.Contains(s, ": ") && !strings.HasSuffix(strings.TrimSpace(s), ":")
		width := len(s) - len(strings.TrimLeft(s, " "))
		if !plain || strings.ContainsAny(s, "[]{}\"'") {
			return false
		}
		if i > 1 {
			if m := listItem.FindStringSubmatch(lines[i-2]); m != nil && len(m[1]) == width {
				f, ok = Fault{Line: i, Col: width + 1, Problem: "the items of this list begin with a dash, but this line does not", Remedy: "write - " + clip(s[width:])}, true
				return true
			}
		}
		if i < len(lines) && noColon.MatchString(s) {
			if m := deeper.FindStringSubmatch(lines[i]); m != nil && len(m[1]) > width {
				f, ok = Fault{Line: i, Col: width + 1, Problem: "a group of fields follows, but there is no colon", Remedy: "write " + clip(strings.TrimSpace(s)) + ":"}, true
			}
		}
		return ok
	})
	return f, ok
}
