package weirhttp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// bare is a writer without optional interfaces.
type bare struct{ h http.Header }

func (b *bare) Header() http.Header         { return b.h }
func (b *bare) Write(p []byte) (int, error) { return len(p), nil }
func (b *bare) WriteHeader(int)             {}

type canFlush struct{}

func (canFlush) Flush() {}

type canHijack struct{}

var errHijacked = errors.New("hijacked")

func (canHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijacked }

type canReadFrom struct{}

func (canReadFrom) ReadFrom(r io.Reader) (int64, error) { return io.Copy(io.Discard, r) }

type canPush struct{ got *string }

func (c canPush) Push(target string, _ *http.PushOptions) error { *c.got = target; return nil }

type wraps struct{ http.ResponseWriter }

func (w wraps) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestOptionalInterfaces(t *testing.T) {
	type able struct{ flush, hijack, from, push bool }
	b := &bare{http.Header{}}
	var pushed string
	tests := []struct {
		name string
		w    http.ResponseWriter
		want able
	}{
		{"none", b, able{}},
		{"F", struct {
			*bare
			canFlush
		}{b, canFlush{}}, able{flush: true}},
		{"H", struct {
			*bare
			canHijack
		}{b, canHijack{}}, able{hijack: true}},
		{"R", struct {
			*bare
			canReadFrom
		}{b, canReadFrom{}}, able{from: true}},
		{"FH", struct {
			*bare
			canFlush
			canHijack
		}{b, canFlush{}, canHijack{}}, able{flush: true, hijack: true}},
		{"FR", struct {
			*bare
			canFlush
			canReadFrom
		}{b, canFlush{}, canReadFrom{}}, able{flush: true, from: true}},
		{"HR", struct {
			*bare
			canHijack
			canReadFrom
		}{b, canHijack{}, canReadFrom{}}, able{hijack: true, from: true}},
		{"FHR", struct {
			*bare
			canFlush
			canHijack
			canReadFrom
		}{b, canFlush{}, canHijack{}, canReadFrom{}}, able{flush: true, hijack: true, from: true}},
		{"FP", struct {
			*bare
			canFlush
			canPush
		}{b, canFlush{}, canPush{&pushed}}, able{flush: true, push: true}},
		{"wrapped FH", wraps{struct {
			*bare
			canFlush
			canHijack
		}{b, canFlush{}, canHijack{}}}, able{flush: true, hijack: true}},
		{"wrapped R", wraps{struct {
			*bare
			canReadFrom
		}{b, canReadFrom{}}}, able{}}, // what is between may change the bytes
	}
	for _, tt := range tests {
		q := newRequest(t.Context(), nil, &weir.Work{}, newPermit(t), NewStreams(StreamsConfig{}))
		q.out.init(tt.w, q, 0)
		k := q.out.kind()
		f, flush := k.(http.Flusher)
		h, hijack := k.(http.Hijacker)
		_, from := k.(io.ReaderFrom)
		p, push := k.(http.Pusher)
		if got := (able{flush, hijack, from, push}); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		rc := http.NewResponseController(k)
		if err := rc.Flush(); (err == nil) != tt.want.flush {
			t.Errorf("%s: flush by the controller: %v", tt.name, err)
		}
		if _, _, err := rc.Hijack(); errors.Is(err, errHijacked) != tt.want.hijack {
			t.Errorf("%s: hijack by the controller: %v", tt.name, err)
		}
		if err := rc.SetWriteDeadline(time.Now()); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("%s: a deadline on a writer without: %v", tt.name, err)
		}
		if flush {
			f.Flush()
		}
		if hijack {
			if _, _, err := h.Hijack(); err != errHijacked || q.hijacked {
				t.Errorf("%s: a failed hijack: %v", tt.name, err)
			}
		}
		if push {
			if err := p.Push("/x", nil); err != nil || pushed != "/x" {
				t.Errorf("%s: push: %v, %q", tt.name, err, pushed)
			}
		}
		q.returned = true
		q.handlerEnded()
	}
}

