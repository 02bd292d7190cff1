package weirhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// longDownload is a body that no buffer on the way holds.
var longDownload = strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB

func TestPoolIsBounded(t *testing.T) {
	s := NewStreams(StreamsConfig{Max: 2})
	if got := []bool{s.Enter(""), s.Enter(""), s.Enter("")}; !slices.Equal(got, []bool{true, true, false}) {
		t.Fatalf("three that enter a pool of two places: %v", got)
	}
	s.SetMax(1)
	s.Leave("")
	if s.Enter("") {
		t.Error("a shrunken pool let somebody in")
	}
	s.SetMax(3)
	if !s.Enter("") {
		t.Error("a grown pool is full")
	}
	s.Leave("")
	s.Leave("")
	s.Enter("")
	want := StreamsSnapshot{Max: 3, Open: 1, High: 2, Moved: 4}
	if got := s.Snapshot(); got != want {
		t.Errorf("snapshot %+v, want %+v", got, want)
	}
	if got := NewStreams(StreamsConfig{Max: -1}).Snapshot().Max; got != 0 {
		t.Errorf("a pool without places has %d", got)
	}
}

// isFull reports whether there is no place for a user.
func isFull(s *Streams, user string) bool {
	entered := s.Enter(user)
	if entered {
		s.Leave(user)
	}
	return !entered
}

// One user has half of the places at most, rounded up.
func TestPoolIsSharedByUsers(t *testing.T) {
	s := NewStreams(StreamsConfig{Max: 3})
	if got := []bool{s.Enter("a"), s.Enter("a"), s.Enter("a")}; !slices.Equal(got, []bool{true, true, false}) {
		t.Fatalf("three of one user that enter a pool of three places: %v", got)
	}
	if isFull(s, "b") || isFull(s, "") {
		t.Error("there is no place for others")
	}
	if !s.Enter("b") || s.Enter("b") || s.Enter("") {
		t.Error("the third place is not another user's, or there is a fourth")
	}
	s.Leave("a")
	if isFull(s, "a") || !s.Enter("a") {
		t.Error("a user who has left a place gets none")
	}
	for _, user := range []string{"a", "a", "b"} {
		s.Leave(user)
	}
	if s.Snapshot().Open != 0 || len(s.byUser) != 0 {
		t.Errorf("%d are open, %d users are remembered, want none", s.Snapshot().Open, len(s.byUser))
	}
	if none := NewStreams(StreamsConfig{Max: -1}); none.Enter("a") || none.Snapshot().Open != 0 {
		t.Error("a pool without places has one, or is exhausted")
	}
}

// Each handler begins an answer and then works for a minute. The test checks when its slot becomes free.
func TestWhenAResponseBecomesAStream(t *testing.T) {
	tests := []struct {
		name  string
		begin func(http.ResponseWriter, *http.Request) // before the handler sits and works
		after time.Duration                            // when the slot is free, -1: not before the end
	}{
		{"nothing sent", func(http.ResponseWriter, *http.Request) {}, -1},
		{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }, -1},
		{"a short body, not flushed", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat("x", 32<<10))
		}, -1},
		{"flushed", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, time.Second},
		{"flushed by the controller", func(w http.ResponseWriter, _ *http.Request) {
			http.NewResponseController(w).Flush()
		}, time.Second},
		{"events", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			w.(http.Flusher).Flush()
		}, 0},
		{"a long body", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 64<<10+1)) }, 0},
		{"a long string", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, longDownload) }, 0},
		{"declared", func(_ http.ResponseWriter, r *http.Request) { FromContext(r.Context()).ReleaseForStream() }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newFakeGate(1)
			s := NewStreams(StreamsConfig{})
			const work = time.Minute
			h := Middleware(g, WithStreams(s))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tt.begin(w, r)
				time.Sleep(work)
			}))
			inBubble(t, h, func(t *testing.T, client *http.Client, _ func() net.Conn) {
				start := time.Now()
				go read(client, "http://pipe/")
				g.settled(1)
				want := tt.after
				if want < 0 {
					want = work
				}
				if got := time.Since(start); got != want {
					t.Errorf("slot free after %v, want %v", got, want)
				}
				synctest.Wait()
				if open := s.Snapshot().Open; (open == 1) != (tt.after >= 0) {
					t.Errorf("%d streams open", open)
				}
				time.Sleep(work)
				synctest.Wait()
				if snap := s.Snapshot(); snap.Open != 0 {
					t.Errorf("a place was left behind: %+v", snap)
				}
			})
		})
	}
}

