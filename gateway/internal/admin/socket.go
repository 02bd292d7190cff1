package admin

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/gateway/internal/accept"
)

// Socket is the admin listener's Unix socket. Whoever can open it may write.
type Socket struct {
	Path    string
	name    *accept.SocketName
	ln      net.Listener
	server  *http.Server
	handler atomic.Pointer[http.Handler]
}

// socketConnections bounds those to the socket at a time.
const socketConnections = 64

// OpenSocket opens a socket at path. It answers nothing before SetHandler. The server's errors go to errorLog.
func OpenSocket(path string, errorLog *log.Logger) (*Socket, error) {
	ln, name, err := accept.ListenUnix(path, 0o600)
	if err != nil {
		return nil, err
	}
	s := &Socket{Path: path, name: name, ln: &boundedSocket{ln, make(chan struct{}, socketConnections)}}
	s.server = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.handler.Load()).ServeHTTP(w, r) }),
		ConnContext:       withPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute, // a profile takes as long as it was asked to
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog,
	}
	return s, nil
}

// SetHandler sets what the socket serves, also while it serves.
func (s *Socket) SetHandler(h http.Handler) { s.handler.Store(&h) }

// Serve serves until Close. An error is of a socket that has failed.
func (s *Socket) Serve() error {
	if err := s.server.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the socket: requests in progress have a second. A nil Socket has nothing to
// close.
func (s *Socket) Close() {
	if s == nil {
		return
	}
	s.name.Leave()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close() // cuts the rest; there is nobody to tell
	}
	_ = s.ln.Close() // where it was never served
}

// boundedSocket accepts a bounded number of connections at a time. They stay connections of
// a Unix socket, which can be asked who is at the other end.
type boundedSocket struct {
	*net.UnixListener
	slots chan struct{}
}

// Accept waits for a free slot, and then for a connection.
func (b *boundedSocket) Accept() (net.Conn, error) {
	b.slots <- struct{}{}
	c, err := b.AcceptUnix()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &boundedConn{UnixConn: c, free: sync.OnceFunc(func() { <-b.slots })}, nil
}

type boundedConn struct {
	*net.UnixConn
	free func()
}

// Close closes the connection and frees its slot.
func (c *boundedConn) Close() error {
	defer c.free()
	return c.UnixConn.Close()
}