// The handler gets the optional interfaces of a real server's writer.
func TestRealWritersKeepTheirInterfaces(t *testing.T) {
	want := map[string]string{"HTTP/1.1": "weirhttp.flushHijackFrom", "HTTP/2.0": "weirhttp.flushPush"}
	for _, protocol := range protocols {
		g := newFakeGate(1)
		var err error
		var kind string
		srv := serve(t, protocol, Middleware(g)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			kind = typeName(w)
			rc := http.NewResponseController(w)
			err = errors.Join(rc.SetReadDeadline(time.Now().Add(time.Minute)),
				rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex(), rc.Flush())
		})))
		mustGet(t, srv.Client(), srv.URL)
		srv.Close()
		if err != nil || kind != want[protocol] {
			t.Errorf("%s: %s, %v", protocol, kind, err)
		}
	}
}

func typeName(v any) string { return fmt.Sprintf("%T", v) }

// newPermit returns a live permit of a gate of its own.
func newPermit(t *testing.T) weir.Permit {
	p, err := newFakeGate(1).Admit(t.Context(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// recordsFrom records the sources that the server would send.
type recordsFrom struct {
	*bare
	files, bytes int64
}

func (w *recordsFrom) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if _, ok := l.R.(syscall.Conn); ok {
			w.files++
		}
	}
	n, err := io.Copy(io.Discard, r)
	w.bytes += n
	return n, err
}

// A file must reach the server as a part of a file, which the kernel can send. Any other source must not,
// because waiting for the source would look like waiting for the client.
func TestFilesReachTheServerAsFiles(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(300 << 10); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name         string
		src          io.Reader
		bytes, files int64
	}{
		{"a file", f, 300 << 10, 3}, // 64, 128 and 108 KiB
		{"a part of a file", io.LimitReader(f, 100<<10), 100 << 10, 2},
		{"no file", onlyReader{bytes.NewReader(make([]byte, 300<<10))}, 0, 0},
	} {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		w := &recordsFrom{bare: &bare{http.Header{}}}
		q := newRequest(t.Context(), nil, &weir.Work{}, newPermit(t), NewStreams(StreamsConfig{}))
		q.out.init(w, q, 0)
		if _, err := io.Copy(q.out.kind(), tt.src); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if w.bytes != tt.bytes || w.files != tt.files {
			t.Errorf("%s: %d bytes in %d parts, want %d in %d", tt.name, w.bytes, w.files, tt.bytes, tt.files)
		}
		q.handlerEnded()
	}
}

const expecting = "POST / HTTP/1.1\r\nHost: pipe\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"

// A client that reads nothing cannot hold up what net/http sends before the answer.
func TestWhatIsSentBeforeTheAnswerIsCut(t *testing.T) {
	read := func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
	for _, tt := range []struct {
		name, request string
		handler       http.HandlerFunc
		cut           uint64
	}{
		{"early hints", "GET / HTTP/1.1\r\nHost: pipe\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }, 1},
		{"early hints, before 100 Continue", expecting + "ab", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }, 1},
		{"100 Continue of the handler", expecting + "ab", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusContinue) }, 1},
		{"100 Continue of net/http", expecting + "ab", read, 0},
	} {
		for _, guarded := range []bool{false, true} {
			g, s := newFakeGate(1), NewStreams(StreamsConfig{})
			opts := []Option{WithStreams(s), WithWriteTimeout(5 * time.Second)}
			h := Middleware(g, opts...)(tt.handler)
			if guarded {
				guard := NewGuard(opts...)
				h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					guard.Serve(w, r, g, weir.Work{}, func(w http.ResponseWriter, r *http.Request, _ *Request) { tt.handler(w, r) })
				})
			}
			inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
				c := dial()
				defer c.Close()
				io.WriteString(c, tt.request)
				start := time.Now()
				time.Sleep(4 * time.Second)
				if g.held() != 1 {
					t.Errorf("%s: nothing is being written", tt.name)
				}
				g.settled(1)
				if got := time.Since(start); got != 5*time.Second || s.Snapshot().Cut != tt.cut {
					t.Errorf("%s, guard %v: ended after %v, %+v", tt.name, guarded, got, s.Snapshot())
				}
			})
		}
	}
}

