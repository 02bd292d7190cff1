package deptest

import (
	"go/ast"
	"strings"
	"testing"
)

// Every package that a user imports shows how, in code that the tests run.
func TestPackagesHaveExamples(t *testing.T) {
	for _, p := range list(t, root, "./...") {
		if p.Name == "main" || internal(p.ImportPath) {
			continue
		}
		found := false
		for _, f := range parseFiles(t, p.Dir, append(p.TestGoFiles, p.XTestGoFiles...)) {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				found = found || ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Example")
			}
		}
		if !found {
			t.Errorf("package %s has no Example", p.ImportPath)
		}
	}
}
