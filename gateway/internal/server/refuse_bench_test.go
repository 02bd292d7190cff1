package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

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
