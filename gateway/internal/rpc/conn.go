package rpc

import (
	"context"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/internal/rawconn"
)

// handshake begins connections for grpc-go, with TLS or without.
type handshake struct {
	credentials.TransportCredentials
	server *Server
}

func (s *Server) credentials() credentials.TransportCredentials {
	if conf := s.opts.Conns.TLSConfig(); conf != nil {
		return handshake{credentials.NewTLS(conf), s}
	}
	return handshake{insecure.NewCredentials(), s}
}

// Clone implements [credentials.TransportCredentials].
func (h handshake) Clone() credentials.TransportCredentials {
	return handshake{h.TransportCredentials.Clone(), h.server}
}

// ServerHandshake implements [credentials.TransportCredentials]. The listener hears of handshakes
// that fail. Messages are small, so what a connection costs is waking who reads them; see [rawconn.New].
func (h handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := h.TransportCredentials.ServerHandshake(rawconn.New(raw))
	if err != nil {
		h.server.opts.Conns.HandshakeFailed(raw.RemoteAddr(), err)
		return nil, nil, err
	}
	if shown, ok := info.(credentials.TLSInfo); ok {
		info = &client{TLSInfo: shown}
	}
	return &conn{Conn: c, raw: raw, server: h.server}, info, nil
}

// client is what the handshake of a connection has told.
type client struct {
	credentials.TLSInfo
	known accept.Vouched
}

// trusts reports whether the certificate that a call's connection began with is still good.
// Connections last for days.
func (s *Server) trusts(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return true // cannot be
	}
	c, ok := p.AuthInfo.(*client)
	return !ok || s.opts.Conns.StillValid(&c.State, &c.known, time.Now())
}

// conn is a connection of a [Server].
type conn struct {
	net.Conn
	raw    net.Conn // below TLS
	server *Server
	spoken bool // something has been read; used by the one reader
}

// Read implements [net.Conn]. The listener hears when the peer has begun to speak: one that has not
// is not waited for.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.spoken {
		c.spoken = true
		c.server.opts.Conns.ConnState(c.raw, http.StateActive)
	}
	return n, err
}

// Write implements [net.Conn]. grpc-go sets no deadline: a peer that reads nothing would keep the
// connection, and all that is to be sent on it. Nor does grpc-go close one that cannot be written to.
func (c *conn) Write(p []byte) (int, error) {
	err := c.SetWriteDeadline(time.Now().Add(time.Duration(c.server.opts.Config.WriteTimeout)))
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Close() // the reader will tell
	}
	return n, err
}
