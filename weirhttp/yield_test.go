package weirhttp

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// Handlers are timed only within a second of a refusal, and the mean follows their times.
func TestTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := weir.Must(limit.New(limit.Config{Name: "gate", Limit: 1, Queue: limit.Queue{Len: -1}}))
		m := newMiddleware(gate, nil)
		hold := make(chan struct{})
		m.next = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold })
		serve := func() int {
			w := httptest.NewRecorder()
			m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Code
		}
		handled := func(d time.Duration) {
			go serve()
			time.Sleep(d)
			hold <- struct{}{}
			synctest.Wait()
		}
		handled(8 * time.Millisecond)
		if got := m.yielder.Mean(); got != 0 {
			t.Errorf("a handler was timed with nothing refused: %v", got)
		}
		go serve()
		synctest.Wait()
		if code := serve(); code != http.StatusServiceUnavailable {
			t.Fatalf("status %d, want 503", code)
		}
		hold <- struct{}{}
		synctest.Wait()
		handled(8 * time.Millisecond)
		if got, want := m.yielder.Mean(), time.Millisecond; got != want {
			t.Errorf("mean %v after one handler of 8ms, want an eighth, %v", got, want)
		}
	})
}
