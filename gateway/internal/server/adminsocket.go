package server

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
)

// adminSocket is the admin listener's Unix socket. What comes over it may write.
type adminSocket struct {
	path    string
	ln      net.Listener
	server  *http.Server
	handler atomic.Pointer[http.Handler] // of the configuration in force
}

// socketConnections bounds those to the socket at a time.
const socketConnections = 64

// socketOf is the path of the socket that a configuration asks for, empty for none.
func socketOf(cfg config.Admin) string {
	if !cfg.Enabled() {
		return ""
	}
	return cfg.Socket
}

// openSocket opens the admin socket of cfg: the one there is, if its path is the same,
// and nil if it has none.
func (s *Server) openSocket(cfg *config.Config, live *adminSocket) (*adminSocket, error) {
	path := socketOf(cfg.Admin)
	switch {
	case path == "":
		return nil, nil
	case live != nil && live.path == path:
		return live, nil
	}
	ln, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on the socket %s: %w", cfg.At("admin.socket"), path, err)
	}
	a := &adminSocket{path: path, ln: &boundedSocket{ln, make(chan struct{}, socketConnections)}}
	a.server = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*a.handler.Load()).ServeHTTP(w, r) }),
		ConnContext:       admin.WithPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute, // a profile takes as long as it was asked to
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          stdlog.New(complaints{s.log.With("listener", path)}, "", 0),
	}
	return a, nil
}

// swapSocket serves the socket of another configuration and lets the old one go.
func (s *Server) swapSocket(cfg config.Admin, next *adminSocket) {
	old := s.socket
	s.socket = next
	if next != nil {
		h := s.adminHandler(cfg, next.ln.Addr())
		next.handler.Store(&h)
	}
	if next == old {
		return
	}
	if s.running {
		s.serveSocket()
	}
	if old != nil {
		s.log.Info("stopped listening", "address", "unix:"+old.path)
		s.leaving.Go(old.close)
	}
}

// boundedSocket accepts so many connections at a time. They stay those of a Unix socket,
// which can be asked who is at the other end.
type boundedSocket struct {
	*net.UnixListener
	places chan struct{}
}

// Accept waits for a place, and then for a connection.
func (b *boundedSocket) Accept() (net.Conn, error) {
	b.places <- struct{}{}
	c, err := b.AcceptUnix()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &boundedConn{UnixConn: c, leave: sync.OnceFunc(func() { <-b.places })}, nil
}

type boundedConn struct {
	*net.UnixConn
	leave func()
}

// Close closes the connection and makes place for another.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

var errSocketInUse = errors.New("another process answers there; stop it, or choose another path")

// listenUnix opens a socket that only this user can open. It gets its name once it is
// so: before, it stands in a directory that nobody else can enter. A socket of a
// process that has died is replaced, one that answers is not.
func listenUnix(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, errors.New("what is there is no socket; remove it, or choose another path")
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, errSocketInUse
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir") // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // it would remove the name that it has no more
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// serveSocket serves the admin socket, if there is one.
func (s *Server) serveSocket() {
	if s.socket == nil {
		return
	}
	a := s.socket
	s.log.Info("admin listening", "address", "unix:"+a.path, "writes", true)
	s.serving.Go(func() {
		if err := a.server.Serve(a.ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the admin socket has failed; nobody can write over it until the next start", "socket", a.path, "error", err)
		}
	})
}

// close ends the socket: what is under way on it has a second.
func (a *adminSocket) close() {
	if a == nil {
		return
	}
	_ = os.Remove(a.path) // nobody takes the name while this answers; it may have been removed
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if a.server.Shutdown(ctx) != nil {
		_ = a.server.Close() // cuts the rest; there is nobody to tell
	}
	_ = a.ln.Close() // where it was never served
}
