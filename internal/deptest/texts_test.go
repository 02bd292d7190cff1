package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What the programs print is read like the pages: help, messages of weir check, log lines, refusals, the
// help of metrics. All of it stands in literals. A semicolon ends a sentence there, because it stands between
// what is wrong and what to write.
func TestTextsArePlain(t *testing.T) {
	for _, name := range tree(t, ".go") {
		if strings.HasSuffix(name, "_test.go") || unread.MatchString(name) {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, read(t, name), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			expr, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, literal := literalText(expr)
			if !literal {
				return true
			}
			for _, s := range sentences(prose(typed.ReplaceAllString(semicolon.ReplaceAllString(text, ".\n\n"), "\n"))) {
				if n := len(strings.Fields(s)); n > 25 {
					t.Errorf("%v: %d words, and 25 are the most: %s", fset.Position(expr.Pos()), n, s)
				}
			}
			return false
		})
	}
}

var (
	// unread are files whose texts no user reads: benchmarks, tools, and what the tree's own tests are made of.
	unread    = regexp.MustCompile(`^(bench|examples|internal/deptest|internal/tools|weirtest)/|/testdata/`)
	semicolon = regexp.MustCompile(`; `)
	typed     = regexp.MustCompile(`(?m)^  .*$`) // what stands indented in help is to be typed, or a table
)

// literalText is the text of an expression that is made of literals, with the rest of a concatenation as one word.
func literalText(expr ast.Expr) (text string, ok bool) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, isLeft := literalText(e.X)
		right, isRight := literalText(e.Y)
		if e.Op != token.ADD || !isLeft && !isRight {
			return "", false
		}
		if !isLeft {
			left = "x"
		}
		if !isRight {
			right = "x"
		}
		return left + right, true
	case *ast.ParenExpr:
		return literalText(e.X)
	}
	return "", false
}
