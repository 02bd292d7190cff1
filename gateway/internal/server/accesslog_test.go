package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// line is a line of the access log in JSON.
type line struct {
	Time, Client, Method, Host, Path, Query, Proto, By, Route, Class, Upstream, Target, Gate, Rule, Reason string
	RequestID                                                                                              string `json:"request_id"`
	TraceID                                                                                                string `json:"trace_id"`
	Status                                                                                                 int
	Bytes                                                                                                  int64
	Duration, Waited                                                                                       float64
}

// linesOf waits until a file has n lines of an access log, and returns them.
func linesOf(t *testing.T, file string, n int) []line {
	t.Helper()
	var all []line
	eventually(t, fmt.Sprintf("%d lines in %s", n, file), func() bool {
		text, err := os.ReadFile(file)
		if err != nil || strings.Count(string(text), "\n") < n {
			return false
		}
		all = nil
		for part := range strings.Lines(string(text)) {
			var l line
			if err := json.Unmarshal([]byte(part), &l); err != nil {
				t.Fatalf("%v in %q", err, part)
			}
			all = append(all, l)
		}
		return true
	})
	if len(all) != n {
		t.Fatalf("%d lines in %s, want %d: %+v", len(all), file, n, all)
	}
	return all
}

// logged is a configuration with an access log, and its file.
func logged(t *testing.T, upstream string) (*config.Config, string) {
	t.Helper()
	cfg := baseConfig(t, upstream)
	file := filepath.Join(t.TempDir(), "access.log")
	cfg.AccessLog.To = file
	return cfg, file
}

// Each request has a line, whoever answered it.
func TestAccessLog(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			arrived <- struct{}{}
			<-release
		}
		fmt.Fprint(w, "hello")
	})
	cfg, file := logged(t, up.URL)
	cfg.Routes[0].Match = []string{"/hold", "/a/", "/head"}
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit, l.Queue.Len = 1, -1 })
	g := start(t, cfg, Options{})

	request := func(method, path string) {
		t.Helper()
		req, err := http.NewRequest(method, g.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host, req.Close = "shop.example", true
		req.Header.Set("X-Forwarded-For", "203.0.113.9")
		req.Header.Set("X-Request-Id", "id-17")
		do(t, req)
	}
	held := make(chan struct{})
	go func() {
		defer close(held)
		if res, err := http.Get(g.url + "/hold"); err == nil {
			res.Body.Close()
		}
	}()
	<-arrived
	request(http.MethodPost, "/a/refused?password=1")
	close(release)
	<-held
	g.idle()
	request(http.MethodGet, "/a/%0A%22b")
	g.idle()
	request(http.MethodHead, "/none")
	up.Close()
	request(http.MethodGet, "/a/broken")
	all := linesOf(t, file, 5)

	target := up.URL
	for i, want := range []line{
		{Method: "POST", Path: "/a/refused", Status: 503, By: "gate", Route: "/hold", Class: "normal", Gate: gateName, Reason: "limit"},
		{Method: "GET", Path: "/hold", Status: 200, Bytes: 5, By: "upstream", Route: "/hold", Class: "normal", Upstream: gateName, Target: target},
		{Method: "GET", Path: "/a/%0A%22b", Status: 200, Bytes: 5, By: "upstream", Route: "/hold", Class: "normal", Upstream: gateName, Target: target},
		{Method: "HEAD", Path: "/none", Status: 404, By: "gateway"},
		{Method: "GET", Path: "/a/broken", Status: 502, By: "gateway", Route: "/hold", Class: "normal", Upstream: gateName, Target: target, Reason: "connect"},
	} {
		got := all[i]
		if got.Time == "" || got.Duration <= 0 || got.Waited < 0 || got.Waited > got.Duration || got.Bytes == 0 && want.By != "gateway" {
			t.Errorf("line %d is %+v", i, got)
		}
		if want.Path != "/hold" {
			want.Client, want.Host, want.RequestID = "203.0.113.9", "shop.example", "id-17"
		} else {
			want.Client, want.Host = "127.0.0.1", strings.TrimPrefix(g.url, "http://")
		}
		want.Time, want.Proto, want.Duration, want.Waited = got.Time, "HTTP/1.1", got.Duration, got.Waited
		if want.By != "upstream" && want.Method != "HEAD" {
			want.Bytes = got.Bytes
		}
		if got != want {
			t.Errorf("line %d is\n%+v, want\n%+v", i, got, want)
		}
	}
	if s := g.AccessLog(); s.Written != 5 || s.Full+s.Failed != 0 {
		t.Errorf("counted %+v", s)
	}
}

