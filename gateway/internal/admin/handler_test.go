package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func testHandler(ready, profiles bool) http.Handler {
	return Handler(Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "metrics") }),
		Gates:   func() any { return map[string]int{"a": 1} },
		Ready:   func() bool { return ready },
		Pprof:   profiles,
	})
}

func ask(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	f := func(path string, ready bool, status int, part string) {
		t.Helper()
		w := ask(testHandler(ready, false), http.MethodGet, "http://127.0.0.1:8090"+path)
		if w.Code != status || !strings.Contains(w.Body.String(), part) {
			t.Errorf("%s, ready %v: %d %q, want %d with %q", path, ready, w.Code, w.Body, status, part)
		}
	}
	f("/metrics", true, http.StatusOK, "metrics")
	f("/healthz", false, http.StatusOK, "ok")
	f("/readyz", true, http.StatusOK, "ready")
	f("/readyz", false, http.StatusServiceUnavailable, "draining")
	f("/gates", true, http.StatusOK, `"a": 1`)
	f("/", true, http.StatusOK, "/gates")
	f("/debug/pprof/cmdline", true, http.StatusNotFound, "")
	if w := ask(testHandler(true, true), http.MethodGet, "http://127.0.0.1/debug/pprof/cmdline"); w.Code != http.StatusOK {
		t.Errorf("pprof: %d", w.Code)
	}
	if w := ask(testHandler(true, true), http.MethodPost, "http://127.0.0.1/gates"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// A web page must not be able to read or start anything here.
func TestWebPagesStayOut(t *testing.T) {
	h := testHandler(true, true)
	f := func(target string, status int, header ...string) {
		t.Helper()
		if w := ask(h, http.MethodGet, target, header...); w.Code != status {
			t.Errorf("%s %v: %d, want %d", target, header, w.Code, status)
		}
	}
	f("http://127.0.0.1:8090/gates", http.StatusOK)
	f("http://[::1]:8090/gates", http.StatusOK)
	f("http://localhost:8090/gates", http.StatusOK)
	f("http://LOCALHOST./gates", http.StatusOK)
	f("http://evil.example:8090/gates", http.StatusMisdirectedRequest)
	f("http://127.0.0.1.evil.example/gates", http.StatusMisdirectedRequest)
	f("http://127.0.0.1:8090/gates", http.StatusOK, "Sec-Fetch-Site", "none")
	f("http://127.0.0.1:8090/gates", http.StatusOK, "Sec-Fetch-Site", "same-origin")
	f("http://127.0.0.1:8090/gates", http.StatusForbidden, "Sec-Fetch-Site", "cross-site")
	f("http://127.0.0.1:8090/debug/pprof/profile", http.StatusForbidden, "Sec-Fetch-Site", "same-site")
	f("http://127.0.0.1:8090/gates", http.StatusForbidden, "Origin", "http://evil.example")
	f("http://127.0.0.1:8090/gates", http.StatusForbidden, "Origin", "http://127.0.0.1:8080")
	f("http://127.0.0.1:8090/gates", http.StatusForbidden, "Origin", "null")
	f("http://127.0.0.1:8090/gates", http.StatusForbidden, "Origin", "http://[")
	f("http://127.0.0.1:8090/gates", http.StatusOK, "Origin", "http://127.0.0.1:8090")
	f("http://LocalHost:8090/gates", http.StatusOK, "Origin", "http://localhost:8090")
	open := Handler(Options{Gates: func() any { return 1 }, Metrics: http.NotFoundHandler(), AnyHost: true})
	if w := ask(open, http.MethodGet, "http://weir.svc:8090/gates"); w.Code != http.StatusOK {
		t.Errorf("a listener on the network, by its name: %d", w.Code)
	}
	if w := ask(open, http.MethodGet, "http://weir.svc:8090/gates", "Sec-Fetch-Site", "cross-site"); w.Code != http.StatusForbidden {
		t.Errorf("a listener on the network, from a page: %d", w.Code)
	}
	if w := ask(h, http.MethodPost, "http://127.0.0.1/gates", "Origin", "http://evil.example"); w.Code != http.StatusForbidden {
		t.Errorf("a form of another origin: %d", w.Code)
	}
}

// A health check over HTTP/1.0 names no host. No browser leaves it out.
func TestNoHost(t *testing.T) {
	s := httptest.NewServer(testHandler(true, false))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /readyz HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || string(body) != "ready\n" || err != nil {
		t.Errorf("%s %q, %v", res.Status, body, err)
	}
}

// A rule that is nonsense is refused with a sentence, and nothing changes, whichever
// way it comes.
func TestBadQuotaInput(t *testing.T) {
	text := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	bad := map[string]string{ // members of a rule beside its user, to what is said
		`"rate": 10`: "", `"rate": "10/s", "burst": -1`: "", `"rate": "10/s", "burst": 0.5`: "burst", `"rate": "10/s", "burst": 1e300`: "burst",
		`"rate": "10/s", "burst": 1e999`: "", `"rate": "10/s", "burst": NaN`: "", `"rate": "10/s", "burst": "20"`: "", `"rate": "10/s", "burst": 2e15`: "burst",
		`"limits": ["1/h", "0/s"]`: "not above 0", `"limits": []`: "", `"rate": ""`: "", `"rate": null`: "", `"rate": "10/s", "blocked": true`: "",
	}
	for rate, want := range map[string]string{
		"0/s": "not above 0", "-1/s": "not above 0", "NaN/s": "is not a number", "Inf/s": "is not a number", "1e300/s": "out of range", "1e-300/s": "out of range",
		"10/s burst 0": "not above 0", "10/s burst -1": "not above 0", "10/s burst NaN": "is not a number", "10/s burst 1e300": "out of range", "10": "is not a limit",
		strings.Repeat("9", 10<<10) + "/s": "bytes are too many for a limit", "10/s\x00": "is not a unit",
	} {
		bad[`"rate": `+text(rate)] = want
	}
	c := newCounter(t, true)
	refused := func(what, method, path, body, want string, header ...string) {
		t.Helper()
		w := c.write(method, path, body, header...)
		if w.Code < 400 || w.Code >= 500 || !strings.Contains(w.Body.String(), want) || !json.Valid(w.Body.Bytes()) || w.Body.Len() > 4000 {
			t.Errorf("%s: %.100s: %d %.300s, want a refusal with %q", what, body, w.Code, w.Body, want)
		}
		if n := len(c.book.List("").Rules); n != 1 {
			t.Fatalf("%s: %.100s: there are %d rules now", what, body, n)
		}
	}
	for members, want := range bad {
		refused("set", "POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": "alice", %s}}]}`, members), want)
		refused("among good ones", "POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": "bob", "rate": "1/h"}}, {"gate": "api", "set": {"user": "alice", %s}}]}`, members), want)
		refused("put", "PUT", "/quotas/api", fmt.Sprintf(`{"rules": [{"user": "alice", %s}]}`, members), want, "If-Match", "*")
	}
	for _, name := range []string{strings.Repeat("x", 10<<10), "a\x00b", "a\nb"} {
		refused("name", "POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": %s, "rate": "1/h"}}]}`, text(name)), "no user has this name")
	}
	for _, body := range []string{"", "null", "[]", "{", `{"ops": null}`, `{"ops": [{}]}`, `{"ops": [null]}`, "\x00", `{"ops": [{"gate": "api", "set": {}}]}`} {
		refused("body", "POST", "/quotas", body, "")
	}
	for _, name := range []string{"{}", "a/client=b", "~"} {
		if w := c.write("POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": %s, "rate": "1/h"}}]}`, text(name))); w.Code != http.StatusOK {
			t.Errorf("%q: %d %s", name, w.Code, w.Body)
		}
	}
}
