package server

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// answer reads one answer from a raw connection.
func answer(t *testing.T, c io.Reader) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestMalformedRequests(t *testing.T) {
	reached := make(chan string, 100)
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.String() })
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].MaxHeaderBytes = 8 << 10
	cfg.Listeners[0].ReadHeaderTimeout = policy.Duration(150 * time.Millisecond)
	g := start(t, cfg, Options{})
	f := func(what, request string, status int) {
		t.Helper()
		if res := answer(t, dial(t, g.Addr(), request)); res.StatusCode != status {
			t.Errorf("%s: %d, want %d", what, res.StatusCode, status)
		}
	}
	f("no request line", "hello\r\n\r\n", http.StatusBadRequest)
	f("no host", "GET / HTTP/1.1\r\n\r\n", http.StatusBadRequest)
	f("a space in a header name", "GET / HTTP/1.1\r\nHost: x\r\nX A: b\r\n\r\n", http.StatusBadRequest)
	f("two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", http.StatusBadRequest)
	f("a negative length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", http.StatusBadRequest)
	f("an unknown encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: zip\r\n\r\n", http.StatusNotImplemented)
	f("huge headers", "GET / HTTP/1.1\r\nHost: x\r\nX-A: "+strings.Repeat("a", 64<<10)+"\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge)
	f("an unknown version", "GET / HTTP/9.9\r\nHost: x\r\n\r\n", http.StatusHTTPVersionNotSupported)

	slow := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	if rest, err := io.ReadAll(slow); err != nil || strings.Contains(string(rest), "200") {
		t.Errorf("a header that never ends: %q, %v; want the connection closed", rest, err)
	}
	g.idle()
	if len(reached) > 0 {
		t.Errorf("the upstream saw %s", <-reached)
	}
}

func TestBadBodies(t *testing.T) {
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].ReadTimeout = policy.Duration(200 * time.Millisecond)
	g := start(t, cfg, Options{})
	const head = "POST / HTTP/1.1\r\nHost: x\r\n"

	c := dial(t, g.Addr(), head+"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
	if res := answer(t, c); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a malformed chunk: %d, want 400", res.StatusCode)
	}
	g.idle()

	c = dial(t, g.Addr(), head+"Content-Length: 100\r\n\r\nonly this")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && res.StatusCode != http.StatusBadRequest {
		t.Errorf("a body shorter than announced: %d, want 400 or nothing", res.StatusCode)
	}
	g.idle()

	for _, length := range []string{"Content-Length: 100", "Content-Length: 1000000", "Transfer-Encoding: chunked"} {
		c = dial(t, g.Addr(), head+length+"\r\n\r\n")
		if res := answer(t, c); res.StatusCode != http.StatusRequestTimeout {
			t.Errorf("a body that never comes (%s): %d, want 408", length, res.StatusCode)
		}
		g.idle()
	}

	// What was sent before buys no silence.
	c = dial(t, g.Addr(), head+"Content-Length: 1000000\r\n\r\n"+strings.Repeat("a", 900_000))
	if res := answer(t, c); res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a large body that stops: %d, want 408", res.StatusCode)
	}
	g.idle()
}

// A body without end that keeps coming leaves the gate to others.
func TestEndlessBody(t *testing.T) {
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].ReadTimeout = policy.Duration(100 * time.Millisecond)
	g := start(t, cfg, Options{})
	c := dial(t, g.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	stop := make(chan struct{})
	go func() {
		piece := fmt.Sprintf("%x\r\n%s\r\n", 16<<10, strings.Repeat("a", 16<<10))
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
	}()
	eventually(t, "it counts as a stream", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	close(stop)
	_ = c.Close()
	g.idle()
}

// A client that stops reading gives its slot back, and is cut in the end.
func TestClientStopsReading(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 256<<10)
		for range 400 { // 100 MB: more than any buffer on the way
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].WriteTimeout = policy.Duration(700 * time.Millisecond)
	g := start(t, cfg, Options{})
	c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if res := answer(t, c); res.StatusCode != http.StatusOK {
		t.Fatalf("status %d", res.StatusCode)
	}
	eventually(t, "the slow reader is among the streams", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	g.idle()
	if n := g.streams.Snapshot().Cut; n != 1 {
		t.Errorf("%d answers cut, want 1", n)
	}
}

func TestMaxConnections(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].MaxConnections = 2
	g := start(t, cfg, Options{})
	a := dial(t, g.Addr(), "")
	dial(t, g.Addr(), "")
	eventually(t, "both are open", func() bool { return g.Connections()[0].InFlight == 2 })
	if res := answer(t, dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a third connection: %d, want 503", res.StatusCode)
	}
	if c := g.Connections()[0]; c.Refused["max_connections"] != 1 || c.Rejected[weir.ReasonLimit] != 1 || c.Limit != 2 {
		t.Errorf("%+v, want one refused of a limit of 2", c)
	}
	_ = a.Close()
	eventually(t, "one has gone", func() bool { return g.Connections()[0].InFlight == 1 })
	if res, _ := get(t, g.url); res.StatusCode != http.StatusOK {
		t.Errorf("with a place free again: %d", res.StatusCode)
	}
}
