package deptest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/plain"
	"github.com/weir-go/weir/sim"
)

var update = flag.Bool("update", false, "write docs/reference/scenarios.md anew")

// pages are those that users read: the README, SECURITY.md, and docs/ without what is for contributors.
func pages(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(tree(t, ".md"), func(page string) bool {
		if page == "README.md" || page == "SECURITY.md" {
			return false
		}
		return !strings.HasPrefix(page, "docs/") || strings.HasPrefix(page, "docs/scoreboard/") ||
			slices.Contains([]string{"docs/DESIGN.md", "docs/GOALS.md"}, page)
	})
}

// tables are pages made of tables, which a program writes or a test holds to be complete.
var tables = []string{"config.md", "metrics.md", "commands.md", "scenarios.md"} // of docs/reference

// A page is read in five minutes, the README in a minute. Figures are looked up.
func TestPagesAreShort(t *testing.T) {
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/benchmarks/") {
			continue
		}
		most := 1500
		if page == "README.md" {
			most = 700
		}
		if n := len(strings.Fields(plain.Prose(read(t, page)))); n > most && !slices.Contains(tables, strings.TrimPrefix(page, "docs/reference/")) {
			t.Errorf("%s has %d words beside its code, and may have %d: move something to a page of its own", page, n, most)
		}
	}
}

// Sentences are short, and figures are written as 0.98.
func TestPagesArePlain(t *testing.T) {
	for _, page := range pages(t) {
		text := read(t, page)
		for _, fault := range plain.Faults(plain.Page(text)) {
			t.Errorf("%s: %s", page, fault)
		}
		for _, m := range bareFigure.FindAllString(plain.Prose(text), -1) {
			t.Errorf("%s: write %q with the 0 before the point", page, strings.TrimSpace(m))
		}
	}
}

var bareFigure = regexp.MustCompile(`(?:^|[\s(])\.\d`)

// Every reason of a refusal is explained, in the table and among the questions. The values of the label in metrics are
// all, and so are those that have a code of gRPC.
func TestReasonsAreExplained(t *testing.T) {
	table, faq := read(t, "docs/reference/refusals.md"), read(t, "docs/faq.md")
	_, byReason, _ := strings.Cut(faq, "\n## By reason\n")
	lists := map[string]string{"docs/reference/metrics.md": "\n**`reason`**: ", "docs/howto/grpc.md": "\n| reason | status |\n"}
	for page, head := range lists {
		_, rest, _ := strings.Cut(read(t, page), head)
		lists[page], _, _ = strings.Cut(rest, "\n\n")
	}
	for _, reason := range weir.Reasons() {
		if !strings.Contains(table, "\n| `"+reason.String()+"` |") {
			t.Errorf("docs/reference/refusals.md does not explain %s", reason)
		}
		if !regexp.MustCompile(`(?m)^### .*\b` + reason.String() + `\b`).MatchString(byReason) {
			t.Errorf("docs/faq.md does not explain %s", reason)
		}
		for page, list := range lists {
			if !strings.Contains(list, "`"+reason.String()+"`") {
				t.Errorf("%s does not list %s", page, reason)
			}
		}
	}
}

// Commands stand in blocks of sh, which a test of the gateway runs, and not in plain ones. A
// session, with a prompt and what was printed, is something else.
func TestCommandsAreFenced(t *testing.T) {
	for _, page := range pages(t) {
		if strings.TrimPrefix(page, "docs/reference/") == "commands.md" {
			continue // how they are called, and examples of each
		}
		for _, m := range plainCommand.FindAllString(read(t, page), -1) {
			t.Errorf("%s: put %q into a block of sh", page, strings.TrimSpace(m))
		}
	}
}

var plainCommand = regexp.MustCompile("(?m)^(?:    |```\n)(?:(?:bin/)?weir|make|curl|systemctl|docker|sudo|kubectl|git|go) .*$")

