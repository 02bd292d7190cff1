//go:build integration && suites

package weirpgx

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pgx's own tests, with weirpgx in place of pgxpool and weirsql's connector below database/sql. They are copied
// from the module cache, changed by [rewrites], and run in the copy. So none of pgx's code is in this tree.
// make test-pgx runs them.
func TestPgxSuites(t *testing.T) {
	for _, name := range []string{"pgxpool", "stdlib"} {
		t.Run(name, func(t *testing.T) {
			expected := map[string]string{}
			var hang []string
			for _, e := range knownFailures {
				switch test, ours := strings.CutPrefix(e.test, name+"."); {
				case ours && e.hangs:
					hang = append(hang, "^"+test+"$")
				case ours:
					expected[test] = e.why
				}
			}
			bare := runSuite(t, name, false, nil)
			guarded := runSuite(t, name, true, hang)
			t.Logf("%d tests pass, %d fail, %d are skipped; without a gate %d, %d and %d", guarded.count("pass"), guarded.count("fail"),
				guarded.count("skip"), bare.count("pass"), bare.count("fail"), bare.count("skip"))
			for _, test := range slices.Sorted(maps.Keys(guarded.results)) {
				_, known := expected[test]
				delete(expected, test)
				switch result := guarded.results[test]; {
				case result == "fail" && !known && bare.results[test] == "fail":
					t.Logf("%s fails without a gate as well", test)
				case result == "fail" && !known:
					t.Errorf("%s fails:\n%s", test, guarded.output[test])
				case result == "pass" && known:
					t.Errorf("%s passes; take it out of knownFailures", test)
				}
			}
			for test, why := range expected {
				t.Errorf("%s did not run; it is among knownFailures: %s", test, why)
			}
			if guarded.count("pass") < bare.count("pass")*9/10 {
				t.Errorf("%d tests pass, %d without a gate", guarded.count("pass"), bare.count("pass"))
			}
		})
	}
}

// knownFailures are tests of pgx that fail behind a gate, each with the reason why that is right. A test that
// hangs is not run.
var knownFailures = []struct {
	test, why string
	hangs     bool
}{
	{"pgxpool.TestPoolAcquireCanceledDuringStalledPing", "the server in a pipe answers nobody, and weirpgx asks the server to stop where pgx closes the connection at once", true},
	{"pgxpool.TestPoolAcquirePingTimeout", "a ping whose time is over is cancelled on the server, so its connection is kept where pgx makes a new one", false},
	{"pgxpool.TestTraceAcquire", "a context that has ended is refused by the gate, so the pool's tracer does not hear of it", false},
}

// rewrites are the changes to a suite's tests. If one is not found, the suite has changed.
var rewrites = map[string][]struct{ from, to string }{
	"pgxpool": {
		{"pgxpool.New(", "weirshim.New("},
		{"pgxpool.NewWithConfig(", "weirshim.NewWithConfig("},
		{"conns := make([]*pgxpool.Conn", "conns := make([]*weirshim.Conn"},
		{"var conns []*pgxpool.Conn", "var conns []*weirshim.Conn"},
	},
	"stdlib": {
		{"stdlib.OpenDB(", "weirshim.OpenDB("},
		{"driverConn.(*stdlib.Conn)", "weirshim.DriverConn(driverConn).(*stdlib.Conn)"},
	},
}

// suite is the result of the tests of one package.
type suite struct {
	results map[string]string // pass, fail or skip
	output  map[string]string
}

func (s *suite) count(result string) (n int) {
	for _, r := range s.results {
		if r == result {
			n++
		}
	}
	return n
}

// runSuite runs the tests of a package of pgx against the server, except those that hang.
func runSuite(t *testing.T, name string, guarded bool, hang []string) *suite {
	t.Helper()
	root := copyOfPgx(t)
	if guarded {
		change(t, root, name)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(build.Default.GOROOT, "bin", "go"), "test", "-json", "-count=1", "-timeout=5m", "-skip="+strings.Join(hang, "|"), "./"+name)
	cmd.Dir = filepath.Join(root, "pgx")
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK="+filepath.Join(root, "go.work"), "PGX_TEST_DATABASE="+server.URL)
	cmd.WaitDelay = time.Minute
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	err := cmd.Run() // its output has the failures
	s := &suite{results: map[string]string{}, output: map[string]string{}}
	for lines := json.NewDecoder(&out); ; {
		var line struct{ Action, Test, Output string }
		if err := lines.Decode(&line); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		test, _, _ := strings.Cut(line.Test, "/")
		switch {
		case line.Action == "output" || line.Action == "build-output":
			s.output[test] += line.Output
		case line.Test == test && test != "" && (line.Action == "pass" || line.Action == "fail" || line.Action == "skip"):
			s.results[test] = line.Action
		}
	}
	for test, text := range s.output {
		if strings.Contains(text, "panic: test timed out") {
			t.Errorf("%s hangs:\n%.6000s", test, text[strings.Index(text, "panic: test timed out"):])
		}
	}
	if len(s.results) == 0 {
		t.Fatalf("%v; no test ran:\n%s%s", err, trouble.String(), s.output[""])
	}
	return s
}

// copyOfPgx makes a folder with a workspace: pgx under its own name, with this tree beside it.
func copyOfPgx(t *testing.T) (root string) {
	t.Helper()
	where, err := exec.CommandContext(t.Context(), filepath.Join(build.Default.GOROOT, "bin", "go"), "list", "-m", "-f", "{{.Dir}}", "github.com/jackc/pgx/v5").Output()
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	from := strings.TrimSpace(string(where))
	if err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(root, "pgx", strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	tree, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	work := fmt.Sprintf("go 1.26.0\n\nuse (\n\t./pgx\n\t%s\n\t%s\n)\n", tree, filepath.Join(tree, "weirpgx"))
	if err := os.WriteFile(filepath.Join(root, "go.work"), []byte(work), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// change puts weir into the tests of a package.
func change(t *testing.T, root, name string) {
	t.Helper()
	shim, err := os.ReadFile("testdata/suites/shim.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, "pgx", "internal", "weirshim")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "shim.go"), shim, 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "pgx", name, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := make([]bool, len(rewrites[name]))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		changed := string(text)
		for i, r := range rewrites[name] {
			found[i] = found[i] || strings.Contains(changed, r.from)
			changed = strings.ReplaceAll(changed, r.from, r.to)
		}
		if changed == string(text) {
			continue
		}
		if strings.Contains(changed, "weirshim.") {
			changed = strings.Replace(changed, "import (", "import (\n\t\"github.com/jackc/pgx/v5/internal/weirshim\"", 1)
		}
		if !strings.Contains(changed, name+".") { // nothing but its import is left
			changed = strings.Replace(changed, "\t\"github.com/jackc/pgx/v5/"+name+"\"\n", "", 1)
		}
		if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, ok := range found {
		if !ok {
			t.Errorf("%s has no %q any more", name, rewrites[name][i].from)
		}
	}
}
