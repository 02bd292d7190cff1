//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// What nginx answers arrives as it was sent, over both protocols.
func TestProtocol(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, 64))
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(proto)
		for _, tt := range []struct {
			method, path string
			header       http.Header
			status       int
			body         []byte // nil: not compared
			want         http.Header
		}{
			{"GET", "/hello", nil, 200, []byte("hello\n"), nil},
			{"HEAD", "/big.bin", nil, 200, []byte{}, http.Header{"Content-Length": {fmt.Sprint(len(up.big))}}},
			{"GET", "/big.bin", nil, 200, up.big, http.Header{"Accept-Ranges": {"bytes"}}},
			{"GET", "/big.bin", http.Header{"Range": {"bytes=1000-1999"}}, 206, up.big[1000:2000], nil},
			{"GET", "/echo", http.Header{"X-Echo": {"a,b"}}, 200, []byte("GET a,b HTTP/1.1\n"), nil},
			{"GET", "/away", nil, 302, nil, nil},
			{"GET", "/nothing", nil, 404, nil, nil},
			{"GET", "/boom", nil, 500, nil, nil},
			{"POST", "/big.bin", nil, 405, nil, nil},
		} {
			name := fmt.Sprintf("%s %s %s", proto, tt.method, tt.path)
			req, err := http.NewRequestWithContext(t.Context(), tt.method, g.url+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tt.header {
				req.Header[k] = v
			}
			res, err := client.Do(req)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if res.Proto != proto || res.StatusCode != tt.status || err != nil {
				t.Errorf("%s: %s %d, %v; want %d", name, res.Proto, res.StatusCode, err, tt.status)
			}
			if tt.body != nil && !bytes.Equal(body, tt.body) {
				t.Errorf("%s: %d bytes that are not the %d expected", name, len(body), len(tt.body))
			}
			for k, v := range tt.want {
				if res.Header.Get(k) != v[0] {
					t.Errorf("%s: %s is %q, want %q", name, k, res.Header.Get(k), v[0])
				}
			}
		}
		client.CloseIdleConnections()
	}
	g.idle(t)
}

func clientFor(proto string) *http.Client {
	p := new(http.Protocols)
	if proto == "HTTP/2.0" {
		p.SetUnencryptedHTTP2(true)
	} else {
		p.SetHTTP1(true)
	}
	return &http.Client{
		Transport:     &http.Transport{Protocols: p, DisableCompression: true},
		Timeout:       await.Patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Headers without end are refused by the gateway, and cost it no slot.
func TestHugeHeader(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	req, err := http.NewRequestWithContext(t.Context(), "GET", g.url+"/hello", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Huge", strings.Repeat("x", 1<<20))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %s, want 431", res.Status)
	}
	g.idle(t)
}

// nginx gone: a clear status, soon, and the slot back.
func TestUpstreamGone(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	get(t, g.url+"/hello")
	up.stop(t)
	begun := time.Now()
	res, err := http.Get(g.url + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusBadGateway || time.Since(begun) > 30*time.Second {
		t.Errorf("%s after %v, want 502 at once", res.Status, time.Since(begun))
	}
	g.idle(t)
}
