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

// nowhere is an address at which nobody listens.
func nowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// storeConfig is a gateway with a quota of two whose store is at that address.
func storeConfig(t *testing.T, upstream, address, onError string) *config.Config {
	t.Helper()
	q := slowly(2)
	q.Store, q.OnStoreError = "shared", onError
	cfg := quotaConfig(t, upstream, map[string]policy.GateSpec{"api": {Quota: q}}, "api")
	cfg.Stores = map[string]config.Store{"shared": {Redis: "redis://" + address}}
	return cfg
}

// A gateway whose store is gone starts all the same, does what on_store_error says, and
// shows it.
func TestStoreGone(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	for onError, want := range map[string]string{"": "200 200 429", "local": "200 200 429", "open": "200 200 200", "closed": "503 503 503"} {
		g := start(t, storeConfig(t, up.URL, nowhere(t), onError), Options{})
		var got []string
		for range 3 {
			resp, _ := get(t, g.url)
			got = append(got, resp.Status[:3])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("on_store_error %q: answers %v, want %s", onError, got, want)
		}
		look := g.metrics.Status()
		if len(look.Stores) != 1 || !look.Stores[0].Down || look.Stores[0].Why == "" || look.Stores[0].Failed["down"] == 0 {
			t.Errorf("stores %+v", look.Stores)
		}
		for _, gate := range look.Gates {
			if q := gate.Quota; gate.Kind == "quota" && (q == nil || q.StoreErrors != 3 || q.Buckets != nil || q.Rules != 1) {
				t.Errorf("quota %+v", q)
			}
		}
		if !strings.Contains(g.log.String(), "a store of quotas cannot be used (in a cluster, perhaps for some keys only); until it can, each gate does") {
			t.Error("the log does not say so")
		}
	}
}

// A store lives on over reloads, and is closed when it is not in the configuration any
// more; one with other settings is another.
func TestStoreReloaded(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := storeConfig(t, up.URL, nowhere(t), "local")
	next := cfg
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return next, nil }})
	first := g.state.Load().stores["shared"]
	get(t, g.url)

	reload := func(want bool) {
		t.Helper()
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
		if same := g.state.Load().stores["shared"] == first; same != want {
			t.Errorf("the same store: %v, want %v", same, want)
		}
	}
	reload(true)
	if f := g.Policy().Gate("api").Quota().Faults(); f.StoreErrors != 1 {
		t.Errorf("%+v: the gate was not adopted", f)
	}
	faulty := *cfg
	faulty.Stores = map[string]config.Store{"shared": cfg.Stores["shared"], "other": {Redis: "redis://127.0.0.1", Secret: config.Secret{PasswordEnv: "WEIR_TEST_UNSET"}}}
	next = &faulty
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "stores.other: the environment has no variable WEIR_TEST_UNSET") {
		t.Errorf("%v", err)
	}
	moved := *cfg
	moved.Stores = map[string]config.Store{"shared": {Redis: cfg.Stores["shared"].Redis + "/1"}}
	next = &moved
	reload(false)
	if err := g.stop(); err != nil {
		t.Error(err)
	}
}

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
	t.Parallel()
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
	for _, part := range []string{"kept in another place", "rules=1 still_in=" + cfg.Quotas.File} {
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
	if status, text := overSocket(t, cfg.Admin.Socket, http.MethodPost, "/quotas", blockEve); status != http.StatusConflict || !strings.Contains(text, "no place is configured") {
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
	f("runtime_quotas.file: "+filepath.Join(dir, "no", "q.json")+": its directory does not exist", func(c *config.Config) {
		c.Admin.Socket, c.Quotas.File = free, filepath.Join(dir, "no", "q.json")
	})
	f("runtime_quotas.file: quota rules set at run time cannot be read: "+broken+":2:16: weir_quotas: 7 ", func(c *config.Config) {
		c.Admin.Socket, c.Quotas.File = free, broken
	})
	f("admin.socket: cannot listen on the socket "+broken+": a file that is not a socket is there", func(c *config.Config) { c.Admin.Socket = broken })
	if err := reload(func(c *config.Config) { c.Quotas.File = filepath.Join(dir, "broken.json2") }); err != nil {
		t.Errorf("after the refusals: %v", err)
	}
	if err := reload(func(c *config.Config) { c.Quotas.File, c.Quotas.StartBroken = broken, true }); err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(g.explainView().Notes, "\n"); !strings.Contains(notes, "none of them is in force: "+broken) {
		t.Errorf("explain says %q", notes)
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
