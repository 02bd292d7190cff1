package deptest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Every relative link of a page leads to a file that is there, and to a heading that is in
// it. Pages that code, packaging and messages name by their path are there too.
func TestLinksResolve(t *testing.T) {
	headings := map[string][]string{}
	for _, page := range tree(t, ".md") {
		headings[page] = anchors(read(t, page))
	}
	for page := range headings {
		text := code.ReplaceAllString(read(t, page), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue // elsewhere
			}
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if known, ok := headings[to]; ok && anchor != "" && !slices.Contains(known, anchor) {
				t.Errorf("%s links to %s: %s has no such heading", page, m[1], to)
			}
		}
	}
	for _, file := range tree(t, ".go", ".md", ".yaml", ".yml", ".service", "Makefile") {
		for _, m := range named.FindAllStringSubmatch(read(t, file), -1) {
			path, anchor, _ := strings.Cut(m[0], "#")
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s names %s, which is not there", file, path)
			} else if anchor != "" && !slices.Contains(headings[path], anchor) {
				t.Errorf("%s names %s, which has no such heading", file, m[0])
			}
		}
	}
}

var (
	code    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	named   = regexp.MustCompile(`\bdocs/[\w/-]+\.md(#[\w-]+)?`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

// anchors are the names by which the headings of a page can be linked to, as GitHub makes them.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, ""), -1) {
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		names = append(names, name)
	}
	return names
}

// tree lists the files of the project that end so, below no hidden directory.
func tree(t *testing.T, ends ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"dist", "bin", "testdata"}, d.Name())) {
			return filepath.SkipDir
		}
		if !d.IsDir() && slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(path, end) }) {
			rel, err := filepath.Rel(root, path)
			files = append(files, rel)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// read returns the text of a file of the project.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