// A client that does not read does not mean a slow backend. A response far shorter than a stream gives its slot
// back once a write has blocked for a while.
func TestSlowReaderGivesItsSlotBack(t *testing.T) {
	g := newFakeGate(1)
	s := NewStreams(StreamsConfig{})
	h := Middleware(g, WithStreams(s))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, 10<<10))
	}))
	inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
		c := dial()
		defer c.Close()
		start := time.Now()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: pipe\r\n\r\n")
		g.settled(1)
		if got := time.Since(start); got != defaultStreamStall {
			t.Errorf("slot free after %v, want %v", got, defaultStreamStall)
		}
		if got := g.outcomes(); !slices.Equal(got, []weir.Outcome{weir.OK}) {
			t.Errorf("outcomes %v", got)
		}
		synctest.Wait()
		if open := s.Snapshot().Open; open != 1 {
			t.Errorf("%d streams open", open)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != 10<<10 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		synctest.Wait()
		if open := s.Snapshot().Open; open != 0 {
			t.Errorf("%d streams open after the end", open)
		}
	})
}

// The latency that a controller sees ends where the answer begins, however long
// the client takes to read it.
func TestSampleComesWithTheFirstByte(t *testing.T) {
	g := newFakeGate(1)
	h := Middleware(g, WithStreams(nil))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(time.Second)
		io.WriteString(w, "x")
		time.Sleep(time.Hour)
	}))
	inBubble(t, h, func(t *testing.T, client *http.Client, _ func() net.Conn) {
		go read(client, "http://pipe/")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := g.outcomes(); len(got) != 1 || g.held() != 1 {
			t.Errorf("sampled %v, %d in flight", got, g.held())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if g.held() != 0 {
			t.Error("the slot is still held")
		}
	})
}

func TestFullPoolKeepsTheSlot(t *testing.T) {
	g := newFakeGate(2)
	s := NewStreams(StreamsConfig{Max: 1})
	var next chan struct{} // made in the bubble, to block as it knows blocking
	h := Middleware(g, WithStreams(s))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for {
			select {
			case <-next:
				io.WriteString(w, "data: x\n\n")
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
		next = make(chan struct{})
		open := func() net.Conn {
			c := dial()
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: pipe\r\n\r\n")
			go io.Copy(io.Discard, c)
			synctest.Wait()
			return c
		}
		first, second := open(), open()
		if snap := s.Snapshot(); snap.Open != 1 || snap.Overflowed != 1 || g.held() != 1 {
			t.Errorf("%+v, %d in flight", snap, g.held())
		}
		first.Close()
		synctest.Wait()
		if snap := s.Snapshot(); snap.Open != 0 || g.held() != 1 {
			t.Errorf("after the first has gone: %+v, %d in flight", snap, g.held())
		}
		next <- struct{}{}
		synctest.Wait()
		if snap := s.Snapshot(); snap.Open != 1 || snap.Overflowed != 1 || g.held() != 0 {
			t.Errorf("after the second wrote again: %+v, %d in flight", snap, g.held())
		}
		second.Close()
		synctest.Wait()
		if snap := s.Snapshot(); snap.Open != 0 || snap.High != 1 || snap.Moved != 2 {
			t.Errorf("at the end: %+v", snap)
		}
	})
}

