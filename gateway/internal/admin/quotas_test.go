package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
)

const testToken = "0123456789abcdef-of-a-test"

// quotaDesk is an admin listener with a quota, whose rules are in a file.
type quotaDesk struct {
	http.Handler
	book *quotas.Book
	log  *bytes.Buffer
	file string // with the token
}

func newCounter(t *testing.T, withToken bool) *quotaDesk {
	t.Helper()
	dir := t.TempDir()
	store, err := quotas.OpenFile(filepath.Join(dir, "quotas.json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	c := &quotaDesk{log: new(bytes.Buffer)}
	logger := slog.New(slog.NewTextHandler(c.log, nil))
	if c.book, err = quotas.Open(t.Context(), quotas.Options{Store: store, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	spec := policy.Spec{Gates: map[string]policy.GateSpec{"api": {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}, By: []string{"user"}}}}}
	plan := c.book.Plan(spec, func(string, string) string { return "weir.yaml:7" }, nil)
	c.book.SetPolicy(plan, compiled(t, spec.Gates, policy.Options{QuotaRules: plan.Rules}))
	if withToken {
		c.file = filepath.Join(dir, "token")
		if err := os.WriteFile(c.file, []byte(testToken+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.Handler = Handler(Options{
		Metrics: http.NotFoundHandler(), Gates: func() any { return 1 }, Ready: func() bool { return true },
		Quotas: &QuotaAPI{Book: c.book, Writers: &Writers{TokenFile: func() string { return c.file }, Socket: func() string { return "" }, Log: eventlog.New(logger, nil)}},
	})
	return c
}

// send asks with a body; header are names and values.
func (c *quotaDesk) send(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:8090"+path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

// write asks with the token and a JSON body.
func (c *quotaDesk) write(method, path, body string, header ...string) *httptest.ResponseRecorder {
	return c.send(method, path, body, append([]string{"Authorization", "Bearer " + testToken, "Content-Type", "application/json"}, header...)...)
}

const setCarol = `{"ops": [{"gate": "api", "set": {"user": "carol", "rate": "3/h"}}]}`

// Only who has the token may write, and no web page; whoever may not leaves nothing
// but a line in the log, in which no token is.
func TestQuotaWriters(t *testing.T) {
	f := func(c *quotaDesk, status int, part string, header ...string) {
		t.Helper()
		w := c.send(http.MethodPost, "/quotas", setCarol, append([]string{"Content-Type", "application/json"}, header...)...)
		if w.Code != status || !strings.Contains(w.Body.String(), part) {
			t.Errorf("%v: %d %s, want %d with %q", header, w.Code, w.Body, status, part)
		}
		if status != http.StatusOK && len(c.book.List("").Rules) != 1 {
			t.Errorf("%v: something was written", header)
		}
		if strings.Contains(c.log.String(), testToken) {
			t.Errorf("the token is in the log:\n%s", c.log)
		}
	}
	good := "Bearer " + testToken
	c := newCounter(t, true)
	f(c, http.StatusUnauthorized, "token")
	f(c, http.StatusUnauthorized, "token", "Authorization", "Bearer ")
	f(c, http.StatusUnauthorized, "wrong", "Authorization", "Bearer "+testToken[1:])
	f(c, http.StatusUnauthorized, "token", "Authorization", "Basic "+testToken)
	f(c, http.StatusForbidden, "web pages", "Authorization", good, "Origin", "http://evil.example")
	f(c, http.StatusForbidden, "web pages", "Authorization", good, "Origin", "http://127.0.0.1:8090")
	f(c, http.StatusForbidden, "web pages", "Authorization", good, "Sec-Fetch-Site", "same-origin")
	f(c, http.StatusUnsupportedMediaType, "Content-Type", "Authorization", good, "Content-Type", "text/plain")
	f(newCounter(t, false), http.StatusForbidden, "nobody may write", "Authorization", good)
	short := newCounter(t, true)
	if err := os.WriteFile(short.file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(short, http.StatusForbidden, "5 bytes", "Authorization", "Bearer short")
	if err := os.Remove(short.file); err != nil {
		t.Fatal(err)
	}
	f(short, http.StatusForbidden, "cannot read", "Authorization", "Bearer short")
	f(c, http.StatusOK, "carol", "Authorization", good)
	if !strings.Contains(c.log.String(), "token from 192.0.2.1") {
		t.Errorf("who did it is not logged:\n%s", c.log)
	}
}

func TestQuotaRequests(t *testing.T) {
	c := newCounter(t, true)
	f := func(method, path, body string, status int, part string, header ...string) http.Header {
		t.Helper()
		w := c.write(method, path, body, header...)
		if w.Code != status || !strings.Contains(w.Body.String(), part) {
			t.Errorf("%s %s %.200s: %d %s, want %d with %q", method, path, body, w.Code, w.Body, status, part)
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %s: no JSON: %s", method, path, w.Body)
		}
		return w.Header()
	}
	first := f("GET", "/quotas", "", 200, `"place": "weir.yaml:7"`).Get("ETag")
	f("POST", "/quotas", `{"ops": [], "X": 1}`, 400, "X: there is no such field")
	f("POST", "/quotas", `{"ops": [{"gate": "api", "sett": {}}]}`, 400, "sett")
	f("POST", "/quotas", `{"ops": []}`, 422, "from 1 to")
	f("POST", "/quotas", setCarol+"{}", 400, "after the end")
	f("POST", "/quotas", strings.Repeat(" ", mostBody+1), 413, "larger")
	f("POST", "/quotas", `{"ops": [{"set": {"user": "x", "rate": "0/s"}}]}`, 422, `"op": 0`)
	f("POST", "/quotas", setCarol, 412, "changed since", "If-Match", `"other"`)
	f("POST", "/quotas", setCarol, 400, "If-Match", "If-Match", "W/"+first)
	f("POST", "/quotas", setCarol, 400, "If-Match", "If-Match", first+`, "b"`)
	f("POST", "/quotas", strings.Replace(setCarol, "]}", `], "validate_only": true}`, 1), 200, `"validate_only": true`)
	if now := f("GET", "/quotas", "", 200, "").Get("ETag"); now != first {
		t.Errorf("ETag %s after nothing was changed, before %s", now, first)
	}
	second := f("POST", "/quotas", setCarol, 200, `"matches": "user=carol"`, "If-Match", first).Get("ETag")
	if now := f("GET", "/quotas/api", "", 200, "carol").Get("ETag"); now != second || second == first {
		t.Errorf("ETag %s, the answer to the write had %s", now, second)
	}
	f("POST", "/quotas", setCarol, 412, "changed since", "If-Match", first)
	f("GET", "/quotas/nope", "", 404, "no gate")
	f("PUT", "/quotas/api", `{"rules": []}`, 428, "If-Match")
	f("PUT", "/quotas/api", `{}`, 400, "rules is missing", "If-Match", "*")
	f("PUT", "/quotas/api", `{"rules": [{"user": "dave", "blocked": true}]}`, 200, "dave", "If-Match", second)
	f("DELETE", "/quotas/api?user=carol", "", 404, "no rule for user=carol")
	f("DELETE", "/quotas/api?usr=carol", "", 400, "usr")
	f("DELETE", "/quotas/api?user=a&user=b", "", 400, "one value")
	f("DELETE", "/quotas/api?", "", 400, "names no rule")
	f("DELETE", "/quotas/api?&", "", 400, "names no rule")
	f("POST", "/quotas", `{"ops":[{"set":{"user":"","blocked":true}}]}`, 400, "ops[0].set.user: is empty")
	f("POST", "/quotas", `{"ops":[{"delete":{"user":""}}]}`, 400, "ops[0].delete.user: is empty")
	f("DELETE", "/quotas/api?user=dave", "", 200, "dave")
	f("DELETE", "/quotas/api", "", 200, `"steps": []`)
}

// pacedBody is a body that comes when it may, and notes that somebody reads it.
type pacedBody struct {
	io.Reader
	comes   chan struct{}
	reading atomic.Bool
}

func (b *pacedBody) Read(p []byte) (int, error) {
	b.reading.Store(true)
	<-b.comes
	return b.Reader.Read(p)
}

// Only a few bodies are read at a time, so that large changes by many do not fill the memory.
// The others wait, and are carried out.
func TestQuotaChangesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, true)
		comes := make(chan struct{})
		bodies := make([]*pacedBody, mostChanges+3)
		statuses := make(chan int, len(bodies))
		for i := range bodies {
			bodies[i] = &pacedBody{Reader: strings.NewReader(setCarol), comes: comes}
			go func() {
				r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:8090/quotas", bodies[i])
				r.Header.Set("Authorization", "Bearer "+testToken)
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				c.ServeHTTP(w, r)
				statuses <- w.Code
			}()
		}
		synctest.Wait()
		reading := 0
		for _, b := range bodies {
			if b.reading.Load() {
				reading++
			}
		}
		if reading != mostChanges {
			t.Errorf("%d bodies are read at the same time, want %d", reading, mostChanges)
		}
		close(comes)
		for range bodies {
			if status := <-statuses; status != http.StatusOK {
				t.Errorf("status %d", status)
			}
		}
	})
}

// Who asks over a Unix socket needs no token, and is known by the kernel.
func TestQuotaOverSocket(t *testing.T) {
	c := newCounter(t, false)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: c.Handler, ConnContext: withPeer}
	go srv.Serve(ln)
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", ln.Addr().String())
	}}}
	defer client.CloseIdleConnections()
	res, err := client.Post("http://localhost/quotas", "application/json", strings.NewReader(setCarol))
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	res.Body.Close()
	for _, v := range c.book.List("api").Rules {
		if v.Source == quotas.FromDynamic && !strings.Contains(v.SetBy, "over the socket") {
			t.Errorf("set by %q", v.SetBy)
		}
	}
}

