package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// watched starts an exchange without a request.
func watched(t *testing.T, u *Upstream, client context.Context) *exchange {
	t.Helper()
	x := &exchange{call: new(Call), upstream: u, client: client, started: u.now()}
	x.values.Context = client
	x.Context, x.cancel = context.WithCancel(&x.values)
	if d := time.Duration(u.cfg.ResponseTimeout); d > 0 {
		x.deadline = x.started + d
	}
	u.shared.watch.add(x)
	t.Cleanup(func() {
		x.cancel()
		time.Sleep(2 * watchLinger) // the watch ends by itself, if there is time
	})
	return x
}

func TestWatch(t *testing.T) {
	mean := 200 * time.Millisecond
	f := func(what string, abandon config.OnAbandon, act func(u *Upstream, x *exchange, leave func()), want error, after time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			u := newTestUpstream(t, "http://a")
			u.cfg.ResponseTimeout, u.cfg.OnAbandon = policy.Duration(time.Second), abandon
			u.Expect(mean)
			client, leave := context.WithCancel(t.Context())
			defer leave()
			x := watched(t, u, client)
			act(u, x, leave)
			began := time.Now()
			select {
			case <-x.Done():
			case <-time.After(10 * time.Second):
			}
			took := time.Since(began)
			if got := x.cancelledBy(); got != want || took < after || took > after+watchEvery {
				t.Errorf("%s: ended after %v by %v; want %v by %v", what, took, got, after, want)
			}
			u.shared.watch.remove(x)
		})
	}
	nothing := func(*Upstream, *exchange, func()) {}
	f("no answer", config.Hold, nothing, errResponseTimeout, time.Second)
	f("the client leaves, release", config.Release, func(_ *Upstream, _ *exchange, leave func()) { leave() }, errClientLeft, 0)
	f("the client leaves, hold", config.Hold, func(_ *Upstream, _ *exchange, leave func()) { leave() }, errClientLeft, time.Second)
	f("the client leaves, hold with no time-out", config.Hold, func(_ *Upstream, x *exchange, leave func()) {
		x.deadline = 0
		leave()
	}, errClientLeft, answerWithin*200*time.Millisecond)
	f("the client leaves late, hold", config.Hold, func(_ *Upstream, _ *exchange, leave func()) {
		time.Sleep(700 * time.Millisecond)
		leave()
	}, errClientLeft, 300*time.Millisecond) // no longer than the response time-out, as with its client there
	f("the client leaves while it is waited for, hold", config.Hold, func(_ *Upstream, x *exchange, leave func()) {
		x.pause()
		leave()
	}, errClientLeft, time.Second)
	f("the client leaves after the answer began", config.Hold, func(_ *Upstream, x *exchange, leave func()) {
		if !x.endWait() {
			t.Error("the client was there")
		}
		leave()
	}, errClientLeft, 0)
	cut := func(act func(x *exchange, leave func())) func(*Upstream, *exchange, func()) {
		return func(_ *Upstream, x *exchange, leave func()) {
			cutting, cut := context.WithCancel(context.Background())
			x.mu.Lock()
			x.call.Cutting = cutting
			x.mu.Unlock()
			act(x, leave)
			time.Sleep(100 * time.Millisecond)
			cut()
		}
	}
	f("a shutdown cuts whose client has left, hold", config.Hold, cut(func(_ *exchange, leave func()) { leave() }), errClientLeft, 0)
	f("a shutdown cuts what no client is known to have left", config.Hold, cut(func(*exchange, func()) {}), errCut, 0)
	f("a shutdown cuts an upload", config.Hold, cut(func(x *exchange, _ func()) { x.pause() }), errCut, 0)
	f("a shutdown cuts what is answered", config.Hold, cut(func(x *exchange, _ func()) { x.endWait() }), errCut, 0)
	f("answered", config.Hold, func(_ *Upstream, x *exchange, _ func()) { x.endWait() }, nil, 10*time.Second)
	f("the client is slow to send", config.Hold, func(_ *Upstream, x *exchange, _ func()) {
		x.pause()
		time.Sleep(5 * time.Second)
		x.resume()
	}, errResponseTimeout, time.Second)
	idle := func(act func(x *exchange)) func(*Upstream, *exchange, func()) {
		return func(u *Upstream, x *exchange, _ func()) {
			x.mu.Lock()
			u.cfg.GRPCIdleTimeout, x.call.GRPC = policy.Duration(3*time.Second), true
			x.mu.Unlock()
			act(x)
		}
	}
	f("a call whose client says nothing", config.Hold, idle((*exchange).pause), errIdle, 3*time.Second)
	f("a call that is answered, and says no more", config.Hold, idle(func(x *exchange) { x.endWait() }), errIdle, 3*time.Second)
	f("a call that says something now and then", config.Hold, idle(func(x *exchange) {
		x.endWait()
		for range 5 {
			time.Sleep(2 * time.Second)
			x.touch(1)
		}
	}), errIdle, 3*time.Second)
	f("a call that the target works on", config.Hold, idle(func(x *exchange) {
		x.mu.Lock()
		x.deadline = x.started + 5*time.Second
		x.mu.Unlock()
	}), errResponseTimeout, 5*time.Second)
	f("a request that is no call", config.Hold, idle(func(x *exchange) {
		x.endWait()
		x.mu.Lock()
		x.call.GRPC = false
		x.mu.Unlock()
	}), nil, 10*time.Second)
	awaited := func(act func(x *exchange)) func(*Upstream, *exchange, func()) {
		return func(u *Upstream, x *exchange, _ func()) {
			x.mu.Lock()
			u.cfg.ResponseIdleTimeout = policy.Duration(3 * time.Second)
			x.mu.Unlock()
			x.endWait()
			x.awaited.Store(int64(u.now()) + 1)
			act(x)
		}
	}
	f("an answer that says no more", config.Hold, awaited(func(*exchange) {}), errSilent, 3*time.Second)
	f("an answer that its client reads slowly", config.Hold, awaited(func(x *exchange) { x.awaited.Store(0) }), nil, 10*time.Second)
	f("an answer whose request is under way", config.Hold, awaited((*exchange).pause), nil, 10*time.Second)
	mean = 0 // nothing has been answered yet: nothing is known
	f("the client leaves a cold start, hold", config.Hold, func(_ *Upstream, _ *exchange, leave func()) {
		time.Sleep(100 * time.Millisecond)
		leave()
	}, errClientLeft, 900*time.Millisecond)
	f("the client leaves a cold start with no time-out", config.Hold, func(_ *Upstream, x *exchange, leave func()) {
		x.deadline = 0
		leave()
	}, nil, 10*time.Second)
	f("the client leaves a cold start, release", config.Release, func(_ *Upstream, _ *exchange, leave func()) { leave() }, errClientLeft, 0)
}

// The watch keeps its list in order whoever comes and goes, and ends by itself.
func TestWatchList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a")
		var xs []*exchange
		for range 5 {
			xs = append(xs, watched(t, u, t.Context()))
		}
		count := func() (n int) {
			for x := u.shared.watch.first; x != nil; x = x.next {
				n++
			}
			return n
		}
		back := func() (n int) {
			for x := u.shared.watch.last; x != nil; x = x.prev {
				n++
			}
			return n
		}
		for i, at := range []int{2, 0, 4, 1, 3} { // the middle, both ends, the rest
			u.shared.watch.remove(xs[at])
			if n := count(); n != 4-i || back() != n {
				t.Errorf("%d left after %d removals, %d backwards", n, i+1, back())
			}
		}
		time.Sleep(2 * watchLinger)
		synctest.Wait()
		if u.shared.watch.running {
			t.Error("still running with nothing to see")
		}
		x := watched(t, u, t.Context())
		if !u.shared.watch.running {
			t.Error("not running with something to see")
		}
		u.shared.watch.remove(x)
	})
}
