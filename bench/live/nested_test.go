package live

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A handler that calls the gate it has passed goes by its own slot if the context says
// so, and stands before itself if not: with one slot nothing ever comes of it.
func TestNestedInside(t *testing.T) {
	for _, told := range []string{nestedTold, nestedUntold} {
		c := &child{epoch: time.Now(), backend: newStation(lawOne)}
		h, err := c.guarded(&role{Nested: told, Guard: Guard{Name: told, Kind: "fixed", Limit: 1, MaxWait: ms(20)}})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(t.Context())
		r.Header.Set(workHeader, "100")
		h.ServeHTTP(w, r)
		got, want, status := c.stats().Nested, Nested{Calls: 1}, http.StatusOK
		if told == nestedUntold {
			want, status = Nested{Calls: 1, Behind: 1, Stuck: 1}, http.StatusServiceUnavailable
		}
		got.P99 = 0
		if got != want || w.Code != status {
			t.Errorf("%s: %+v and status %d, want %+v and %d: %s", told, got, w.Code, want, status, w.Body)
		}
	}
}

// By way of a gateway a nested call is a request like any other: what is answered
// anything but 200 is stuck.
func TestNestedOutside(t *testing.T) {
	statuses := []int{http.StatusOK, http.StatusServiceUnavailable}
	var inner http.Handler
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != innerPath || r.Header.Get("X-Priority") != "high" {
			t.Errorf("%s of priority %q came", r.URL, r.Header.Get("X-Priority"))
		}
		status := statuses[0]
		if statuses = statuses[1:]; status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer gateway.Close()
	c := &child{epoch: time.Now(), backend: newStation(lawOne), limits: new(limits)}
	inner = c.bare(&role{Nested: gateway.URL})
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(workHeader, "100")
		inner.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("status %d, want %d: %s", w.Code, want, w.Body)
		}
	}
	if got := c.stats(); got.Nested.Calls != 2 || got.Nested.Stuck != 1 || got.Nested.P99 <= 0 || got.Done != 3 {
		t.Errorf("%+v", got)
	}
}
