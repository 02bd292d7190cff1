package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forbidden are the calls that library code does not make, and why.
var forbidden = map[string]string{
	"fmt.Print":   "a library does not print",
	"fmt.Printf":  "a library does not print",
	"fmt.Println": "a library does not print",
	"log.Print":   "use log/slog, handed in",
	"log.Printf":  "use log/slog, handed in",
	"log.Println": "use log/slog, handed in",
	"log.Fatal":   "a library does not end the process",
	"log.Fatalf":  "a library does not end the process",
	"os.Exit":     "a library does not end the process",
	"panic":       "return an error",
	"time.After":  "its timer outlives the wait; use time.NewTimer and Stop",
	"time.Sleep":  "sleeping is no synchronisation",
	"time.Tick":   "its ticker never ends; use time.NewTicker and Stop",
}

// panics are the places that may panic: what they are called for is to panic,
// or they pass on a panic of the user's.
var panics = map[string]bool{
	"all.go": true, // what a gate that was asked in another goroutine has panicked with
	"do.go":  true,

	"bodies.go": true, // what a body that was read in another goroutine has panicked with
}

func TestHabits(t *testing.T) {
	for _, p := range list(t, root, "./...") {
		if p.Name == "main" {
			continue
		}
		for _, f := range parse(t, p) {
			ast.Inspect(f.File, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				name := callee(call)
				why, bad := forbidden[name]
				if bad && !(name == "panic" && panics[f.name]) {
					t.Errorf("%s/%s: %s: %s", within(p.ImportPath), f.at(call.Pos()), name, why)
				}
				return true
			})
		}
	}
}

func callee(call *ast.CallExpr) string {
	switch fn := call.Fun.(type) {
	case *ast.Ident:
		return fn.Name
	case *ast.SelectorExpr:
		if x, ok := fn.X.(*ast.Ident); ok {
			return x.Name + "." + fn.Sel.Name
		}
	}
	return ""
}

// Tests sleep in bubbles of synctest only, where it takes no time. Elsewhere they wait for
// what should happen: a sleep that is long enough on one machine is too short on another.
func TestNothingSleepsOutsideBubbles(t *testing.T) {
	everyFile(t, func(path string, file *ast.File) {
		bubbles := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
		if bubbles || !strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && callee(call) == "time.Sleep" {
				t.Errorf("%s: time.Sleep: wait for what should happen", path)
			}
			return true
		})
	})
}

// A point at the beginning of a number is easily missed.
func TestFractionsBeginWithADigit(t *testing.T) {
	everyFile(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			if number, ok := n.(*ast.BasicLit); ok && number.Kind == token.FLOAT && number.Value[0] == '.' {
				t.Errorf("%s: %s: write 0%[2]s", path, number.Value)
			}
			return true
		})
	})
}

// everyFile calls f with each file of Go in the tree, those of other modules too.
func everyFile(t *testing.T, f func(path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			f(path, file)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
