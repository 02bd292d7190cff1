package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func testHandler(ready, profiles bool) http.Handler {
	return Handler(Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "metrics") }),
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
		w := ask(testHandler(ready, false), http.MethodGet, "http://127.0.0.1:9090"+path)
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
	f("http://127.0.0.1:9090/gates", http.StatusOK)
	f("http://[::1]:9090/gates", http.StatusOK)
	f("http://localhost:9090/gates", http.StatusOK)
	f("http://LOCALHOST./gates", http.StatusOK)
	f("http://evil.example:9090/gates", http.StatusMisdirectedRequest)
	f("http://127.0.0.1.evil.example/gates", http.StatusMisdirectedRequest)
	f("http://127.0.0.1:9090/gates", http.StatusOK, "Sec-Fetch-Site", "none")
	f("http://127.0.0.1:9090/gates", http.StatusOK, "Sec-Fetch-Site", "same-origin")
	f("http://127.0.0.1:9090/gates", http.StatusForbidden, "Sec-Fetch-Site", "cross-site")
	f("http://127.0.0.1:9090/debug/pprof/profile", http.StatusForbidden, "Sec-Fetch-Site", "same-site")
	f("http://127.0.0.1:9090/gates", http.StatusForbidden, "Origin", "http://evil.example")
	f("http://127.0.0.1:9090/gates", http.StatusForbidden, "Origin", "http://127.0.0.1:8080")
	f("http://127.0.0.1:9090/gates", http.StatusForbidden, "Origin", "null")
	f("http://127.0.0.1:9090/gates", http.StatusForbidden, "Origin", "http://[")
	f("http://127.0.0.1:9090/gates", http.StatusOK, "Origin", "http://127.0.0.1:9090")
	f("http://LocalHost:9090/gates", http.StatusOK, "Origin", "http://localhost:9090")
	open := Handler(Options{Gates: func() any { return 1 }, Metrics: http.NotFoundHandler(), AnyHost: true})
	if w := ask(open, http.MethodGet, "http://weir.svc:9090/gates"); w.Code != http.StatusOK {
		t.Errorf("a listener on the network, by its name: %d", w.Code)
	}
	if w := ask(open, http.MethodGet, "http://weir.svc:9090/gates", "Sec-Fetch-Site", "cross-site"); w.Code != http.StatusForbidden {
		t.Errorf("a listener on the network, from a page: %d", w.Code)
	}
	if w := ask(h, http.MethodPost, "http://127.0.0.1/gates", "Origin", "http://evil.example"); w.Code != http.StatusForbidden {
		t.Errorf("a form of another origin: %d", w.Code)
	}
}
