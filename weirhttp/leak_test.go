package weirhttp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// misbehaviour is a way for a request to go wrong.
type misbehaviour struct {
	name    string
	handler http.HandlerFunc
	client  func(t *testing.T, c *http.Client, url string) error
	only    string // the protocol it exists on
}

var misbehaviours = []misbehaviour{
	{name: "panic", handler: func(http.ResponseWriter, *http.Request) { panic("on purpose") }},
	{name: "abort", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, 100<<10))
		panic(http.ErrAbortHandler)
	}},
	{name: "goexit", handler: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		runtime.Goexit()
	}},
	{name: "hijack and close", only: "HTTP/1.1", handler: func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.Close()
		}
	}},
	{name: "hijack and panic", only: "HTTP/1.1", handler: func(w http.ResponseWriter, _ *http.Request) {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			defer c.Close()
		}
		panic("on purpose")
	}},
	{name: leaving, handler: untilGone, client: leave},
	{name: "reset in the response", handler: flood, client: readALittle},
	{name: "half-close", only: "HTTP/1.1", handler: flood, client: raw("GET / HTTP/1.1\r\nHost: x\r\n\r\n", (*net.TCPConn).CloseWrite)},
	{name: resetting, only: "HTTP/1.1", handler: readBody, client: raw(partOfBody, reset)},
	{name: "reset in the headers", only: "HTTP/1.1", handler: readBody, client: raw("POST / HTTP/1.1\r\nHos", reset)},
	{name: "a lie about the length", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		io.WriteString(w, "too long for that")
	}},
}

const (
	leaving    = "leave while it waits or runs"
	resetting  = "reset in the body"
	partOfBody = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
)

func untilGone(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func flood(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		if _, err := io.WriteString(w, longDownload[:64<<10]); err != nil {
			return
		}
	}
}

func readBody(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }

func leave(t *testing.T, c *http.Client, url string) error {
	return leaveAfter(t, c, url, time.Millisecond)
}

func leaveAfter(t *testing.T, c *http.Client, url string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
	resp, err := c.Do(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

func readALittle(t *testing.T, c *http.Client, url string) error {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.ReadFull(resp.Body, make([]byte, 10))
	return err
}

func reset(c *net.TCPConn) error {
	if err := c.SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}

func raw(request string, end func(*net.TCPConn) error) func(*testing.T, *http.Client, string) error {
	return func(_ *testing.T, _ *http.Client, url string) error {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		return end(c.(*net.TCPConn))
	}
}

func plainGet(_ *testing.T, c *http.Client, url string) error {
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// TestNothingLeaks lets requests end in every possible way, several at a time, on a limiter that makes some of
// them wait. Then every slot and every place must be free again.
func TestNothingLeaks(t *testing.T) {
	const tries = 200
	for _, protocol := range protocols {
		for _, m := range misbehaviours {
			if m.only != "" && m.only != protocol {
				continue
			}
			t.Run(protocol+"/"+m.name, func(t *testing.T) { misbehave(t, protocol, m, tries) })
		}
	}
}

func misbehave(t *testing.T, protocol string, m misbehaviour, tries int) {
	l := weir.Must(limit.New(limit.Config{Name: "leak", Limit: 2, Queue: limit.Queue{MaxWait: time.Minute}}))
	s := NewStreams(StreamsConfig{Max: 1, Grace: time.Nanosecond})
	h := Middleware(l, WithStreams(s), WithBufferedBody(10))(m.handler)
	var running sync.WaitGroup // a server does not wait for those that hijack
	srv := serve(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		h.ServeHTTP(w, r)
	}))
	if m.client == nil {
		m.client = plainGet
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range tries / 4 {
				// The result for the client does not matter here.
				_ = m.client(t, srv.Client(), srv.URL)
			}
		})
	}
	wg.Wait()
	// On a busy machine, nothing may be admitted within the millisecond after which clients leave, or before
	// the reset arrives.
	for d := 2 * time.Millisecond; m.name == leaving && l.Snapshot().Admitted == 0 && d < time.Minute; d *= 2 {
		_ = leaveAfter(t, srv.Client(), srv.URL, d)
	}
	if m.name == resetting && l.Snapshot().Admitted == 0 {
		_ = raw(partOfBody, func(c *net.TCPConn) error {
			for d := time.Millisecond; l.Snapshot().Admitted == 0 && d < time.Minute; d *= 2 {
				<-time.After(d)
			}
			return reset(c)
		})(t, srv.Client(), srv.URL)
	}
	srv.CloseClientConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Drain(ctx); err != nil {
		t.Fatalf("%v: %+v, %+v", err, l.Snapshot(), s.Snapshot())
	}
	srv.Close()
	running.Wait()
	snap, streams := l.Snapshot(), s.Snapshot()
	if snap.InFlight != 0 || snap.Waiting != 0 {
		t.Errorf("left behind: %+v", snap)
	}
	if m.name != "reset in the headers" && snap.Admitted == 0 {
		t.Error("no request was admitted: nothing was tested")
	}
	if streams.Open != 0 {
		t.Errorf("places left behind: %+v", streams)
	}
}

// A connection that is dropped without Close is closed by the collector, and
// its place comes back with it.
func TestForgottenHijackedConnection(t *testing.T) {
	g := newFakeGate(1)
	s := NewStreams(StreamsConfig{})
	srv := serve(t, "HTTP/1.1", Middleware(g, WithStreams(s))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Hijacker).Hijack()
	})))
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	g.settled(1)
	for range 100 {
		if s.Snapshot().Open == 0 {
			return
		}
		runtime.GC()
	}
	t.Errorf("the place of a forgotten connection is still held: %+v", s.Snapshot())
}

func TestHijackedTLSConnectionKeepsItsSession(t *testing.T) {
	g := newFakeGate(1)
	s := NewStreams(StreamsConfig{})
	states := make(chan error, 1)
	h := Middleware(g, WithStreams(s))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			states <- err
			return
		}
		tc, ok := c.(interface{ ConnectionState() tls.ConnectionState })
		if !ok || !tc.ConnectionState().HandshakeComplete {
			err = fmt.Errorf("no session on a %T", c)
		}
		states <- errors.Join(err, c.Close())
	}))
	srv := serve(t, "HTTP/2.0", h)
	config := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	c, err := tls.Dial("tcp", srv.Listener.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := <-states; err != nil {
		t.Error(err)
	}
	if _, err := bufio.NewReader(c).ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the close: %v", err)
	}
	if open := s.Snapshot().Open; open != 0 {
		t.Errorf("%d places held", open)
	}
}