// What has no slot needs no place. Otherwise what passes no gate would take the places of what does.
func TestNoPlaceWithoutASlot(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gate   weir.Gate
		attach bool // a permit
		done   bool // that has ended
		want   int64
	}{
		{"no gate", weir.All(), false, false, 0},
		{"a gate", newFakeGate(1), false, false, 1},
		{"a permit of a target", weir.All(), true, false, 1},
		{"one that has ended", weir.All(), true, true, 0},
	} {
		s := NewStreams(StreamsConfig{})
		h := Middleware(tt.gate, WithStreams(s))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			q := FromContext(r.Context())
			if tt.attach {
				p, err := newFakeGate(1).Admit(r.Context(), weir.Work{})
				if err != nil {
					t.Error(err)
				}
				if q.Attach(nil, p); tt.done {
					p.Done(weir.Failed)
				}
			}
			if !q.ReleaseForStream() {
				t.Errorf("%s: it has a slot", tt.name)
			}
			if n := s.Snapshot().Open; n != tt.want {
				t.Errorf("%s: %d places are taken, want %d", tt.name, n, tt.want)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if n := s.Snapshot().Open; n != 0 {
			t.Errorf("%s: %d places are taken at the end", tt.name, n)
		}
	}
}

// The places of a user come back with the slot, and at the end.
func TestStreamOfAUser(t *testing.T) {
	s := NewStreams(StreamsConfig{Max: 2})
	h := Middleware(newFakeGate(1), WithStreams(s), WithWork(func(_ *http.Request, w *weir.Work) { w.User = "a" }))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := FromContext(r.Context())
		for range 2 {
			if !q.ReleaseForStream() || !isFull(s, "a") {
				t.Error("the stream has no place of its user's")
			}
			if err := q.Reacquire(r.Context(), weir.Work{User: "a"}); err != nil || isFull(s, "a") {
				t.Errorf("with its slot again: %v, full for it %v", err, isFull(s, "a"))
			}
		}
		q.ReleaseForStream()
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	if n := s.Snapshot().Open; n != 0 || isFull(s, "a") {
		t.Errorf("%d places are taken at the end, full for it %v", n, isFull(s, "a"))
	}
}

func TestClientThatStopsReadingIsCut(t *testing.T) {
	for _, tt := range []struct {
		name  string
		write func(http.ResponseWriter) error
	}{
		{"write", func(w http.ResponseWriter) error { _, err := io.WriteString(w, longDownload); return err }},
		{"flush", func(w http.ResponseWriter) error {
			io.WriteString(w, "x")
			return http.NewResponseController(w).Flush()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newFakeGate(1)
			s := NewStreams(StreamsConfig{})
			var result chan error // made in the bubble
			h := Middleware(g, WithStreams(s), WithWriteTimeout(5*time.Second))(http.HandlerFunc(
				func(w http.ResponseWriter, _ *http.Request) { result <- tt.write(w) }))
			inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
				result = make(chan error, 1)
				c := dial()
				defer c.Close()
				start := time.Now()
				io.WriteString(c, "GET / HTTP/1.1\r\nHost: pipe\r\n\r\n")
				if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if got := time.Since(start); got != 5*time.Second {
					t.Errorf("cut after %v", got)
				}
				synctest.Wait()
				if snap := s.Snapshot(); snap.Cut != 1 || snap.Open != 0 || g.held() != 0 {
					t.Errorf("%+v, %d in flight", snap, g.held())
				}
			})
		})
	}
}

