package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// describe says in words what a field of type t wants.
func describe(t reflect.Type, f field) string {
	words := kind(t, f)
	if f.example != "" && len(f.enum) == 0 && !strings.Contains(words, "such as") {
		words += ", such as " + f.example
	}
	return words
}

func kind(t reflect.Type, f field) string {
	switch {
	case len(f.enum) > 0:
		return "one of " + strings.Join(f.enum, ", ")
	case t == durationType:
		return "a duration such as 250ms or 10s"
	case t.Kind() == reflect.Pointer:
		return kind(t.Elem(), f)
	case t.Kind() == reflect.Slice:
		return "a list (lines that begin with -)"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "fields (name: value), indented below it"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String && f.form != "":
		return f.form
	case t.Kind() == reflect.String:
		return "a text"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// describeNode says what a node is instead.
func describeNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "empty"
	case "!!timestamp":
		return "a date"
	}
	return fmt.Sprintf("the text %s", quote(n.Value))
}

// quote quotes text from the file for a message, shortened.
func quote(s string) string { return strconv.Quote(clip(s)) }

// clip bounds what a message repeats of the file.
func clip(s string) string {
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

var plainScalar = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// flowScalar writes s so that it can stand inside [ ].
func flowScalar(s string) string {
	if plainScalar.MatchString(s) {
		return clip(s)
	}
	return quote(s)
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// badName says what is wrong with the name of a gate or an upstream. Names are
// metric labels and parts of paths, so they are kept plain.
func badName(name string) string {
	switch {
	case goodName.MatchString(name):
		return ""
	case name == "":
		return "the name is empty"
	case len(name) > 64:
		return fmt.Sprintf("the name is %d bytes long", len(name))
	}
	return fmt.Sprintf("the name %s has characters that are not allowed", quote(name))
}

// nearest returns the candidate that word is most likely a misspelling of.
//
// Among very many candidates it does not look: that would take long, and a
// person with so many names has other means to find one.
func nearest(word string, candidates []string) (string, bool) {
	if len(candidates) > 500 {
		return "", false
	}
	word = strings.ToLower(strings.ReplaceAll(word, "-", "_"))
	best, least := "", 0
	for _, c := range candidates {
		if d := editDistance(word, strings.ReplaceAll(strings.ToLower(c), "-", "_")); best == "" || d < least {
			best, least = c, d
		}
	}
	return best, best != "" && least <= max(1, min(len(word), len(best))/3)
}

// editDistance counts insertions, deletions, substitutions and swaps of
// neighbours. Long words are no misspellings and cost nothing.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
