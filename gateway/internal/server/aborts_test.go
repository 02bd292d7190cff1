package server

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
)

// Clients that end their connections at every bad moment leak nothing.
func TestAborts(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strings.Repeat("x", 100<<10))
	})
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName].Limit.Limit = 4
	cfg.Gates[gateName].Limit.Queue.Len = 8
	cfg.Listeners[0].ReadTimeout = policy.Duration(100 * time.Millisecond)
	cfg.Listeners[0].ReadHeaderTimeout = policy.Duration(100 * time.Millisecond)
	g := start(t, cfg, Options{})

	const get, post = "GET / HTTP/1.1\r\nHost: x\r\n", "POST / HTTP/1.1\r\nHost: x\r\n"
	requests := []string{
		"GE", get, get + "\r\n",
		post + "Content-Length: 50000\r\n\r\n", post + "Content-Length: 50\r\n\r\nhalf",
		post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
		get + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		get + "\r\n" + get + "\r\n" + get + "\r\n", // pipelined
	}
	endings := []func(*net.TCPConn){
		func(c *net.TCPConn) { _ = c.Close() },
		func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, // a reset
		func(c *net.TCPConn) { _ = c.CloseWrite(); _, _ = io.Copy(io.Discard, c); _ = c.Close() },
		func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 10)); _ = c.SetLinger(0); _ = c.Close() },
	}
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for k := range 20 {
				i := worker*20 + k
				raw, err := net.Dial("tcp", g.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				c := raw.(*net.TCPConn)
				_ = c.SetDeadline(time.Now().Add(3 * time.Second))
				_, _ = io.WriteString(c, requests[i%len(requests)])
				endings[i/len(requests)%len(endings)](c)
			}
		})
	}
	all.Wait()
	g.idle()
	eventually(t, "no connection is left", func() bool { return g.Connections()[0].InFlight == 0 })
	if g.gate().Admitted < 50 {
		t.Errorf("only %d were admitted: nothing is shown", g.gate().Admitted)
	}
}
