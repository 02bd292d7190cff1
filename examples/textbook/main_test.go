package main

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the program's output into the page of the docs")

const page = "../../docs/explain/textbook.md"

// The page of the docs shows what the program prints.
func TestOutputOfTheDocs(t *testing.T) {
	var out bytes.Buffer
	textbook(&out)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const fence = "```text\n"
	before, rest, ok := strings.Cut(string(text), fence)
	shown, after, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("%s has no block of text", page)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+fence+out.String()+"```"+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if shown != out.String() {
		t.Errorf("%s does not show what the program prints; go test ./examples/textbook -update writes it:\n%s", page, out.String())
	}
}

// The cells that the tables are there for.
func TestNumbers(t *testing.T) {
	for _, tt := range []struct {
		table func() table
		row   string
		want  []string
	}{
		{rate, "request 201 at the same moment", []string{"429, Retry-After: 1", "429, Retry-After: 1, to be exact 10ms"}},
		{rate, "one that costs 50", []string{"costs 1", "429, Retry-After: 1, to be exact 500ms"}},
		{priorities, "critical, weir", []string{"yes", "yes", "yes", "yes", "503"}},
		{firstStep, "50 of 100", []string{"0.33", "0.00", "0.00"}},
		{firstStep, "90 of 100", []string{"0.80", "0.79", "0.74"}},
		{outage, "textbook: accepts decay on accepts", []string{"0.0000", "0.0000", "0.0000", "0.0000", "0.0000", "0.0000"}},
		{outage, "mended: both decay on both", []string{"0.0263", "0.2721", "0.8066", "0.9412", "0.9523", "0.9524"}},
		{retries, "attempts", []string{"5000", "1100"}},
	} {
		found := false
		for _, row := range tt.table().rows {
			if row[0] != tt.row {
				continue
			}
			found = true
			if got := strings.Join(row[1:], "|"); got != strings.Join(tt.want, "|") {
				t.Errorf("%s: %s, want %s", tt.row, got, strings.Join(tt.want, "|"))
			}
		}
		if !found {
			t.Errorf("there is no row %q", tt.row)
		}
	}
}