// A slow client that keeps reading is not cut, however long the response takes. Nor is a client whose handler
// has set a deadline of its own.
func TestProgressIsNotCut(t *testing.T) {
	for _, own := range []bool{false, true} {
		g := newFakeGate(1)
		s := NewStreams(StreamsConfig{})
		h := Middleware(g, WithStreams(s), WithWriteTimeout(5*time.Second))(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				if own {
					http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour))
				}
				io.WriteString(w, longDownload[:1<<20])
			}))
		inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
			c := dial()
			defer c.Close()
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: pipe\r\nConnection: close\r\n\r\n")
			if own {
				time.Sleep(time.Minute)
			}
			start := time.Now()
			got, buf := 0, make([]byte, 64<<10)
			for {
				n, err := io.ReadFull(c, buf)
				got += n
				if err != nil {
					break
				}
				time.Sleep(2 * time.Second) // 128 KiB in 4 s
			}
			if got < 1<<20 || time.Since(start) < 20*time.Second || s.Snapshot().Cut != 0 {
				t.Errorf("own deadline %v: %d bytes in %v, %+v", own, got, time.Since(start), s.Snapshot())
			}
		})
	}
}

// Silence is not a stall: a stream that sends nothing for longer than the write time-out goes on.
func TestSilentStreamIsNotCut(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			s := NewStreams(StreamsConfig{})
			h := Middleware(newFakeGate(1), WithStreams(s), WithWriteTimeout(5*time.Second))(http.HandlerFunc(
				func(w http.ResponseWriter, _ *http.Request) {
					for range 3 {
						io.WriteString(w, "data: x\n\n")
						w.(http.Flusher).Flush()
						time.Sleep(time.Minute)
					}
				}))
			inBubbleOver(t, protocol, h, func(t *testing.T, client *http.Client, _ func() net.Conn) {
				if _, body := mustGet(t, client, "http://pipe/"); body != strings.Repeat("data: x\n\n", 3) {
					t.Errorf("got %q", body)
				}
				if snap := s.Snapshot(); snap.Cut != 0 {
					t.Errorf("%+v", snap)
				}
			})
		})
	}
}

func TestHTTP2ClientThatStopsReadingIsCut(t *testing.T) {
	g := newFakeGate(1)
	s := NewStreams(StreamsConfig{})
	h := Middleware(g, WithStreams(s), WithWriteTimeout(5*time.Second))(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, longDownload) }))
	inBubbleOver(t, "HTTP/2.0", h, func(t *testing.T, client *http.Client, _ func() net.Conn) {
		resp, err := client.Get("http://pipe/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if snap := s.Snapshot(); snap.Cut != 1 || snap.Open != 0 || g.held() != 0 {
			t.Errorf("%+v, %d in flight", snap, g.held())
		}
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the client took a cut response for a whole one")
		}
	})
}

func TestHijackedConnectionHoldsItsPlace(t *testing.T) {
	for _, maxStreams := range []int{1, -1} {
		g := newFakeGate(1)
		s := NewStreams(StreamsConfig{Max: maxStreams})
		conns := make(chan net.Conn, 1)
		srv := serve(t, "HTTP/1.1", Middleware(g, WithStreams(s))(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				c, rw, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				rw.Flush()
				conns <- c
			})))
		rawExchange(t, srv.Listener.Addr().String(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		c := <-conns
		if _, ok := c.(interface{ CloseWrite() error }); !ok {
			t.Error("the connection cannot be half-closed any more")
		}
		inPool := maxStreams > 0
		if open := s.Snapshot().Open == 1; open != inPool || (g.held() == 0) != inPool {
			t.Errorf("places %d: %+v, %d in flight", maxStreams, s.Snapshot(), g.held())
		}
		c.Close()
		c.Close()
		if snap := s.Snapshot(); snap.Open != 0 || g.held() != 0 {
			t.Errorf("places %d after close: %+v, %d in flight", maxStreams, snap, g.held())
		}
		if got := g.outcomes(); !slices.Equal(got, []weir.Outcome{weir.NoSample}) {
			t.Errorf("outcomes %v", got)
		}
	}
}