// The deadline of what is sent before the answer bounds nothing else.
func TestDeadlineBeforeTheAnswerDoesNotLast(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
	}{
		{"a long upload", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			io.WriteString(w, "done")
		}},
		{"hints, a long upload", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusEarlyHints)
			io.WriteString(w, "done")
		}},
		{"an early answer that lasts", func(w http.ResponseWriter, r *http.Request) {
			var reading sync.WaitGroup
			defer reading.Wait()
			reading.Go(func() { _, _ = io.Copy(io.Discard, r.Body) })
			for range 3 {
				time.Sleep(time.Minute)
				io.WriteString(w, "piece")
				w.(http.Flusher).Flush()
			}
			io.WriteString(w, "done")
		}},
		{"a hijacked connection", func(w http.ResponseWriter, r *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = r.Body.Read(make([]byte, 1)) // as net/http's transport does after a 101
			time.Sleep(time.Minute)
			io.WriteString(c, "done")
		}},
	} {
		h := Middleware(newFakeGate(1), WithWriteTimeout(5*time.Second))(tt.handler)
		inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
			c := dial()
			defer c.Close()
			io.WriteString(c, expecting)
			go func() {
				time.Sleep(time.Minute)
				io.WriteString(c, "ab")
			}()
			if got, err := io.ReadAll(c); !strings.Contains(string(got), "done") {
				t.Errorf("%s: %q, %v", tt.name, got, err)
			}
			synctest.Wait()
		})
	}
}

// Over HTTP/2 a deadline that passes resets the stream, even if nothing is being written.
func TestHandlerMayBeSilentAfterHints(t *testing.T) {
	for _, protocol := range protocols {
		h := Middleware(newFakeGate(1), WithWriteTimeout(5*time.Second))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			time.Sleep(time.Minute)
			io.WriteString(w, "done")
		}))
		inBubbleOver(t, protocol, h, func(t *testing.T, client *http.Client, _ func() net.Conn) {
			if _, body := mustGet(t, client, "http://pipe/"); body != "done" {
				t.Errorf("%s: %q", protocol, body)
			}
		})
	}
}

// timed is a writer that counts the deadlines it is given, and keeps the last one.
type timed struct {
	*bare
	canHijack
	set  int
	last time.Time
}

func (w *timed) SetWriteDeadline(t time.Time) error { w.set++; w.last = t; return nil }

// A Read of the body, in whatever goroutine, sets a deadline only while the connection is the middleware's to bound. It
// clears the deadline at its end, unless that is of a write under way.
func TestReadOfTheBodySetsADeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(w *writer)
		want   int
		stays  bool
	}{
		"first":                     {func(*writer) {}, 2, false},
		"during a write":            {func(w *writer) { w.beginWrite() }, 2, true},
		"after a write":             {func(w *writer) { w.clearDeadline(w.beginWrite(), nil) }, 4, false},
		"after hints":               {func(w *writer) { w.WriteHeader(http.StatusEarlyHints) }, 3, false},
		"own deadline":              {func(w *writer) { _ = w.SetWriteDeadline(time.Unix(1, 0)) }, 1, true},
		"after the handler":         {func(w *writer) { w.handlerEnded() }, 1, true},
		"after a hijack":            {func(w *writer) { w.setOver(true) }, 0, false},
		"after a hijack that fails": {func(w *writer) { _, _, _ = w.hijack() }, 3, false},
	} {
		inner := &timed{bare: &bare{http.Header{}}}
		q := newRequest(t.Context(), nil, &weir.Work{}, newPermit(t), nil)
		q.out.init(inner, q, writeTimeout(time.Second))
		r, err := http.NewRequest(http.MethodPost, "/", strings.NewReader("ab"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Expect", "100-continue")
		r = q.out.expecting(r)
		tt.before(&q.out)
		body, err := io.ReadAll(r.Body)
		if string(body) != "ab" || err != nil || inner.set != tt.want || inner.last.IsZero() == tt.stays {
			t.Errorf("%s: %q, %v, %d deadlines, the last %v; want %d, and that it stays: %v", name, body, err, inner.set, inner.last, tt.want, tt.stays)
		}
	}
}

// A Read may be writing "100 Continue" when hints have been written. So its deadline stays.
func TestHintsLeaveTheDeadlineOfARead(t *testing.T) {
	for expects, want := range map[bool]int{false: 2, true: 1} {
		inner := &timed{bare: &bare{http.Header{}}}
		q := newRequest(t.Context(), nil, &weir.Work{}, newPermit(t), nil)
		q.out.init(inner, q, writeTimeout(time.Minute))
		q.out.expects = expects
		q.out.WriteHeader(http.StatusEarlyHints)
		if inner.set != want {
			t.Errorf("expects %v: set %d times, want %d", expects, inner.set, want)
		}
	}
}
