package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

// rawServer answers every request on a connection with the same bytes and does
// as little as a server can.
func rawServer(b *testing.B) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if !bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")) {
						continue
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

// roundTrips sends one request after the other over one connection.
func roundTrips(b *testing.B, addr net.Addr) {
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := []byte("GET /some/path HTTP/1.1\r\nHost: example\r\nUser-Agent: bench\r\n\r\n")
	r := bufio.NewReader(c)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				b.Fatal(err)
			}
			if len(line) == 2 {
				break
			}
		}
		if _, err := r.Discard(len("hello")); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProxy is what a request costs through the gateway, and through a bare
// ReverseProxy with the same transport; client and upstream are in both.
func BenchmarkProxy(b *testing.B) {
	upstream := rawServer(b)
	b.Run("bare", func(b *testing.B) {
		target, err := url.Parse(upstream)
		if err != nil {
			b.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		rp := &httputil.ReverseProxy{
			Rewrite: func(pr *httputil.ProxyRequest) {
				pr.SetURL(target)
				pr.SetXForwarded()
			},
			Transport:  &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true, IdleConnTimeout: time.Minute},
			BufferPool: new(benchBuffers),
		}
		srv := &http.Server{Handler: rp, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		go func() { _ = srv.Serve(ln) }()
		defer srv.Close()
		roundTrips(b, ln.Addr())
	})
	for _, format := range []string{"", "json", "text"} {
		b.Run(strings.TrimSuffix("gateway, access log "+format, ", access log "), func(b *testing.B) {
			cfg, err := config.ForUpstream(upstream, "127.0.0.1:0", 100)
			if err != nil {
				b.Fatal(err)
			}
			cfg.Admin.Address = config.Off
			cfg.Shutdown = config.Shutdown{}
			if format != "" {
				cfg.AccessLog.To, cfg.AccessLog.Format = filepath.Join(b.TempDir(), "access.log"), format
			}
			s, err := New(cfg, Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			roundTrips(b, s.Addr())
			cancel()
			if err := <-ended; err != nil && err != ErrGrace {
				b.Fatal(err)
			}
		})
	}
}

// benchBuffers is the bare proxy's pool.
type benchBuffers struct{ buf []byte }

func (p *benchBuffers) Get() []byte {
	if p.buf == nil {
		p.buf = make([]byte, 32<<10)
	}
	return p.buf
}
func (p *benchBuffers) Put([]byte) {}

// What a connection costs that is refused, beside one that is taken and shakes hands:
// both ends of it, in this process.
func BenchmarkConnection(b *testing.B) {
	for _, bb := range []struct {
		name  string
		limit config.Connections
		taken bool
	}{
		{"refused", config.Connections{Addresses: 10, Exempt: []string{}, Rate: 1e-6}, false},
		{"taken", config.Connections{Addresses: 10, Exempt: []string{}}, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			at := serving(b, bb.limit)
			hands := func() error {
				c, err := net.Dial("tcp", at.String())
				if err != nil {
					return err
				}
				defer c.Close()
				_ = c.(*net.TCPConn).SetLinger(0) // or the ports run out
				if !bb.taken {
					_, err = c.Read(make([]byte, 1))
					return err
				}
				return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
			}
			if !bb.taken { // the bucket begins with one
				c, err := net.Dial("tcp", at.String())
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
			}
			for b.Loop() {
				if err := hands(); (err == nil) != bb.taken {
					b.Fatal(err)
				}
			}
		})
	}
}

// serving runs a gateway with TLS for the length of a benchmark.
func serving(b *testing.B, limits config.Connections) net.Addr {
	b.Helper()
	cfg, err := config.ForUpstream("http://127.0.0.1:1", "127.0.0.1:0", 10)
	if err != nil {
		b.Fatal(err)
	}
	cfg.Admin.Address = config.Off
	cfg.Shutdown = config.Shutdown{}
	cert, key := certificate(b)
	cfg.Listeners[0].TLS = &config.TLS{Cert: cert, Key: key}
	cfg.Listeners[0].Connections = limits
	s, err := New(cfg, Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx) // in what state it ends is not what is measured
	}()
	b.Cleanup(func() { cancel(); s.Abort(); <-ended })
	return s.Addr()
}