// What was never understood is answered in words that are not those of a program, and
// logged with who sent it, like a change that was refused for what it says.
func TestQuotaRefusalsAreLogged(t *testing.T) {
	c := newCounter(t, true)
	f := func(method, path, body string, status int, parts ...string) {
		t.Helper()
		before := c.log.Len()
		w := c.write(method, path, body, "If-Match", "*")
		line := c.log.String()[before:]
		if w.Code != status || strings.Contains(w.Body.String(), "quotas.") || strings.Contains(w.Body.String(), "Go ") {
			t.Errorf("%s %s %s: %d %s", method, path, body, w.Code, w.Body)
		}
		for _, part := range append(parts, `msg="quota change refused"`, `by="token from 192.0.2.1`, "result=refused") {
			if !strings.Contains(line, part) {
				t.Errorf("%s %s %s: no %s in %s", method, path, body, part, line)
			}
		}
	}
	f("POST", "/quotas", `[]`, 400, "is a list; write fields")
	f("PUT", "/quotas/api", `[]`, 400, "is a list; write fields")
	f("PUT", "/quotas/api", `{"rules": {}}`, 400, "rules: is a group of fields; write a list")
	f("PUT", "/quotas/api", `{"rules": [{"user": "x", "rate": 7}]}`, 400, "is a number, not a text; write a limit such as 10/s")
	f("PUT", "/quotas/api", `{"rules": [{"user": "x", "rate": "0/s"}]}`, 422, `asked="api: replace all by 1 rules"`)
	f("PUT", "/quotas/apo", `{"rules": []}`, 404, "there is no gate", "gates with a quota are api")
	f("DELETE", "/quotas/api?usr=x", "", 400, "usr")
	f("DELETE", "/quotas/api?user=x", "", 404, `asked="api: delete user=x"`)
	f("DELETE", "/quotas/apo", "", 404, `asked="apo: delete all"`)
	if n := c.book.Stats().Changes[quotas.By{Via: quotas.ViaToken, Result: quotas.Refused}]; n != 9 {
		t.Errorf("%d are counted, want 9", n)
	}
}

