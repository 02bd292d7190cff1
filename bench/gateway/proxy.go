//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// The proxies that are compared. The first is the floor.
const (
	bare  = "bare ReverseProxy"
	off   = "weir, gate off"
	fixed = "weir, fixed limit"
	knee  = "weir, defaults"
)

var proxyNames = []string{bare, off, fixed, knee}

// start starts the proxy called name, on one core, and connects to it.
func start(name, binary, upstream string, conns int) (*subject, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	args := []string{"run", "--upstream", upstream, "--listen", addr, "--admin", "off"}
	switch name {
	case bare:
		if binary, err = os.Executable(); err != nil {
			return nil, err
		}
		args = []string{"-serve", addr, "-upstream", upstream}
	case fixed:
		args = append(args, "--limit", "256")
	case off:
		dir, err := os.MkdirTemp("", "weir-bench")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir) // read once it listens
		file := filepath.Join(dir, "weir.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, gateOff, addr, upstream), 0o600); err != nil {
			return nil, err
		}
		args = []string{"run", "--config", file}
	}
	s := &subject{name: name, cmd: exec.Command(binary, args...)}
	s.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	var said bytes.Buffer
	s.cmd.Stderr = &said
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.connect(addr, conns); err != nil {
		s.stop()
		return nil, fmt.Errorf("%w; it said:\n%s", err, &said)
	}
	return s, nil
}

// gateOff is the gateway's file with its gate off.
const gateOff = `listeners: [{address: "%s"}]
admin: {address: off}
upstreams: {app: {targets: ["%s"]}}
gates: {all: {mode: off, limit: {}}}
routes: [{match: [/], gates: [all], upstream: app}]
`

// freeAddr returns a loopback address that nobody listens on.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// serveBare serves a ReverseProxy with nothing around it, tuned as the gateway's
// is: the transport's settings and the pool of buffers are the same.
func serveBare(addr, upstream string) error {
	target, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			MaxIdleConnsPerHost:    1024,
			IdleConnTimeout:        45 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			DisableCompression:     true,
		},
		BufferPool: new(bufferPool),
	}
	srv := &http.Server{
		Handler: proxy, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	return srv.Serve(ln)
}

type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put(&p) }

// stub is an upstream that answers every request with the same bytes. It takes
// a request for complete at its first empty line, so it is for GETs only.
const stubAnswer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

func startStub() (net.Listener, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return ln, nil
}

func answer(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(line) > 2 {
			continue
		}
		if _, err := io.WriteString(c, stubAnswer); err != nil {
			return
		}
	}
}
