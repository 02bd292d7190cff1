package weirhttp

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

func TestUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := yielder{epoch: time.Now()}
		if u.underPressure() {
			t.Error("under pressure before anything was refused")
		}
		u.recordRefusal()
		if !u.underPressure() {
			t.Error("not under pressure right after a refusal")
		}
		time.Sleep(pressure - time.Millisecond)
		if !u.underPressure() {
			t.Error("not under pressure within a second of a refusal")
		}
		time.Sleep(time.Millisecond)
		if u.underPressure() {
			t.Error("under pressure a second after the last refusal")
		}
	})
}

// Handlers are timed under pressure only, and their mean follows.
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
		if got := m.yielder.mean.Load(); got != 0 {
			t.Errorf("a handler was timed with nothing refused: %v", time.Duration(got))
		}
		go serve()
		synctest.Wait()
		if code := serve(); code != http.StatusServiceUnavailable {
			t.Fatalf("status %d, want 503", code)
		}
		hold <- struct{}{}
		synctest.Wait()
		handled(8 * time.Millisecond)
		if got, want := time.Duration(m.yielder.mean.Load()), time.Millisecond; got != want {
			t.Errorf("mean %v after one handler of 8ms, want an eighth, %v", got, want)
		}
	})
}

// Many polls at once all return, and leave nothing behind that the next would
// take for its own.
func TestPollNetwork(t *testing.T) {
	var wg sync.WaitGroup
	var returned atomic.Int32
	for range 200 {
		wg.Go(func() {
			for range 20 {
				pollNetwork()
			}
			returned.Add(1)
		})
	}
	wg.Wait()
	pollNetwork()
	if n := returned.Load(); n != 200 {
		t.Errorf("%d callers returned, want 200", n)
	}
}

func BenchmarkPollNetwork(b *testing.B) {
	for b.Loop() {
		pollNetwork()
	}
}
