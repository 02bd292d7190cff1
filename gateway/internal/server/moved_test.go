package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// moving is a gateway with rules in a file, whose configuration the test replaces.
func moving(t *testing.T) (g *running, cfg *config.Config, dir string, reload func(edit func(*config.Config)) error) {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	dir = t.TempDir()
	var next *config.Config
	cfg = bookConfig(t, upstream.URL, dir)
	g = start(t, cfg, Options{Load: func() (*config.Config, error) { return next, nil }})
	return g, cfg, dir, func(edit func(*config.Config)) error {
		next = bookConfig(t, upstream.URL, dir)
		edit(next)
		return g.Reload()
	}
}

const blockEve = `{"ops": [{"set": {"user": "eve", "blocked": true}}]}`

// A reload that names another file for rules goes by the rules of that, and writes there;
// the old one is free for others, with what is in it.
func TestReloadMovesRules(t *testing.T) {
	g, cfg, dir, reload := moving(t)
	if status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", blockEve); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	other := filepath.Join(dir, "other.json")
	rules := "{\n\"weir_quotas\": 1,\n\"rules\": [{\"gate\": \"quota\", \"user\": \"mallory\", \"blocked\": true}]}"
	if err := os.WriteFile(other, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reload(func(c *config.Config) { c.Quotas.File = other }); err != nil {
		t.Fatal(err)
	}
	if eve, mallory := g.served("eve", 1), g.served("mallory", 1); eve != 1 || mallory != 0 {
		t.Errorf("eve %d, mallory %d, want 1 and 0", eve, mallory)
	}
	for _, part := range []string{"kept elsewhere now", "rules=1 still_in=" + cfg.Quotas.File} {
		if !strings.Contains(g.log.String(), part) {
			t.Errorf("the log says no %q", part)
		}
	}
	if status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", `{"ops": [{"set": {"user": "zoe", "blocked": true}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if data, err := os.ReadFile(other); err != nil || !strings.Contains(string(data), "zoe") || !strings.Contains(string(data), "mallory") {
		t.Errorf("%s %v", data, err)
	}
	if data, err := os.ReadFile(cfg.Quotas.File); err != nil || strings.Contains(string(data), "zoe") || !strings.Contains(string(data), "eve") {
		t.Errorf("%s %v", data, err)
	}
	if err := reload(func(*config.Config) {}); err != nil { // back: nobody else has the old one open
		t.Fatal(err)
	}
	if eve, zoe := g.served("eve", 1), g.served("zoe", 1); eve != 0 || zoe != 1 {
		t.Errorf("back again: eve %d, zoe %d, want 0 and 1", eve, zoe)
	}
	if err := reload(func(c *config.Config) { c.Quotas = config.Quotas{} }); err != nil {
		t.Fatal(err)
	}
	if eve := g.served("eve", 1); eve != 1 {
		t.Error("eve is blocked by a rule that is kept nowhere")
	}
	if status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", blockEve); status != http.StatusConflict || !strings.Contains(text, "nowhere") {
		t.Errorf("%d %s", status, text)
	}
}

// A reload that names a place which cannot be used is refused as a whole, with what is
// wrong; rules and socket stay.
func TestReloadCannotMoveRules(t *testing.T) {
	g, cfg, dir, reload := moving(t)
	if status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", blockEve); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte("{\n\"weir_quotas\": 7}"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := filepath.Join(dir, "free")
	f := func(part string, edit func(*config.Config)) {
		t.Helper()
		if err := reload(edit); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %q", err, part)
		}
		if eve := g.served("eve", 1); eve != 0 {
			t.Error("eve gets in")
		}
		if status, _ := overSocket(t, cfg.Admin.Socket, http.MethodGet, "/quotas", ""); status != http.StatusOK {
			t.Errorf("the socket answers %d", status)
		}
		if _, err := os.Stat(free); !os.IsNotExist(err) {
			t.Errorf("the new socket is there: %v", err)
		}
	}
	f("quotas.file: "+filepath.Join(dir, "no", "q.json")+": its directory does not exist", func(c *config.Config) {
		c.Admin.Socket, c.Quotas.File = free, filepath.Join(dir, "no", "q.json")
	})
	f("quotas.file: quotas set at run time cannot be read: "+broken+":1:", func(c *config.Config) {
		c.Admin.Socket, c.Quotas.File = free, broken
	})
	f("admin.socket: cannot listen on the socket "+broken+": what is there is no socket", func(c *config.Config) { c.Admin.Socket = broken })
	if err := reload(func(c *config.Config) { c.Quotas.File = filepath.Join(dir, "broken.json2") }); err != nil {
		t.Errorf("after the refusals: %v", err)
	}
}

