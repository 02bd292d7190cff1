package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// bookConfig guards upstream with a quota by user, with rules in dir and a socket.
func bookConfig(t *testing.T, upstream, dir string) *config.Config {
	cfg := baseConfig(t, upstream)
	cfg.Gates["quota"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}, By: []string{"user"}}}
	cfg.Routes[0].Gates = []string{"quota", gateName}
	cfg.Identity = policy.IdentitySpec{User: "header:X-User", Trusted: []string{"127.0.0.0/8"}}
	cfg.Quotas.File = filepath.Join(dir, "q.json")
	cfg.Admin = config.Admin{Address: "127.0.0.1:0", Socket: filepath.Join(dir, "s")}
	return cfg
}

// overSocket asks over the admin socket.
func overSocket(t *testing.T, path, method, target, body string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// served counts how many of n requests of a user the upstream answers.
func (g *running) served(user string, n int) (served int) {
	g.t.Helper()
	for range n {
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			g.t.Fatal(err)
		}
		req.Header.Set("X-User", user)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			g.t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			served++
		}
	}
	return served
}

// A quota set over the socket is in force at once, and still is after a reload and a
// restart.
func TestQuotaSetWhileRunning(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	dir := t.TempDir()
	cfg := bookConfig(t, upstream.URL, dir)
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return bookConfig(t, upstream.URL, dir), nil }})
	if info, err := os.Stat(cfg.Admin.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v %v", info, err)
	}
	if got := g.served("alice", 12); got != 10 {
		t.Fatalf("by the file: %d, want 10", got)
	}
	status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", `{"ops": [{"set": {"user": "bob", "rate": "3/h"}}, {"set": {"user": "eve", "blocked": true}}]}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if runtime.GOOS == "linux" && !strings.Contains(text, fmt.Sprintf("uid %d ", os.Getuid())) {
		t.Errorf("not told who asked: %s", text)
	}
	if bob, eve := g.served("bob", 6), g.served("eve", 2); bob != 3 || eve != 0 {
		t.Errorf("bob %d, eve %d, want 3 and 0", bob, eve)
	}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if bob, eve := g.served("bob", 2), g.served("eve", 2); bob != 0 || eve != 0 {
		t.Errorf("after a reload: bob %d, eve %d, want none", bob, eve)
	}
	if _, err := New(cfg, Options{}); err == nil || !strings.Contains(err.Error(), "another gateway") {
		t.Errorf("a second gateway with the same file: %v", err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cfg.Admin.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	again := start(t, cfg, Options{})
	if bob, eve := again.served("bob", 6), again.served("eve", 2); bob != 3 || eve != 0 {
		t.Errorf("after a restart: bob %d, eve %d, want 3 and 0", bob, eve)
	}
}

// Asking a running gateway a thousand times what would happen takes nothing: the whole
// burst is there afterwards, and no more. A rule set at run time is told with who set it.
func TestExplainTakesNothing(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	cfg := bookConfig(t, upstream.URL, t.TempDir())
	g := start(t, cfg, Options{})
	if status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", `{"ops": [{"set": {"user": "bob", "rate": "7/h"}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	ask := func(left string) string {
		t.Helper()
		status, text := overSocket(t, cfg.Admin.Socket, http.MethodGet, "/explain?user=bob", "")
		if status != http.StatusOK || !strings.Contains(text, `"left": `+left) {
			t.Fatalf("%d %s, want %s left", status, text, left)
		}
		return text
	}
	for range 999 {
		ask("7")
	}
	if text := ask("7"); !strings.Contains(text, `"from": "set 2`) || !strings.Contains(text, `"rule": "user=*"`) {
		t.Errorf("not all rules, or not whose: %s", text)
	}
	if got := g.served("bob", 3); got != 3 {
		t.Errorf("%d of 3 are served", got)
	}
	ask("4")
	if got := g.served("bob", 20); got != 4 {
		t.Errorf("%d more are served, want the 4 that were left", got)
	}
}

// A socket that a process has left behind is replaced; one that answers is not, and
// what is no socket stays.
func TestSocketLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err != errSocketInUse {
		t.Errorf("one that answers: %v", err)
	}
	ln.Close()
	ln, err = listenUnix(path)
	if err != nil {
		t.Fatalf("one left behind: %v", err)
	}
	ln.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
		t.Errorf("%q %v", data, err)
	}
}
