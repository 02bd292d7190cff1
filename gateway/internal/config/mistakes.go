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
	levels := []int{0} // the columns at which something above began
	value := false     // the line above has its value on it
	open := 0          // brackets
	for i, s := range lines {
		t := strings.TrimLeft(s, " ")
		if t == "" || t[0] == '#' || strings.HasPrefix(t, "---") {
			continue
		}
		inside := open > 0
		if open = max(open+brackets(t), 0); inside {
			continue
		}
		n, deepest := len(s)-len(t), levels[len(levels)-1]
		if n > deepest && value && i+1 >= near {
			return Fault{Line: i + 1, Col: n + 1,
				Problem: fmt.Sprintf("is indented by %d spaces, below a line that already has a value", n),
				Remedy:  fmt.Sprintf("indent it by %d like that line", deepest)}, true
		}
		for n < levels[len(levels)-1] {
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

// unclosed finds a bracket or a quote that is open at the end of its line.
func unclosed(lines []string, near int) (f Fault, ok bool) {
	around(lines, near, func(i int, s string) bool {
		open, at := openAt(s)
		if open == 0 {
			return false
		}
		closing := map[byte]string{'[': "]", '{': "}", '"': `"`, '\'': "'"}[open]
		f, ok = Fault{Line: i, Col: at + 1,
			Problem: fmt.Sprintf("%c is opened here and not closed", open),
			Remedy:  fmt.Sprintf("close it with %s", closing)}, true
		return true
	})
	return f, ok
}

// openAt returns the innermost bracket or quote that is open at the end of s, and
// where it stands; 0 if there is none.
func openAt(s string) (open byte, at int) {
	type mark struct {
		c  byte
		at int
	}
	var stack []mark
	for i := 0; i < len(s); i++ {
		c := s[i]
		if n := len(stack); n > 0 && (stack[n-1].c == '"' || stack[n-1].c == '\'') {
			if c == stack[n-1].c {
				stack = stack[:n-1]
			}
			continue
		}
		switch c {
		case '[', '{':
			stack = append(stack, mark{c, i})
		case '"', '\'':
			if i == 0 || strings.IndexByte(" [{,:-", s[i-1]) >= 0 {
				stack = append(stack, mark{c, i})
			}
		case ']', '}':
			if n := len(stack); n > 0 {
				stack = stack[:n-1]
			}
		case '#':
			if i > 0 && s[i-1] == ' ' && len(stack) == 0 {
				return 0, 0
			}
		}
	}
	if n := len(stack); n > 0 {
		return stack[n-1].c, stack[n-1].at
	}
	return 0, 0
}