// A reset is for writers, has its answer, and its own line in the log.
func TestQuotaReset(t *testing.T) {
	c := newCounter(t, true)
	f := func(path, body string, status int, part string, header ...string) {
		t.Helper()
		before := c.log.Len()
		w := c.write("POST", path, body, header...)
		if w.Code != status || !strings.Contains(w.Body.String(), part) || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: %d %s, want %d with %q", path, w.Code, w.Body, status, part)
		}
		if line := c.log.String()[before:]; strings.Count(line, "\n") != 1 || !strings.Contains(line, "192.0.2.1") {
			t.Errorf("%s: the log has\n%s", path, line)
		}
	}
	f("/quotas/api/reset?user=alice", "", 200, `"bucket": "api/user=alice"`)
	f("/quotas/apo/reset?user=alice", "", 404, "there is no gate")
	f("/quotas/api/reset", "", 422, "nobody is named")
	f("/quotas/api/reset?user=*", "", 422, "is not a name")
	f("/quotas/api/reset?tenant=t", "", 422, "user: is missing")
	f("/quotas/api/reset?usr=alice", "", 400, "usr")
	f("/quotas/api/reset?user=a&user=b", "", 400, "one value")
	f("/quotas/api/reset?user=", "", 400, "one value")
	f("/quotas/api/reset?user=alice", "{}", 400, "no body")
	f("/quotas/api/reset?user=alice", "", 403, "web pages", "Sec-Fetch-Site", "same-origin")
	if w := c.send("POST", "/quotas/api/reset?user=alice", ""); w.Code != http.StatusUnauthorized {
		t.Errorf("without a token: %d %s", w.Code, w.Body)
	}
	if w := c.write("GET", "/quotas/api/reset?user=alice", ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d %s", w.Code, w.Body)
	}
	changes := c.book.Stats().Changes
	if n := changes[quotas.By{Via: quotas.ViaToken, Result: quotas.Filled}]; n != 1 {
		t.Errorf("%d resets are counted, want 1: %v", n, changes)
	}
	if len(c.book.List("").Rules) != 1 {
		t.Error("a rule has changed")
	}
}
