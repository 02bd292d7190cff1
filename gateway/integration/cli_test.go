//go:build integration

package integration

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// weirCommand runs the binary to its end and returns what it printed, and whether it
// ended with status 0.
func weirCommand(t *testing.T, args ...string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = t.TempDir()
	b, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("weir %v does not end\n%s", args, b)
	}
	return string(b), err == nil
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// The configuration in the guide is one that weir accepts, and so is what it
// writes itself.
func TestConfigurationsFromTheDocs(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guides/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range yamlBlock.FindAllStringSubmatch(string(guide), -1) {
		if !strings.HasPrefix(m[1], "upstreams:") && !strings.Contains(m[1], "\nupstreams:") {
			continue // a part of a file
		}
		found++
		file := filepath.Join(t.TempDir(), "weir.yaml")
		writeFile(t, file, []byte(m[1]))
		if out, ok := weirCommand(t, "check", file); !ok {
			t.Errorf("weir check refuses the guide's file:\n%s\n%s", out, m[1])
		}
	}
	if found == 0 {
		t.Error("the guide has no whole configuration")
	}

	init, ok := weirCommand(t, "init")
	if !ok {
		t.Fatalf("weir init failed:\n%s", init)
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, file, []byte(init))
	if out, ok := weirCommand(t, "check", file); !ok {
		t.Errorf("weir check refuses what weir init wrote:\n%s", out)
	}
}

// Mistakes end with a status that is not 0 and a text that says what and where.
func TestMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	writeFile(t, file, []byte(`upstreams:
  app:
    targets: [127.0.0.1:3000]
gates:
  app:
    limit: {limit: 0, queue: {max_wait: 5 minutes}}
routes:
  - match: [/]
    gates: [ap]
    upstreem: app
`))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		name string
		args []string
		says []string
	}{
		{"every fault of a file", []string{"check", file}, []string{"bad.yaml:3:", "bad.yaml:6:", "bad.yaml:9:", "bad.yaml:10:", "upstreem", "5 minutes"}},
		{"the same on run", []string{"run", "--config", file}, []string{"bad.yaml:10:", "upstreem"}},
		{"a file that is not there", []string{"check", "nothing.yaml"}, []string{"nothing.yaml"}},
		{"a port in use", []string{"run", "--upstream", "http://127.0.0.1:1", "--listen", taken.Addr().String(), "--admin", "off"}, []string{taken.Addr().String(), "another process"}},
		{"no URL", []string{"run", "--upstream", "127.0.0.1:3000"}, []string{"http://127.0.0.1:3000"}},
		{"nothing to guard", []string{"run"}, []string{"--upstream", "weir init"}},
		{"an unknown command", []string{"rum"}, []string{"rum"}},
	} {
		out, ok := weirCommand(t, tt.args...)
		if ok {
			t.Errorf("%s: weir %v ended with status 0", tt.name, tt.args)
		}
		for _, s := range tt.says {
			if !strings.Contains(out, s) {
				t.Errorf("%s: does not say %q:\n%s", tt.name, s, out)
			}
		}
	}
}
