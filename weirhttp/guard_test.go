package weirhttp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-go/weir"
)

func TestGuard(t *testing.T) {
	g := newFakeGate(1)
	guard := NewGuard(WithBufferedBody(10), WithStreams(nil))
	r := httptest.NewRequest("POST", "/", strings.NewReader("hello"))
	serve := func(gate weir.Gate, next func(http.ResponseWriter, *http.Request, *Request)) int {
		w := httptest.NewRecorder()
		guard.Serve(w, r, gate, weir.Work{Op: "op"}, next)
		return w.Code
	}
	status := serve(g, func(w http.ResponseWriter, inner *http.Request, q *Request) {
		if body, err := io.ReadAll(inner.Body); string(body) != "hello" || err != nil {
			t.Errorf("body %q, %v", body, err)
		}
		if q == nil || FromContext(inner.Context()) != nil || inner.Context() != r.Context() {
			t.Errorf("handle %p; the context must be the request's own", q)
		}
		full := newFakeGate(0)
		full.refuse = &weir.Rejection{Reason: weir.ReasonDeadline}
		if got := serve(full, nil); got != http.StatusServiceUnavailable {
			t.Errorf("refused: %d, want 503", got)
		}
		q.Sample(weir.Overload)
		w.WriteHeader(http.StatusAccepted)
	})
	if status != http.StatusAccepted || len(g.works) != 1 || g.works[0].Op != "op" {
		t.Errorf("status %d, works %+v", status, g.works)
	}
	if got := serve(g, func(_ http.ResponseWriter, inner *http.Request, _ *Request) {}); got != http.StatusOK {
		t.Errorf("the slot did not come back: %d", got)
	}
	func() {
		defer func() { _ = recover() }()
		serve(g, func(http.ResponseWriter, *http.Request, *Request) { panic("on purpose") })
	}()
	if got := serve(nil, func(w http.ResponseWriter, inner *http.Request, q *Request) {
		if q != nil || inner != r {
			t.Error("no gate: the request must come untouched")
		}
		w.WriteHeader(http.StatusTeapot)
	}); got != http.StatusTeapot {
		t.Errorf("no gate: %d", got)
	}
	if got := serve(g, func(http.ResponseWriter, *http.Request, *Request) {}); got != http.StatusOK {
		t.Errorf("the slot did not come back after a panic: %d", got)
	}
}
