//go:build integration

package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// sockets are what a service manager opens, and passes to each process it starts.
type sockets struct {
	files []*os.File
	addrs []string
}

func openSockets(t *testing.T, n int) *sockets {
	t.Helper()
	s := new(sockets)
	for range n {
		l, err := net.Listen("tcp", freeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(); f.Close() })
		s.files, s.addrs = append(s.files, f), append(s.addrs, l.Addr().String())
	}
	return s
}

// command is weir with these sockets, as systemd starts it: the shell has the process id that weir will have.
func (s *sockets) command(file string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=$0 exec "$@"`, fmt.Sprint(len(s.files)), binary, "run", file)
	cmd.ExtraFiles = s.files
	return cmd
}

// A gateway serves the sockets that it is passed, the admin's too. Who connects before it starts, and
// while it is restarted, waits and is answered.
func TestSocketActivation(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer up.Close()
	s := openSockets(t, 2)
	file := filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, file, fmt.Appendf(nil, "listeners: [{address: %q}]\nadmin: {address: %q}\n%s", s.addrs[0], s.addrs[1], gatewayConfig(strings.TrimPrefix(up.URL, "http://"), 8)))
	for range 3 {
		c, err := net.Dial("tcp", s.addrs[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		answer := make(chan string, 1)
		go func() { answer <- exchange(c) }()
		p := launch(t, s.addrs[0], t.TempDir(), s.command(file))
		if got := <-answer; !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "hello") {
			t.Fatalf("who waited is told %q\n%s", got, p.out)
		}
		if metrics := string(get(t, "http://"+s.addrs[1]+"/metrics")); !strings.Contains(metrics, "weir_ready 1\n") {
			t.Error("no metrics on the socket of the admin listener")
		}
		p.signal(t, syscall.SIGTERM)
		if err := p.wait(t); err != nil {
			t.Fatalf("weir ended with %v\n%s", err, p.out)
		}
		if !strings.Contains(p.out.String(), `"inherited":true`) {
			t.Errorf("the log does not say whose sockets they are: %s", p.out)
		}
	}
}

// A socket that no listener uses is told at the start: who connects there would wait for ever.
func TestSocketWithoutListener(t *testing.T) {
	s := openSockets(t, 2)
	file := filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, file, fmt.Appendf(nil, "listeners: [{address: %q}]\nadmin: {address: off}\n%s", s.addrs[0], gatewayConfig("127.0.0.1:9", 8)))
	out, err := s.command(file).CombinedOutput()
	if want := "the service manager passes a socket at " + s.addrs[1] + ", but no listener has that address (the listeners have " + s.addrs[0] + ")"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v; it says %s, want %s", err, out, want)
	}
}

// exchange sends a request on a connection that is open already, and returns the answer.
func exchange(c net.Conn) string {
	_ = c.SetDeadline(time.Now().Add(await.Patience)) // the answer tells
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
	answer, _ := io.ReadAll(c)
	return string(answer)
}
