package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
)

// page writes tables, each with a heading and a blank line before it.
type page struct {
	*tabwriter.Writer
	headed string
}

func newPage(out io.Writer) *page {
	return &page{Writer: tabwriter.NewWriter(legible{out}, 0, 0, 2, ' ', 0)}
}

// legible writes text that a listener has answered, without what a terminal would obey: whoever
// answers need not be a gateway.
type legible struct{ to io.Writer }

// Write implements [io.Writer].
func (l legible) Write(text []byte) (int, error) {
	if _, err := io.WriteString(l.to, escaped(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// escaped returns text as it is but for what does not show, such as control characters and marks
// that turn the direction of writing. They become escapes as in Go.
func escaped(text string) string {
	return escapedBy(text, func(r rune) string { return strings.Trim(strconv.QuoteToGraphic(string(r)), `"`) })
}

// legibleJSON is legible for JSON, in which such characters become escapes as in JSON.
type legibleJSON struct{ to io.Writer }

// Write implements [io.Writer].
func (l legibleJSON) Write(text []byte) (int, error) {
	shown := escapedBy(string(text), func(r rune) string {
		if r == '\r' {
			return "" // it is between values, where an escape would be wrong
		}
		var b strings.Builder
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
		return b.String()
	})
	if _, err := io.WriteString(l.to, shown); err != nil {
		return 0, err
	}
	return len(text), nil
}

// escapedBy returns text with escapes for what does not show.
func escapedBy(text string, escape func(rune) string) string {
	hidden := func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			b.WriteString(escape(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// row writes a row. Under another heading than the last one it begins a new table.
func (p *page) row(heading string, cells ...any) {
	if p.headed != heading {
		fmt.Fprintf(p, "\n%s\n", strings.ReplaceAll(heading, "|", "\t"))
		p.headed = heading
	}
	text := make([]string, len(cells))
	for i, c := range cells {
		if text[i] = fmt.Sprint(c); text[i] == "" {
			text[i] = "-"
		}
	}
	fmt.Fprintln(p, strings.Join(text, "\t"))
}

// printJSON writes v as JSON that people can read.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(legibleJSON{out})
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printable returns a name that a client has chosen. It is quoted if it is empty, or has
// characters that a terminal or a reader could misread.
func printable(name string) string {
	const longest = 40
	if runes := []rune(name); len(runes) > longest {
		name = string(runes[:longest-1]) + "…"
	}
	odd := func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == '"' || r == unicode.ReplacementChar
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.QuoteToGraphic(name)
	}
	return name
}
