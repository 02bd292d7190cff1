package weirhttp

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestBufferedBodyArrivesWhole(t *testing.T) {
	broken := errors.New("reset")
	tests := []struct {
		name     string
		body     io.Reader
		length   int64
		want     string
		wantErr  error
		buffered bool // nothing is left to read on the wire
	}{
		{"fits", strings.NewReader("0123456789"), 10, "0123456789", nil, true},
		{"chunked and fits", strings.NewReader("0123456789"), -1, "0123456789", nil, true},
		{"chunked and too long", strings.NewReader("0123456789abc"), -1, "0123456789abc", nil, false},
		{"declared too long", strings.NewReader("0123456789a"), 11, "0123456789a", nil, false},
		{"breaks off", io.MultiReader(strings.NewReader("01"), iotest.ErrReader(broken)), 10, "01", broken, false},
	}
	for _, tt := range tests {
		b := &bodyBuffers{max: 10}
		r := httptest.NewRequest("POST", "/", tt.body)
		r.ContentLength = tt.length
		got, release := b.buffer(r)
		if body, ok := got.Body.(*bufferedBody); (ok && body.complete) != tt.buffered {
			t.Errorf("%s: buffered whole: %v", tt.name, !tt.buffered)
		}
		data, err := io.ReadAll(got.Body)
		if string(data) != tt.want || !errors.Is(err, tt.wantErr) {
			t.Errorf("%s: %q, %v", tt.name, data, err)
		}
		if err := got.Body.Close(); err != nil {
			t.Error(err)
		}
		release()
		if held := b.held.Load(); held != 0 {
			t.Errorf("%s: %d bytes still accounted", tt.name, held)
		}
	}
}

func TestBufferedBodiesAreBounded(t *testing.T) {
	b := &bodyBuffers{max: maxBuffered}
	big := httptest.NewRequest("POST", "/", http.NoBody)
	big.Body, big.ContentLength = io.NopCloser(strings.NewReader("x")), maxBuffered
	_, release := b.buffer(big)
	next := httptest.NewRequest("POST", "/", strings.NewReader("y"))
	if got, _ := b.buffer(next); got != next {
		t.Error("a body was buffered beyond the bound")
	}
	release()
	got, release := b.buffer(next)
	if got == next {
		t.Error("the memory was not given back")
	}
	release()
}

func TestBodiesLeftAlone(t *testing.T) {
	b := &bodyBuffers{max: 10}
	waits := httptest.NewRequest("POST", "/", strings.NewReader("x"))
	waits.Header.Set("Expect", "100-continue")
	typed := func(content string) *http.Request {
		r := httptest.NewRequest("POST", "/", iotest.ErrReader(errors.New("read before admission")))
		r.Header.Set("Content-Type", content)
		return r
	}
	for name, r := range map[string]*http.Request{
		"none":              httptest.NewRequest("GET", "/", nil),
		"waiting":           waits,
		"gRPC":              typed("application/grpc"),
		"gRPC of a kind":    typed("application/grpc+proto"),
		"gRPC, set":         typed("Application/GRPC; charset=utf-8"),
		"gRPC for browsers": typed("application/grpc-web+proto"),
		"Connect's streams": typed("application/connect+json"),
	} {
		if got, _ := b.buffer(r); got != r {
			t.Errorf("%s: touched", name)
		}
	}
}

// A content type that only begins like one of gRPC or Connect is buffered like all others.
func TestBodiesOfOtherTypes(t *testing.T) {
	b := &bodyBuffers{max: 10}
	for _, content := range []string{"", "application/grpcx", "application/json", "application/connect", "text/application/grpc"} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("x"))
		r.Header.Set("Content-Type", content)
		got, release := b.buffer(r)
		if got == r {
			t.Errorf("%q: not read ahead", content)
		}
		release()
	}
}

// Two bodies of unknown length, each counted as the largest number, would overflow the account, and be read as
// empty.
func TestBufferedBodyWithoutBound(t *testing.T) {
	var m middleware
	WithBufferedBody(math.MaxInt64)(&m)
	for range 2 {
		r := httptest.NewRequest("POST", "/", strings.NewReader("x"))
		r.ContentLength = -1
		got, release := m.bodies.buffer(r)
		defer release()
		if data, err := io.ReadAll(got.Body); string(data) != "x" || err != nil {
			t.Errorf("%q, %v", data, err)
		}
	}
}

// The answer to a body that is too large comes before the rest of the body, as without the middleware.
func TestTooLargeDoesNotWaitForTheBody(t *testing.T) {
	h := Middleware(newFakeGate(1))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10)); err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		}
	}))
	for name, sent := range map[string]string{
		"of known length":   "Content-Length: 100000\r\n\r\n01234567890",
		"of unknown length": "Transfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n",
	} {
		inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
			c := dial()
			defer c.Close()
			go io.WriteString(c, "POST / HTTP/1.1\r\nHost: pipe\r\n"+sent)
			if err := c.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
				t.Errorf("%s: %s, closes %v", name, resp.Status, resp.Close)
			}
		})
	}
}

// A handler sees also the trailer fields that its client did not announce.
func TestTrailerThatWasNotAnnounced(t *testing.T) {
	for name, opts := range map[string][]Option{"unbuffered": nil, "buffered": {WithBufferedBody(1000)}} {
		var got string
		h := Middleware(newFakeGate(1), opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			got = r.Trailer.Get("X-Sum")
		}))
		inBubble(t, h, func(t *testing.T, _ *http.Client, dial func() net.Conn) {
			c := dial()
			defer c.Close()
			go io.WriteString(c, "POST / HTTP/1.1\r\nHost: pipe\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 7\r\n\r\n")
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || got != "7" {
				t.Errorf("%s: trailer %q, %v", name, got, err)
			}
		})
	}
}
