package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

func TestUpstreamFailures(t *testing.T) {
	refusing := "http://" + closedPort(t)
	hanging := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	garbage := rawUpstream(t, "SSH-2.0-OpenSSH_9.6\r\n")
	resetting := rawUpstream(t, "")
	huge := rawUpstream(t, "HTTP/1.1 200 OK\r\nX-A: "+strings.Repeat("a", 1<<20))

	f := func(what, target string, timeout time.Duration, status int, outcome weir.Outcome) {
		t.Helper()
		cfg := baseConfig(t, target)
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.ResponseTimeout = policy.Duration(timeout) })
		g := start(t, cfg, Options{})
		res, body := get(t, g.url)
		if res.StatusCode != status || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d", what, res.StatusCode, body, status)
		}
		g.idle()
		if g.gate().Outcomes[outcome] != 1 {
			t.Errorf("%s: outcomes %v, want one %v", what, g.gate().Outcomes, outcome)
		}
	}
	f("refuses", refusing, time.Minute, http.StatusBadGateway, weir.Failed)
	f("hangs", hanging.URL, 100*time.Millisecond, http.StatusGatewayTimeout, weir.Overload)
	f("speaks something else", garbage, time.Minute, http.StatusBadGateway, weir.Failed)
	f("resets", resetting, time.Minute, http.StatusBadGateway, weir.Failed)
	f("sends endless headers", huge, time.Minute, http.StatusBadGateway, weir.Failed)
}

// An answer that breaks off must not look complete.
func TestAnswerBreaksOff(t *testing.T) {
	f := func(what, answer string) {
		t.Helper()
		g := start(t, baseConfig(t, rawUpstream(t, answer)), Options{})
		res, err := http.Get(g.url)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the client saw a complete answer", what)
		}
		g.idle()
	}
	f("reset in the body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
	f("reset in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
}

// An upstream that sends more than it announced.
func TestAnswerTooLong(t *testing.T) {
	g := start(t, baseConfig(t, rawUpstream(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more")), Options{})
	if _, body := get(t, g.url); body != "hello" {
		t.Errorf("%q, want what was announced", body)
	}
	g.idle()
}

// closedPort returns an address nobody listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// rawUpstream answers each request with text and closes the connection.
func rawUpstream(t *testing.T, text string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				_, _ = io.WriteString(c, text)
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}