// A user may be known by a secret, which a rule without a name matches. No line has it.
func TestAccessLogNamesNoUser(t *testing.T) {
	cfg, file := logged(t, upstreamOf(t, func(http.ResponseWriter, *http.Request) {}).URL)
	cfg.Identity.Trusted = []string{"127.0.0.0/8"}
	cfg.Identity.User = "header:X-Api-Key"
	cfg.Gates["plan"] = policy.GateSpec{Quota: &policy.QuotaSpec{Rules: []policy.QuotaRuleSpec{
		{Rule: quota.Rule{User: "sk-live-1", Blocked: true}}, {Rule: quota.Rule{Name: "banned", User: "sk-live-2", Blocked: true}},
	}}}
	cfg.Routes[0].Gates = append([]string{"plan"}, cfg.Routes[0].Gates...)
	g := start(t, cfg, Options{})
	for i, want := range []string{"user=...", "banned"} {
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", fmt.Sprintf("sk-live-%d", i+1))
		do(t, req)
		g.idle()
		if got := linesOf(t, file, i+1)[i]; got.Rule != want || got.Gate != "plan" || got.Status != http.StatusForbidden {
			t.Errorf("%+v, want the rule %s", got, want)
		}
	}
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "sk-live") {
		t.Errorf("%s %v", text, err)
	}
}

// What waits for a slot says how long, and a client that leaves has a line too.
func TestAccessLogOfWaiting(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	cfg, file := logged(t, up.URL)
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 1 })
	g := start(t, cfg, Options{})
	ask := func(path string) {
		if res, err := http.Get(g.url + path); err == nil {
			res.Body.Close()
		}
	}
	go ask("/first")
	<-arrived
	go ask("/second")
	left := dial(t, g.Addr(), "GET /left HTTP/1.1\r\nHost: x\r\n\r\n")
	eventually(t, "two wait", func() bool { return g.gate().Waiting == 2 })
	left.Close()
	eventually(t, "one has left", func() bool { return g.gate().Waiting == 1 })
	gone := linesOf(t, file, 1)[0]
	if gone.Path != "/left" || gone.Status != 499 && gone.Reason != "canceled" {
		t.Errorf("the client that left has the line %+v", gone)
	}
	release <- struct{}{}
	<-arrived
	release <- struct{}{}
	for _, l := range linesOf(t, file, 3)[1:] {
		if waited := l.Waited > l.Duration/1e3; l.Path == "/second" && !waited || l.Status != 200 {
			t.Errorf("line %+v; want a wait for /second", l)
		}
	}
}

// A client that leaves in the middle of its upload has left, and sent no malformed request.
func TestAccessLogOfUploadsThatEnd(t *testing.T) {
	arrived := make(chan struct{})
	up := h2cUpstream(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 2))
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	cfg, file := logged(t, "h2c://"+up)
	cfg.Listeners[0].H2C = true
	g := start(t, cfg, Options{})
	const head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: "

	for i, half := range []bool{false, false, true, true} {
		sent := head + "10\r\n\r\nhi" // which is read ahead
		if i%2 == 1 {
			sent = head + "100000\r\n\r\n" + strings.Repeat("a", uploadBytes)
		}
		c := dial(t, g.Addr(), sent)
		if i%2 == 1 {
			<-arrived
		}
		if half { // such a client still reads
			_ = c.CloseWrite()
			if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != http.StatusBadRequest {
				t.Errorf("upload %d: %v, %v, want 400", i, res, err)
			}
		}
		c.Close()
		linesOf(t, file, 1+i)
	}
	for i, resets := range []bool{true, true, false, false} {
		leave := uploadOverHTTP2(t, g, resets, i%2 == 1)
		<-arrived
		leave()
		linesOf(t, file, 5+i)
	}
	for i, l := range linesOf(t, file, 8) {
		if l.Status != 499 {
			t.Errorf("upload %d: %+v", i, l)
		}
	}
}

// uploadOverHTTP2 begins an upload. The function that it returns resets the stream or closes the connection.
func uploadOverHTTP2(t *testing.T, g *running, resets, grpc bool) (leave func()) {
	t.Helper()
	conns := make(chan net.Conn, 1)
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		conns <- c
		return c, err
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	ctx, cancel := context.WithCancel(patient(t))
	body, client := io.Pipe()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url, body)
	if err != nil {
		t.Fatal(err)
	}
	if grpc {
		r.Header.Set("Content-Type", "application/grpc")
	}
	var ended sync.WaitGroup
	ended.Go(func() {
		if res, err := tr.RoundTrip(r); err == nil {
			t.Errorf("answered %s", res.Status)
			res.Body.Close()
		}
	})
	_, _ = io.WriteString(client, strings.Repeat("a", uploadBytes))
	return func() {
		if resets {
			cancel()
		} else {
			(<-conns).Close()
		}
		ended.Wait()
		cancel()
		client.Close()
	}
}

