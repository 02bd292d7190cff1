package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestStatus(t *testing.T) {
	answer := func(status int, body string) string {
		t.Helper()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/gates" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	admin := answer(http.StatusOK, `{"ready": true, "requests_in_flight": 7, "gates": [
		{"name": "api", "mode": "enforce", "limit": 4, "in_flight": 4, "waiting": 3, "admitted": 100,
			"rejected": {"queue_full": 5, "deadline": 1, "canceled": 20}, "controller": "knee", "limit_reason": "capped, cpu 2.00", "signal": "cpu"},
		{"name": "spare", "mode": "off", "limit": 9, "controller": "fixed"}],
		"signals": [{"name": "cpu", "state": "live", "value": 2}, {"name": "heap", "state": "unsupported", "value": null, "error": "no GOMEMLIMIT"}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	if err != nil {
		t.Fatal(err)
	}
	flat := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"ready, 7 requests in progress",
		"api enforce 4 4 3 100 6 20 knee cpu capped, cpu 2.00",
		"spare off 9 0 0 0 0 0 fixed - -",
		"cpu live 2 -",
		"heap unsupported - no GOMEMLIMIT",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}

	f := func(want string, admin string) {
		t.Helper()
		if _, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", admin, err, want)
		}
	}
	f("no gateway answers at 127.0.0.1:1", "127.0.0.1:1")
	f("is no address", "%")
	f("404 Not Found; is it the admin listener", answer(http.StatusNotFound, ""))
	f("does not answer as a gateway does", answer(http.StatusOK, "hello"))
}