// The tests that the docs name are there.
func TestNamedTests(t *testing.T) {
	have := map[string]bool{}
	for _, file := range tree(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(read(t, file), -1) {
			have[m[1]] = true
		}
	}
	named := 0
	for _, page := range tree(t, ".md") {
		for _, m := range testName.FindAllStringSubmatch(read(t, page), -1) {
			if named++; !have[m[1]] {
				t.Errorf("%s: there is no %s", page, m[1])
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d names found", named)
	}
}

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName = regexp.MustCompile("`(Test[A-Z]\\w+)`")
)

// What the design names in a file is declared there, or is a word in quotes such as the key of a tag. The
// lists that lead through the tree are no help if they lead nowhere. They are written `file.go` (`name`, `other` of `other.go`), or `name` (`file.go`).
func TestNamesOfTheDesign(t *testing.T) {
	text, files, named := read(t, "docs/DESIGN.md"), tree(t, ".go"), 0
	check := func(name, file string) {
		named++
		name = name[strings.LastIndex(name, ".")+1:]
		declared := regexp.MustCompile(`(?m)^(?:(?:func (?:\([^)]*\) )?|type |const |var )` + name + `\b|\t` + name + `[ ,])|"` + name + `"`)
		at := func(path string) bool {
			return (path == file || strings.HasSuffix(path, "/"+file)) && declared.MatchString(read(t, path))
		}
		if !slices.ContainsFunc(files, at) {
			t.Errorf("docs/DESIGN.md: %s is not declared in %s; say where it is now", name, file)
		}
	}
	for _, m := range fileOfNames.FindAllStringSubmatch(text, -1) {
		for _, clause := range strings.FieldsFunc(m[2], func(r rune) bool { return strings.ContainsRune(",;:", r) }) {
			file := m[1]
			if other := otherFile.FindStringSubmatch(clause); other != nil {
				file = other[1]
			}
			for _, name := range codeName.FindAllStringSubmatch(clause, -1) {
				if filepath.Ext(name[1]) != ".go" {
					check(name[1], file)
				}
			}
		}
	}
	for _, m := range nameInFile.FindAllStringSubmatch(text, -1) {
		check(m[1], m[2])
	}
	if named < 100 {
		t.Errorf("only %d names found", named)
	}
}

var (
	fileOfNames = regexp.MustCompile("`([\\w/]+\\.go)`\\s\\(([^()]*`[^()]*)\\)")
	otherFile   = regexp.MustCompile("\\bof `([\\w/]+\\.go)`")
	codeName    = regexp.MustCompile("`((?:[a-z]+\\.)?(?:[A-Z]\\w*\\.)?\\w+)`")
	nameInFile  = regexp.MustCompile("`((?:[a-z]+\\.)?(?:[A-Z]\\w*\\.)?\\w+)`\\s\\(`([\\w/]+\\.go)`\\)")
)

// The map has every page. The page of benchmarks has those of single benchmarks.
func TestMapIsComplete(t *testing.T) {
	for _, page := range pages(t) {
		name, ok := strings.CutPrefix(page, "docs/")
		index := "docs/README.md"
		if strings.HasPrefix(name, "benchmarks/") {
			index = "docs/benchmarks.md"
		}
		if ok && page != index && !strings.Contains(read(t, index), "]("+name+")") {
			t.Errorf("%s has no link to %s", index, name)
		}
	}
}

// The page of scenarios has all of them.
func TestScenariosPage(t *testing.T) {
	const page = "docs/reference/scenarios.md"
	before, _, ok := strings.Cut(read(t, page), scenariosBegin)
	if !ok {
		t.Fatalf("%s has lost the line %q", page, scenariosBegin)
	}
	var b strings.Builder
	b.WriteString(before + scenariosBegin + "\n| code | name | what happens |\n| --- | --- | --- |\n")
	for _, name := range sim.Names() {
		s, err := sim.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		code, plain := "`"+name+"`", sim.PlainName(name)
		if plain == name {
			code = ""
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", code, plain, s.About)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, page), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if b.String() != read(t, page) {
		t.Errorf("%s is out of date; run go test ./internal/deptest -run Scenarios -update", page)
	}
}

const scenariosBegin = "<!-- The table below is written by go test ./internal/deptest -run Scenarios -update. -->\n"

// A reader keeps two figures of a sentence in mind. Where they are many, a table has them.
func TestFiguresAreFew(t *testing.T) {
	judged := 0
	for _, page := range pages(t) {
		if slices.Contains(tables, strings.TrimPrefix(page, "docs/reference/")) {
			continue // figures are what they are for
		}
		judged++
		for _, fault := range plain.Crowded(read(t, page)) {
			t.Errorf("%s: %s", page, fault)
		}
	}
	if judged < 50 {
		t.Errorf("only %d pages were found", judged)
	}
}
