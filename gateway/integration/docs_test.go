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

	"github.com/weir-go/weir/internal/attempt"
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

// nginxDocsConf is nginx with a location of the docs.
const nginxDocsConf = `
daemon off;
pid nginx.pid;
error_log stderr warn;
%s
events {}
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	server {
		listen %s;
		%s
	}
}
`

// The block for nginx before a gateway lets no client speak with nginx's word, and says to the server what nginx knows.
func TestNginxOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/start/nginx.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```nginx\n")
	block, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("there is no block for nginx")
	}
	got := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r }))
	t.Cleanup(server.Close)
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	dir, addr := t.TempDir(), freeAddr(t)
	writeFile(t, filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, nginxDocsConf, user, addr, strings.Replace(block, "http://127.0.0.1:8080", server.URL, 1)))
	start(t, addr, dir, part(t, "nginx"), "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))

	r, err := http.NewRequest("GET", "http://"+addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "shop.example"
	emptied := []string{"X-User", "X-Priority", "Forwarded", "X-Request-Timeout", "Grpc-Timeout"}
	for _, h := range attempt.Headers {
		emptied = append(emptied, h.Name)
	}
	for _, name := range append([]string{"X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-For"}, emptied...) {
		r.Header.Set(name, "evil.example")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	sent := <-got
	for _, name := range emptied {
		if v, ok := sent.Header[name]; ok {
			t.Errorf("%s: a client says %q with nginx's word", name, v)
		}
	}
	if h := sent.Header; sent.Host != "shop.example" || h.Get("X-Forwarded-Host") != "shop.example" || h.Get("X-Forwarded-Proto") != "http" ||
		h.Get("X-Forwarded-For") != "evil.example, 127.0.0.1" {
		t.Errorf("to the host %q with %v", sent.Host, h)
	}
}

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
