// Package plain judges the English of pages, help and messages. It is for tests: of the docs, of the commands,
// and of what weir check says.
package plain

import (
	"fmt"
	"regexp"
	"strings"
)

const (
	most        = 25 // words in a sentence
	mostFigures = 2
)

// Page returns the sentences of a page in Markdown. A cell of a table, a heading and an item of a list are at
// least one each. Code is left out; what is quoted in a line counts as one word.
func Page(text string) []string { return sentences(item.Split(Prose(text), -1)) }

// Prose is a page without its code and without the targets of its links.
func Prose(text string) string {
	return target.ReplaceAllString(inline.ReplaceAllString(block.ReplaceAllString(text, ""), "code"), "]")
}

// Printed returns the sentences of what a terminal shows: help, a message, a log line. A row that is indented is
// at least one by itself. What stands in quotes, braces or brackets counts as one word.
func Printed(text string) []string {
	text = quoted.ReplaceAllString(text, "code")
	for braces.MatchString(text) {
		text = braces.ReplaceAllString(text, "code")
	}
	return sentences(row.Split(text, -1))
}

func sentences(parts []string) (all []string) {
	for _, part := range parts {
		for _, s := range end.Split(part, -1) {
			if s = strings.Join(strings.Fields(s), " "); s != "" {
				all = append(all, s)
			}
		}
	}
	return all
}

// Faults says of each sentence that has too many words how many they are.
func Faults(sentences []string) (faults []string) {
	for _, s := range sentences {
		if n := len(strings.Fields(s)); n > most {
			faults = append(faults, fmt.Sprintf("%d words, and %d are the most: %s", n, most, s))
		}
	}
	return faults
}

// Crowded says of each sentence of a page that has too many figures how many they are. A range is one figure. What
// stands in brackets after a figure belongs to it, and so does a default after its setting. Figures in tables, code
// and links do not count. Nor do names: HTTP/2, S7, p99, RFC 9110, version 3, a status code.
func Crowded(text string) (faults []string) {
	for _, s := range Page(bare(text)) {
		if n := figures(s); n > mostFigures {
			faults = append(faults, fmt.Sprintf("%d figures, and %d are the most; write two sentences, or a table: %s", n, mostFigures, s))
		}
	}
	return faults
}

// bare is a page without its tables and links. A code span stays as a word.
func bare(text string) string {
	return table.ReplaceAllString(link.ReplaceAllString(inline.ReplaceAllString(block.ReplaceAllString(text, ""), "code"), "link"), "")
}

func figures(sentence string) int {
	for _, name := range []*regexp.Regexp{beside, named, status} {
		sentence = name.ReplaceAllString(sentence, "$1")
	}
	return len(figure.FindAllString(between.ReplaceAllString(sentence, "$1"), -1))
}

var (
	block  = regexp.MustCompile("(?ms)^ *```.*?^ *```|<!--.*?-->|^    .*?$")
	inline = regexp.MustCompile("`[^`]*`")
	target = regexp.MustCompile(`\]\([^)]*\)`)
	item   = regexp.MustCompile(`\n\s*\n|\n\s*(?:[-*]|\d+\.|#+) |\n?\s*\|\s*`)
	table  = regexp.MustCompile(`(?m)^\s*\|.*$`)
	link   = regexp.MustCompile(`\[[^\]]*\]\([^)]*\)`)
	row    = regexp.MustCompile(`\n\s*\n|\n {2,}`)
	quoted = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
	braces = regexp.MustCompile(`\{[^{}]*\}|\[[^\[\]]*\]`)
	end    = regexp.MustCompile(`[.!?]["')*_]*\s+|:\n`)
)

const number = `\d+(?:,\d{3})*(?:\.\d+)?`

var (
	figure  = regexp.MustCompile(`(?:^|[\s("'*≤≥<>~+−-])` + number + `x?(?:[\s)"'*%,;:?!^+×-]|\.?$)`)
	beside  = regexp.MustCompile(`((?:\d|code)[^.,;:(]{0,30}) \([^()]*\)`)
	between = regexp.MustCompile(`(` + number + `)(?: ?(?:%|[a-zA-Z]{1,3}))? to ` + number)
	named   = regexp.MustCompile(`(RFC|[Vv]ersions?|seeds?|Go|Redis|PostgreSQL|Kafka) \d[\d.]*(?: to \d+)?`)
	status  = regexp.MustCompile(`()\b(?:40[1-9]|41\d|42[169]|431|499|50[1-4])\b`)
)
