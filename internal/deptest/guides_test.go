package deptest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Go code in the README and the docs compiles. A block that is a whole program
// stands as it is; any other is put into a function where the names below mean
// something.
func TestGuidesCompile(t *testing.T) {
	base, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	var packages []string
	for _, page := range pages(t) {
		for _, block := range goBlocks(read(t, page)) {
			name := fmt.Sprintf("guide%d", len(packages))
			file := filepath.Join(tmp, name+".go")
			if err := os.WriteFile(file, []byte(program(block)), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay.Replace[filepath.Join(base, "internal", name, "main.go")] = file
			packages = append(packages, "./internal/"+name)
		}
	}
	if len(packages) < 25 {
		t.Errorf("only %d blocks of Go found", len(packages))
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, base, append([]string{"build", "-tags", "grpcnotrace", "-overlay", list}, packages...)...) // as everything is compiled
}

var fenced = regexp.MustCompile("(?s)```go\n(.*?)```")

func goBlocks(text string) []string {
	var blocks []string
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// program makes a package of a block of code. It is no main package, so it is compiled and not linked.
func program(block string) string {
	if whole, ok := strings.CutPrefix(block, "package main\n"); ok {
		return "package guide\n" + whole
	}
	const names = `
func example(ctx context.Context, tenants, database weir.Gate, mux *http.ServeMux, reports http.Handler,
	report, reindex func(context.Context) error, connector driver.Connector, %s) error {
`
	param := "gate weir.Gate"
	if strings.Contains(block, "gate, err :=") || strings.Contains(block, "gate := ") {
		param = "_ int"
	}
	var b strings.Builder
	b.WriteString("package guide\n\nimport (\n")
	for _, path := range imports(block + names) {
		fmt.Fprintf(&b, "\t%q\n", path)
	}
	fmt.Fprintf(&b, ")\n"+names, param)
	b.WriteString(block)
	for _, name := range []string{"gate", "both", "q", "err"} { // a block may end with them
		if strings.Contains(block, name+" :=") || strings.Contains(block, name+", err :=") || strings.Contains(block, ", "+name+" :=") {
			fmt.Fprintf(&b, "\t_ = %s\n", name)
		}
	}
	b.WriteString("\treturn nil\n}\n")
	return b.String()
}

func imports(code string) []string {
	all := map[string]string{
		"context": "context", "http": "net/http", "log": "log", "time": "time",
		"signal": module + "/signal", "weir": module, "keyed": module + "/keyed", "limit": module + "/limit", "policy": module + "/policy", "quota": module + "/quota", "shed": module + "/shed", "throttle": module + "/throttle", "control": module + "/control", "weirhttp": module + "/weirhttp",
		"weirredis": module + "/weirredis", "weirgrpc": module + "/weirgrpc", "weirkafka": module + "/weirkafka", "weirpgx": module + "/weirpgx", "weirsql": module + "/weirsql", "sql": "database/sql", "driver": "database/sql/driver", "kgo": "github.com/twmb/franz-go/pkg/kgo", "pgxpool": "github.com/jackc/pgx/v5/pgxpool", "grpc": "google.golang.org/grpc", "credentials": "google.golang.org/grpc/credentials",
	}
	var paths []string
	for name, path := range all {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(code) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}
