//go:build integration

package integration

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands in the README and the docs run, one page after the other in a directory of its
// own. A line that begins with weir run starts a gateway for the rest of the page, in place of
// the one before. A comment before a block says why it cannot run here: <!-- not run: WHY -->.
func TestShellOfTheDocs(t *testing.T) {
	t.Parallel()
	pages := []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var blocks []string
		for _, m := range shellBlock.FindAllStringSubmatch(string(text), -1) {
			switch {
			case m[1] == "":
				blocks = append(blocks, m[2])
			case !strings.HasPrefix(m[1], "not run: "):
				t.Errorf("%s: a block is marked %q, which this test does not know", page, m[1])
			}
		}
		if len(blocks) > 0 {
			ran += len(blocks)
			t.Run(strings.TrimPrefix(page, "../../"), func(t *testing.T) {
				t.Parallel()
				runPage(t, blocks)
			})
		}
	}
	if ran < 10 {
		t.Errorf("only %d blocks found", ran)
	}
}

var shellBlock = regexp.MustCompile("(?ms)(?:^<!-- ([^\n]*) -->\n)?^```sh\n(.*?)^```")

// runPage runs the blocks of one page.
func runPage(t *testing.T, blocks []string) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("hello\n"))
	}))
	defer upstream.Close()
	addr, admin := freeAddr(t), freeAddr(t)
	own := strings.NewReplacer("127.0.0.1:3000", upstream.Listener.Addr().String(), "127.0.0.1:8080", addr, "127.0.0.1:8090", admin)
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(wrapper, upstream.Listener.Addr(), admin, addr, binary)
	if err := os.WriteFile(filepath.Join(bin, "weir"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + bin + ":$PATH\n"
	var running *process
	for _, block := range blocks {
		var lines []string
		flush := func() {
			if len(lines) == 0 {
				return
			}
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", path+strings.Join(lines, "\n"))
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\nof\n%s", err, out, strings.Join(lines, "\n"))
			}
			lines = nil
		}
		for line := range strings.Lines(own.Replace(block)) {
			if !strings.HasPrefix(line, "weir run ") && !strings.HasPrefix(line, "bin/weir run ") {
				lines = append(lines, strings.TrimSuffix(line, "\n"))
				continue
			}
			flush()
			if running != nil {
				running.stop(t)
			}
			running = start(t, addr, dir, "bash", "-c", path+"exec "+line)
			running.accepts(t, admin)
		}
		flush()
	}
}

// wrapper is weir with other default addresses, for many at a time on one machine.
const wrapper = `#!/usr/bin/env bash
set -eu
case "$1 ${2-}" in
"run --upstream") set -- "$@" --admin %[2]s --listen %[3]s ;;
run*)
	for file; do :; done
	sed -i 's/127.0.0.1:3000/%[1]s/; s/127.0.0.1:8080/%[3]s/; s/127.0.0.1:8090/%[2]s/' "$file"
	grep -q '^admin:' "$file" || echo 'admin: {address: %[2]s}' >>"$file"
	;;
status*|explain*|quota*|reload*) [[ " $* " == *" --"@(admin|config)" "* ]] || set -- "$@" --admin %[2]s ;;
esac
exec %[4]s "$@"
`
