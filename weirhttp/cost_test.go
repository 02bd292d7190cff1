package weirhttp_test

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// The cost of a request is set on all of its permits while they are held, or on that of one named gate. After
// they are given back, it is set on none.
func TestSetCost(t *testing.T) {
	pools := weir.Must(keyed.New(keyed.Config{Name: "pools", Limit: 50}))
	defer pools.Close()
	target := weir.Must(keyed.New(keyed.Config{Name: "target", Limit: 50}))
	defer target.Close()
	held := func() [2]int64 { return [2]int64{pools.Snapshot().InFlight, target.Snapshot().InFlight} }
	var kept *weirhttp.Request
	h := weirhttp.Middleware(pools)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := weirhttp.FromContext(r.Context())
		kept = q
		p, err := target.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		q.Attach(target, p)
		q.SetCost("", 7)
		if got := held(); got != [2]int64{7, 7} {
			t.Errorf("of both: %v", got)
		}
		q.SetCost("target", 3)
		if got := held(); got != [2]int64{7, 3} {
			t.Errorf("of one: %v", got)
		}
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	kept.SetCost("", 9)
	if got := held(); got != [2]int64{} {
		t.Errorf("after the request: %v", got)
	}
	(*weirhttp.Request)(nil).SetCost("", 9)
}

// A stream has given its slot back, and its charge can change until it ends. If it becomes a request again, it
// is charged once. So is a request whose cost is set while it becomes a stream.
func TestSetCostOfAStream(t *testing.T) {
	q := weir.Must(quota.New(quota.Config{Name: "tokens", Rules: []quota.Rule{{Windows: []quota.Window{quota.Per(100, time.Hour)}}}}))
	defer q.Close()
	slots := weir.Must(limit.New(limit.Config{Name: "slots", Limit: 1}))
	defer slots.Close()
	left := func() int {
		d, err := q.Peek(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		return int(d.Remaining + 0.5)
	}
	work := weir.Work{Cost: 10, MaxWait: weir.NoWait}
	ask := weirhttp.WithWork(func(_ *http.Request, w *weir.Work) { *w = work })
	var kept *weirhttp.Request
	serve := func(f func(*weirhttp.Request)) {
		h := weirhttp.Middleware(weir.All(q, slots), ask)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			kept = weirhttp.FromContext(r.Context())
			f(kept)
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		kept.SetCost("", 1)
		if q.Snapshot().InFlight != 0 || slots.Snapshot().InFlight != 0 {
			t.Errorf("%d charges and %d slots are held after the request", q.Snapshot().InFlight, slots.Snapshot().InFlight)
		}
	}
	serve(func(r *weirhttp.Request) {
		if !r.ReleaseForStream() || slots.Snapshot().InFlight != 0 || left() != 90 {
			t.Errorf("a stream: %d slots held, %d tokens left", slots.Snapshot().InFlight, left())
		}
		r.SetCost("", 30)
	})
	if left() != 70 {
		t.Errorf("%d left after a stream that has cost 30, want 70", left())
	}
	serve(func(r *weirhttp.Request) {
		if !r.ReleaseForStream() || r.Reacquire(t.Context(), work) != nil || slots.Snapshot().InFlight != 1 || left() != 60 {
			t.Errorf("a request again: %d slots held, %d tokens left; want 1 and 60", slots.Snapshot().InFlight, left())
		}
		r.SetCost("", 20)
	})
	if left() != 50 {
		t.Errorf("%d left after a request that has cost 20, want 50", left())
	}
	serve(func(r *weirhttp.Request) {
		done := make(chan struct{})
		go func() { r.ReleaseForStream(); close(done) }()
		r.SetCost("", 5)
		<-done
	})
	if left() != 45 {
		t.Errorf("%d left after a request that was told its cost as it became a stream, want 45", left())
	}
	serve(func(r *weirhttp.Request) {
		r.ReleaseForStream()
		other, err := slots.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		back := make(chan error)
		go func() { back <- r.Reacquire(t.Context(), weir.Work{Cost: 10, MaxWait: time.Minute}) }()
		for slots.Snapshot().Waiting == 0 {
			runtime.Gosched()
		}
		r.SetCost("", 25)
		r.Sample(weir.OK) // the backend answers before the request has its slot again
		other.Done(weir.OK)
		if err := <-back; err != nil || slots.Snapshot().InFlight != 0 {
			t.Errorf("%v, %d slots held", err, slots.Snapshot().InFlight)
		}
	})
	if left() != 20 {
		t.Errorf("%d left after a request that was answered as it came back, and has cost 25; want 20", left())
	}
}

// A request that reacquires its slot during the release is charged once.
func TestReacquireWhileReleasing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		slots := weir.Must(limit.New(limit.Config{Name: "slots", Limit: 1, Hooks: weir.Hooks{Done: func(string, weir.Outcome, time.Duration) { <-released }}}))
		defer slots.Close()
		q := weir.Must(quota.New(quota.Config{Name: "tokens", Rules: []quota.Rule{{Windows: []quota.Window{{Rate: 1e-6, Burst: 100}}}}}))
		work := weir.Work{Cost: 10}
		ask := weirhttp.WithWork(func(_ *http.Request, w *weir.Work) { *w = work })
		var calls sync.WaitGroup
		h := weirhttp.Middleware(weir.All(q, slots), ask)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			request := weirhttp.FromContext(r.Context())
			calls.Go(func() { request.ReleaseForStream() })
			synctest.Wait() // until the hook waits
			calls.Go(func() {
				if err := request.Reacquire(t.Context(), work); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			close(released)
			calls.Wait()
			if n := slots.Snapshot().InFlight; n != 1 {
				t.Errorf("%d slots are held, want 1", n)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		d, err := q.Peek(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		if left := int(d.Remaining + 0.5); left != 90 || q.Snapshot().InFlight != 0 || slots.Snapshot().InFlight != 0 {
			t.Errorf("%d tokens are left, want 90; %d charges and %d slots are held", left, q.Snapshot().InFlight, slots.Snapshot().InFlight)
		}
	})
}