// A reload that names another socket opens that and closes the old one; without one
// nobody can write over any.
func TestReloadMovesSocket(t *testing.T) {
	g, cfg, dir, reload := moving(t)
	other := filepath.Join(dir, "t")
	if err := reload(func(c *config.Config) { c.Admin.Socket = other }); err != nil {
		t.Fatal(err)
	}
	if status, text := overSocket(t, other, http.MethodPost, "/quotas", blockEve); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	gone := func(path string) func() bool {
		return func() bool {
			_, err := os.Stat(path)
			return os.IsNotExist(err)
		}
	}
	eventually(t, "the old socket is gone", gone(cfg.Admin.Socket))
	write := func() string {
		req, err := http.NewRequest(http.MethodPost, "http://"+g.AdminAddr().String()+"/quotas", strings.NewReader(blockEve))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		_, text := do(t, req)
		return text
	}
	if text := write(); !strings.Contains(text, "use unix:"+other) {
		t.Errorf("asked over TCP: %s", text)
	}
	profile := func() int {
		status, _ := overSocket(t, other, http.MethodGet, "/debug/pprof/cmdline", "")
		return status
	}
	before := profile()
	off := false
	if err := reload(func(c *config.Config) { c.Admin.Socket, c.Admin.Pprof = other, &off }); err != nil {
		t.Fatal(err)
	}
	if after := profile(); before != http.StatusOK || after != http.StatusNotFound {
		t.Errorf("profiles answer %d, and %d once they are off", before, after)
	}
	if err := reload(func(c *config.Config) { c.Admin.Socket = "" }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the socket is gone", gone(other))
	if text := write(); !strings.Contains(text, "nobody may write") {
		t.Errorf("asked over TCP without a socket: %s", text)
	}
	if err := reload(func(*config.Config) {}); err != nil {
		t.Fatal(err)
	}
	if status, _ := overSocket(t, cfg.Admin.Socket, http.MethodGet, "/quotas", ""); status != http.StatusOK {
		t.Errorf("the socket is back and answers %d", status)
	}
}

// A rule whose gate a reload has taken away is kept, told of, and can be deleted; the
// gate's name is no mistake as long as there is one.
func TestDeleteOfAGoneGate(t *testing.T) {
	_, cfg, _, reload := moving(t)
	ask := func(method, path, body string, status int, part string) {
		t.Helper()
		if got, text := overSocket(t, cfg.Admin.Socket, method, path, body); got != status || !strings.Contains(text, part) {
			t.Errorf("%s %s: %d %s, want %d with %q", method, path, got, text, status, part)
		}
	}
	ask(http.MethodPost, "/quotas", `{"ops": [{"set": {"user": "eve", "blocked": true}}, {"set": {"user": "bob", "rate": "1/h"}}]}`, http.StatusOK, "eve")
	if err := reload(func(c *config.Config) {
		delete(c.Gates, "quota")
		c.Routes[0].Gates = []string{gateName}
	}); err != nil {
		t.Fatal(err)
	}
	ask(http.MethodGet, "/quotas/quota", "", http.StatusOK, `there is no gate \"quota\"`)
	ask(http.MethodDelete, "/quotas/quota?user=eve", "", http.StatusOK, "eve")
	ask(http.MethodDelete, "/quotas/quota", "", http.StatusOK, "bob")
	ask(http.MethodDelete, "/quotas/quota", "", http.StatusNotFound, "there is no gate")
	ask(http.MethodGet, "/quotas", "", http.StatusOK, `"rules": []`)
}
