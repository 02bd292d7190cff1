package deptest

import (
	"go/ast"
	"go/token"
	"testing"
)

// modules are the folders of the modules that go.work joins, the library first.
var modules = []string{root, root + "/bench", root + "/examples/analytics", root + "/examples/execution", root + "/examples/linearizer", root + "/gateway", root + "/weirgrpc", root + "/weirkafka", root + "/weirpgx", root + "/weirredis"}

func TestPackagesDocumented(t *testing.T) {
	for _, dir := range modules {
		for _, p := range list(t, dir, "./...") {
			documented := false
			files := parse(t, p)
			for _, f := range files {
				documented = documented || f.Doc.Text() != ""
			}
			if !documented && len(files) > 0 {
				t.Errorf("package %s has no doc comment", p.ImportPath)
			}
		}
	}
}

func TestExportedNamesDocumented(t *testing.T) {
	for _, p := range list(t, root, "./...") {
		for _, f := range parse(t, p) {
			for _, d := range f.Decls {
				for _, name := range undocumented(d) {
					t.Errorf("%s/%s: %s is not documented", within(p.ImportPath), f.at(name.Pos()), name.Name)
				}
			}
		}
	}
}

func undocumented(d ast.Decl) []*ast.Ident {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc.Text() == "" && exportedReceiver(d) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		return undocumentedSpecs(d)
	}
	return nil
}

// undocumentedSpecs accepts one comment for a group of constants or variables,
// but wants one for each type.
func undocumentedSpecs(d *ast.GenDecl) []*ast.Ident {
	var bare []*ast.Ident
	group := d.Doc.Text() != ""
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc.Text() == "" && (!group || len(d.Specs) > 1) {
				bare = append(bare, s.Name)
			}
		case *ast.ValueSpec:
			if group || s.Doc.Text() != "" || s.Comment.Text() != "" || d.Tok == token.IMPORT {
				continue
			}
			for _, n := range s.Names {
				if n.IsExported() {
					bare = append(bare, n)
				}
			}
		}
	}
	return bare
}

// exportedReceiver reports whether fn is a function, or a method that users of
// the package can name.
func exportedReceiver(fn *ast.FuncDecl) bool {
	if fn.Recv == nil {
		return true
	}
	recv := fn.Recv.List[0].Type
	if star, ok := recv.(*ast.StarExpr); ok {
		recv = star.X
	}
	if generic, ok := recv.(*ast.IndexExpr); ok {
		recv = generic.X
	}
	id, ok := recv.(*ast.Ident)
	return ok && id.IsExported()
}
