//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/server"
	"github.com/weir-go/weir/policy"
)

// The proxies that are compared. The first is the floor.
const (
	bare  = "bare ReverseProxy"
	off   = "weir, gate off"
	fixed = "weir, fixed limit"
	aimd  = "weir, aimd (default)"
)

var proxyNames = []string{bare, off, fixed, aimd}

// child is a proxy's process. It prints its address, then answers each line of
// its standard input with the CPU time it has used, and ends with the input.
func child(name, upstream string) error {
	runtime.GOMAXPROCS(1)
	addr, err := serveProxy(name, upstream)
	if err != nil {
		return err
	}
	fmt.Println(addr)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		used, err := cpuTime()
		if err != nil {
			return err
		}
		fmt.Println(used.Nanoseconds())
	}
	return nil
}

func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

func serveProxy(name, upstream string) (net.Addr, error) {
	if name == bare {
		return serveBare(upstream)
	}
	limit := int64(0)
	if name == fixed {
		limit = 256
	}
	cfg, err := config.ForUpstream(upstream, "127.0.0.1:0", limit)
	if err != nil {
		return nil, err
	}
	cfg.Admin.Address = config.Off
	if name == off {
		for key, gate := range cfg.Gates {
			gate.Mode = policy.Off
			cfg.Gates[key] = gate
		}
	}
	s, err := server.New(cfg, server.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	go func() { exitOn(s.Run(context.Background())) }()
	return s.Addr(), nil
}

// serveBare serves a ReverseProxy with nothing around it, tuned as the gateway's
// is: the transport's settings and the pool of buffers are the same.
func serveBare(upstream string) (net.Addr, error) {
	target, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
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
	go func() { exitOn(srv.Serve(ln)) }()
	return ln.Addr(), nil
}

// exitOn ends a child whose server ended by itself.
func exitOn(err error) {
	if err == nil {
		err = errors.New("the server ended")
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
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
