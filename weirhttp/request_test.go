package weirhttp

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/weir-go/weir"
)

// returning runs a handler behind g that has become a stream, with permits of
// upstream attached: one given back before, and one in use.
func returning(t *testing.T, s *Streams, g, upstream *fakeGate, then func(http.ResponseWriter, *Request)) {
	t.Helper()
	srv := serve(t, "HTTP/1.1", Middleware(g, WithStreams(s))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := FromContext(r.Context())
		if err := q.Reacquire(r.Context(), weir.Work{}); err != nil || g.held() != 1 {
			t.Errorf("with nothing to take back: %v, %d held", err, g.held())
		}
		tried, _ := upstream.Admit(context.Background(), weir.Work{})
		q.Attach(upstream, tried)
		tried.Cancel()
		p, _ := upstream.Admit(context.Background(), weir.Work{})
		q.Attach(upstream, p)
		q.Attach(nil, weir.Permit{})
		if !q.ReleaseForStream() || g.held() != 0 || upstream.held() != 0 {
			t.Errorf("a stream holds %d and %d slots", g.held(), upstream.held())
		}
		then(w, q)
	})))
	mustGet(t, srv.Client(), srv.URL)
	if s.Snapshot().Open != 0 || g.held() != 0 || upstream.held() != 0 {
		t.Errorf("after the end %d streams, %d and %d slots", s.Snapshot().Open, g.held(), upstream.held())
	}
}

func TestReturnTakesTheSlotsBack(t *testing.T) {
	g, upstream, s := newFakeGate(1), newFakeGate(1), NewStreams(StreamsConfig{})
	returning(t, s, g, upstream, func(w http.ResponseWriter, q *Request) {
		for range 2 { // the second time changes nothing
			if err := q.Reacquire(context.Background(), weir.Work{Op: "again"}); err != nil {
				t.Error(err)
			}
			if g.held() != 1 || upstream.held() != 1 || s.Snapshot().Open != 0 {
				t.Errorf("back with %d and %d slots and %d streams, want 1, 1, 0", g.held(), upstream.held(), s.Snapshot().Open)
			}
		}
		if !q.ReleaseForStream() || g.held() != 0 || upstream.held() != 0 {
			t.Error("it cannot become a stream again")
		}
		if err := q.Reacquire(context.Background(), weir.Work{}); err != nil || g.held() != 1 || upstream.held() != 1 {
			t.Errorf("the second return: %v, %d and %d slots", err, g.held(), upstream.held())
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	// The first permits have no sample; the last permits have the answer.
	want := []weir.Outcome{weir.NoSample, weir.NoSample, weir.Failed}
	if got := g.outcomes(); !slices.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	if got := g.works[1].Op; got != "again" {
		t.Errorf("asked with op %q", got)
	}
}

// A nested call rides on the permit that the request has now. With one slot it would wait for its own caller.
func TestNestedCallAfterTheReturn(t *testing.T) {
	g, s := newFakeGate(1), NewStreams(StreamsConfig{})
	srv := serve(t, "HTTP/1.1", Middleware(g, WithStreams(s))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		nested := func() bool {
			p, ok := weir.Nested(r.Context(), g)
			p.Done(weir.OK)
			return ok
		}
		q := FromContext(r.Context())
		if !nested() {
			t.Error("no nested call before the release")
		}
		for range 2 {
			if !q.ReleaseForStream() || nested() {
				t.Error("a nested call rides on a slot that was released")
			}
			if err := q.Reacquire(context.Background(), weir.Work{}); err != nil || !nested() {
				t.Errorf("after the return with the error %v, a nested call needs a slot of its own", err)
			}
		}
	})))
	mustGet(t, srv.Client(), srv.URL)
}

func TestReturnRefused(t *testing.T) {
	// Either gate may refuse; the other's permit goes back then.
	for i, name := range []string{"the request's gate", "the attached permit's gate"} {
		g, upstream, s := newFakeGate(1), newFakeGate(1), NewStreams(StreamsConfig{})
		returning(t, s, g, upstream, func(_ http.ResponseWriter, q *Request) {
			[]*fakeGate{g, upstream}[i].refuse = &weir.Rejection{Gate: name, Reason: weir.ReasonQueueFull}
			err := q.Reacquire(context.Background(), weir.Work{})
			if rej := weir.AsRejection(err); rej == nil || rej.Gate != name {
				t.Errorf("refused by %s: %v", name, err)
			}
			if g.held() != 0 || upstream.held() != 0 || s.Snapshot().Open != 1 {
				t.Errorf("refused by %s, it has %d and %d slots and %d streams, want 0, 0, 1",
					name, g.held(), upstream.held(), s.Snapshot().Open)
			}
		})
	}
	g, upstream, s := newFakeGate(1), newFakeGate(1), NewStreams(StreamsConfig{})
	returning(t, s, g, upstream, func(_ http.ResponseWriter, q *Request) {
		g.refuse = context.DeadlineExceeded
		if rej := weir.AsRejection(q.Reacquire(context.Background(), weir.Work{})); rej == nil || rej.Reason != weir.ReasonDeadline {
			t.Errorf("an error of a foreign gate became %v", rej)
		}
	})
}

// Once an answer begins, the backend is done, and there is nothing to admit.
func TestReturnAfterTheAnswer(t *testing.T) {
	g, upstream, s := newFakeGate(1), newFakeGate(1), NewStreams(StreamsConfig{})
	returning(t, s, g, upstream, func(w http.ResponseWriter, q *Request) {
		w.WriteHeader(http.StatusOK)
		if err := q.Reacquire(context.Background(), weir.Work{}); err != nil || g.held() != 0 || s.Snapshot().Open != 1 {
			t.Errorf("%v, %d slots, %d streams", err, g.held(), s.Snapshot().Open)
		}
	})
	// Also one that begins while the request waits for its slot.
	returning(t, s, g, upstream, func(w http.ResponseWriter, q *Request) {
		other, _ := g.Admit(context.Background(), weir.Work{})
		back := make(chan error)
		go func() { back <- q.Reacquire(context.Background(), weir.Work{}) }()
		g.await(func() bool { return g.waiting == 1 })
		w.WriteHeader(http.StatusOK)
		other.Done(weir.OK)
		if err := <-back; err != nil || g.held() != 0 || upstream.held() != 0 || s.Snapshot().Open != 1 {
			t.Errorf("%v, %d and %d slots, %d streams", err, g.held(), upstream.held(), s.Snapshot().Open)
		}
	})
}

// A handler that ends does not wait for the return, and the permits that the return brings are given back.
func TestReturnAfterTheEnd(t *testing.T) {
	g, s := newFakeGate(1), NewStreams(StreamsConfig{})
	back := make(chan error, 1)
	var other weir.Permit
	srv := serve(t, "HTTP/1.1", Middleware(g, WithStreams(s))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := FromContext(r.Context())
		q.ReleaseForStream()
		other, _ = g.Admit(context.Background(), weir.Work{})
		go func() { back <- q.Reacquire(context.Background(), weir.Work{}) }()
		g.await(func() bool { return g.waiting == 1 })
	})))
	mustGet(t, srv.Client(), srv.URL)
	srv.Close() // waits for the handler's last words
	other.Done(weir.OK)
	if err := <-back; err != nil || g.held() != 0 || s.Snapshot().Open != 0 {
		t.Errorf("%v, %d slots, %d streams", err, g.held(), s.Snapshot().Open)
	}
}