// logrotate renames the file and asks for a reload, by SIGHUP or at the admin listener. That opens the file again,
// also if the configuration has faults, and loses no line.
func TestAccessLogIsReopened(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg, file := logged(t, up.URL)
	next := cfg
	var fault error
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return next, fault }})
	rotate := func(to string) {
		t.Helper()
		if err := os.Rename(file, to); err != nil {
			t.Fatal(err)
		}
		if err := g.Reload(); err != fault {
			t.Fatal(err)
		}
	}
	rotateAndTell := func(to string) {
		t.Helper()
		if err := os.Rename(file, to); err != nil {
			t.Fatal(err)
		}
		if told := g.reloadAndTell(); told.Error != fault.Error() {
			t.Fatal(told.Error)
		}
	}
	get(t, g.url+"/1")
	g.idle()
	rotate(file + ".1")
	get(t, g.url+"/2")
	g.idle()
	fault = fmt.Errorf("line 1 is no line")
	rotate(file + ".2")
	get(t, g.url+"/3")
	g.idle()
	rotateAndTell(file + ".3")
	get(t, g.url+"/4")
	g.idle()
	for i, name := range []string{file + ".1", file + ".2", file + ".3", file} {
		if got, want := linesOf(t, name, 1)[0].Path, fmt.Sprintf("/%d", i+1); got != want {
			t.Errorf("%s is about %s, want %s", name, got, want)
		}
	}

	// Off and on again, and a file that cannot be opened.
	fault = nil
	off := *cfg
	off.AccessLog = config.AccessLog{To: config.Off}
	next = &off
	rotate(file + ".4")
	get(t, g.url+"/5")
	bad := *cfg
	bad.AccessLog.To = filepath.Join(file, "none")
	next = &bad
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "access_log.to") {
		t.Errorf("a reload gave %v, want the setting named", err)
	}
	next = cfg
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	get(t, g.url+"/6")
	g.idle()
	if got := linesOf(t, file, 1)[0].Path; got != "/6" {
		t.Errorf("the file is about %s", got)
	}
	if err := g.stop(); err != nil {
		t.Error(err)
	}
	if s := g.AccessLog(); s.Written != 5 || s.Full+s.Failed != 0 {
		t.Errorf("counted %+v; want five lines and none lost", s)
	}
}

// That holds while the gateway stops, too: what is still in progress has its lines in the new file.
func TestAccessLogIsReopenedInAShutdown(t *testing.T) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) { close(reached); <-goOn })
	cfg, file := logged(t, up.URL)
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return cfg, nil }})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		get(t, g.url+"/last")
	}()
	<-reached
	g.cancel()
	eventually(t, "it stops", g.draining.Load)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(); err == nil {
		t.Error("a gateway that stops has read its configuration")
	}
	close(goOn)
	<-answered
	if err := g.wait(); err != nil {
		t.Error(err)
	}
	if got := linesOf(t, file, 1)[0].Path; got != "/last" {
		t.Errorf("the new file is about %s", got)
	}
	if err := g.Reload(); err == nil {
		t.Error("a gateway that has stopped has read its configuration")
	}
}

// Whoever rotates logs may do so at any moment of a shutdown, and again and again.
func TestAccessLogIsReopenedThroughoutShutdowns(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	for range 20 {
		cfg, _ := logged(t, up.URL)
		g := start(t, cfg, Options{Load: func() (*config.Config, error) { return cfg, nil }})
		get(t, g.url+"/")
		begun, stopped, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				_ = g.Reload() // refused once the shutdown has begun, and opens the log again all the same
				if i == 0 {
					close(begun)
				}
				select {
				case <-stopped:
					return
				default:
				}
			}
		}()
		<-begun
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		close(stopped)
		<-done
	}
}

func TestTraceID(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":    "4bf92f3577b34da6a3ce929d0e0e4736",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x":  "4bf92f3577b34da6a3ce929d0e0e4736",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01":    "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01":    "",
		"00-4bf92f3577b34da6a3ce929d0e0e47-3600f067aa0ba902b7-01":    "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7":       "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736+00f067aa0ba902b7-01":    "",
		"00-4bf92f3577b34da6a3ce929d0e0e473\n-00f067aa0ba902b7-0123": "",
	} {
		if got := traceID([]string{text}); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := traceID([]string{traceparent, traceparent}); got != "" {
		t.Errorf("of two headers: %q", got)
	}
	if got := traceID(nil); got != "" {
		t.Errorf("of none: %q", got)
	}
}
