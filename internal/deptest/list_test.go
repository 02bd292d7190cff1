package deptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"testing"
)

// root is the root module, seen from this package.
const root = "../.."

// pkg is what `go list -json` says of a package.
type pkg struct {
	Dir, ImportPath, Name string
	Standard              bool
	GoFiles               []string
	TestGoFiles           []string
	XTestGoFiles          []string
	Imports               []string
}

func list(t *testing.T, dir string, args ...string) []pkg {
	t.Helper()
	out := run(t, dir, append([]string{"list",
		"-json=Dir,ImportPath,Name,Standard,GoFiles,TestGoFiles,XTestGoFiles,Imports"}, args...)...)
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatalf("go list %v in %s found no package", args, dir)
	}
	return pkgs
}

func requirements(t *testing.T, dir string) []any {
	t.Helper()
	var mod struct{ Require []any }
	if err := json.Unmarshal(run(t, dir, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	return mod.Require
}

func run(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %v in %s: %v\n%s", args, dir, err, &stderr)
	}
	return out
}

type file struct {
	*ast.File
	fset  *token.FileSet
	name  string
	lines int
}

func (f file) at(pos token.Pos) token.Position {
	p := f.fset.Position(pos)
	p.Filename = filepath.Base(p.Filename)
	return p
}

// parse reads the files of p, tests left out.
func parse(t *testing.T, p pkg) []file { return parseFiles(t, p.Dir, p.GoFiles) }

func parseFiles(t *testing.T, dir string, names []string) []file {
	t.Helper()
	files := make([]file, 0, len(names))
	for _, name := range names {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{f, fset, name, fset.Position(f.End()).Line})
	}
	return files
}