func TestFilesArriveWhole(t *testing.T) {
	content := []byte(longDownload[:1<<20+12345])
	path := filepath.Join(t.TempDir(), "file.bin")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	g := newFakeGate(1)
	s := NewStreams(StreamsConfig{})
	copied := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if n, err := io.Copy(w, f); n != int64(len(content)) || err != nil {
			t.Errorf("copied %d bytes, %v", n, err)
		}
	})
	mux := http.NewServeMux()
	mux.HandleFunc("/served", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) })
	mux.Handle("/copied", copied)
	mux.HandleFunc("/reader", func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, io.MultiReader(bytes.NewReader(content))) })
	h := Middleware(g, WithStreams(s), WithWriteTimeout(time.Minute))(mux)
	n := 0
	for _, protocol := range protocols {
		srv := serve(t, protocol, h)
		for _, url := range []string{"/served", "/copied", "/reader"} {
			n++
			if _, body := mustGet(t, srv.Client(), srv.URL+url); body != string(content) {
				t.Errorf("%s %s: %d bytes, want %d", protocol, url, len(body), len(content))
			}
			g.settled(n)
		}
		n++
		req, _ := http.NewRequest("GET", srv.URL+"/served", nil)
		req.Header.Set("Range", "bytes=100-65635")
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		part, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !bytes.Equal(part, content[100:65636]) {
			t.Errorf("%s: range of %d bytes", protocol, len(part))
		}
		g.settled(n)
	}
	if snap := s.Snapshot(); snap.Moved != 6 {
		t.Errorf("%+v: want the six long ones moved, not the two ranges", snap)
	}
}

func TestDetachedPermitOutlivesTheHandler(t *testing.T) {
	g, upstream := newFakeGate(1), newFakeGate(1)
	kept := make(chan Permits, 1)
	srv := serve(t, "HTTP/1.1", Middleware(g)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := upstream.Admit(context.Background(), weir.Work{})
		if err != nil {
			t.Error(err)
		}
		q := FromContext(r.Context())
		q.Attach(nil, p)
		kept <- q.Detach()
		if q.Detach() != nil {
			t.Error("detached twice")
		}
		if q.ReleaseForStream() {
			t.Error("a request without a slot took a place among the streams")
		}
	})))
	mustGet(t, srv.Client(), srv.URL)
	srv.Close()
	if g.held() != 1 || upstream.held() != 1 {
		t.Fatal("a detached permit was given back")
	}
	permits := <-kept
	permits.Sample(weir.Overload)
	permits.Done(weir.OK)
	for _, g := range []*fakeGate{g, upstream} {
		if got := g.outcomes(); g.held() != 0 || !slices.Equal(got, []weir.Outcome{weir.Overload}) {
			t.Errorf("%d in flight, outcomes %v", g.held(), got)
		}
	}
}

func TestAttachedPermitSharesTheRequestsFate(t *testing.T) {
	g, upstream := newFakeGate(1), newFakeGate(2)
	srv := serve(t, "HTTP/1.1", Middleware(g)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := FromContext(r.Context())
		p, _ := upstream.Admit(context.Background(), weir.Work{})
		q.Attach(nil, p)
		w.WriteHeader(500)
		if !q.ReleaseForStream() {
			t.Error("no place among the streams")
		}
		if upstream.held() != 0 {
			t.Error("a stream holds its upstream's slot")
		}
		late, _ := upstream.Admit(context.Background(), weir.Work{})
		q.Attach(nil, late)
		if upstream.held() != 0 {
			t.Error("a permit attached to a stream is held")
		}
	})))
	mustGet(t, srv.Client(), srv.URL)
	if got := upstream.outcomes(); !slices.Equal(got, []weir.Outcome{weir.Failed, weir.NoSample}) {
		t.Errorf("outcomes %v", got)
	}
}

func TestNilRequestIsHarmless(t *testing.T) {
	q := FromContext(context.Background())
	q.Sample(weir.OK)
	q.Attach(nil, weir.Permit{})
	q.Detach().Done(weir.OK)
	if q != nil || q.ReleaseForStream() || q.Reacquire(context.Background(), weir.Work{}) != nil {
		t.Error("a request out of nowhere")
	}
}
