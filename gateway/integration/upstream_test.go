//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
)

// pool is gunicorn with a fixed number of workers, each of which does one
// request at a time: its capacity is workers / mean service time.
type pool struct {
	*process
	addr    string
	workers int
}

func startGunicorn(t *testing.T, workers int) *pool {
	t.Helper()
	addr := freeAddr(t)
	app, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, addr, t.TempDir(), part(t, "gunicorn"),
		"--bind", addr, "--workers", strconv.Itoa(workers), "--worker-class", "sync",
		"--backlog", "2048", "--timeout", "30", "--graceful-timeout", "1",
		"--log-level", "warning", "--chdir", app, "app:application")
	return &pool{process: p, addr: addr, workers: workers}
}

// capacity is the highest rate the pool can serve requests of a mean service
// time at, a second.
func (p *pool) capacity(meanMillis int) int { return p.workers * 1000 / meanMillis }

type nginx struct {
	*process
	addr string
	big  []byte // what /big.bin holds
}

const nginxConf = `
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
%s
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	server {
		%s
		location / { root www; }
		location = /hello { return 200 "hello\n"; }
		location = /echo { return 200 "$request_method $http_x_echo $server_protocol\n"; }
		location = /away { return 302 /hello; }
		location = /boom { return 500; }
	}
}
`

// startNginx runs nginx for HTTP/1.1.
func startNginx(t *testing.T) *nginx {
	t.Helper()
	addr := freeAddr(t)
	return startNginxOn(t, addr, "listen "+addr+"; keepalive_requests 1000000;")
}

// startNginxOn runs nginx with settings for its server, which listens at addr.
func startNginxOn(t *testing.T, addr, server string) *nginx {
	t.Helper()
	dir := t.TempDir()
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(i * i >> 7)
	}
	writeFile(t, filepath.Join(dir, "www", "big.bin"), big)
	writeFile(t, filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, nginxConf, user, server))
	p := start(t, addr, dir, part(t, "nginx"), "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	return &nginx{process: p, addr: addr, big: big}
}

// crowd counts who is inside at a time. Its zero value is nobody.
type crowd struct{ inside, most atomic.Int64 }

// enter counts one in; the function it returns counts it out.
func (c *crowd) enter() (leave func()) {
	n := c.inside.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	return func() { c.inside.Add(-1) }
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
