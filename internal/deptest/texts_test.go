package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/plain"
)

// What the programs print is read like the pages: help, messages of weir check, log lines, refusals, the
// help of metrics. All of it stands in literals.
func TestTextsArePlain(t *testing.T) {
	judged := 0
	for _, name := range tree(t, ".go") {
		if strings.HasSuffix(name, "_test.go") || unread.MatchString(name) {
			continue
		}
		fset, f := parsed(t, name)
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
			all := plain.Printed(text)
			judged += len(all)
			for _, fault := range plain.Faults(all) {
				t.Errorf("%v: %s", fset.Position(expr.Pos()), fault)
			}
			return false
		})
	}
	if judged < 5000 {
		t.Errorf("only %d sentences were found", judged)
	}
}

// unread are files whose texts no user reads: benchmarks, tools, and what the tree's own tests are made of.
var unread = regexp.MustCompile(`^(bench|examples|internal/deptest|internal/plain|internal/tools|weirtest)/|/testdata/`)

// Whoever searches the log, or lets an alert search it, needs one key for each thing: error for the text of an error, reason for
// what led to a decision.
func TestLogsHaveOneKeyForErrors(t *testing.T) {
	other := map[string]bool{"err": true, "why": true, "because": true, "problem": true, "cause": true}
	for _, name := range tree(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset, f := parsed(t, name)
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, arg := range call.Args {
				if text, literal := literalText(arg); literal && other[text] {
					t.Errorf("%v: the key %q: write error, or reason", fset.Position(arg.Pos()), text)
				}
			}
			return true
		})
	}
}

// parsed is a file of Go.
func parsed(t *testing.T, name string) (*token.FileSet, *ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, read(t, name), parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return fset, f
}

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
