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

// ServerHandshake implements [credentials.TransportCredentials]. It tells the listener of handshakes that fail.
// Messages are small, so most of a connection's cost is to wake its reader; see [rawconn.New].
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

// client is the result of the handshake of a connection.
type client struct {
	credentials.TLSInfo
	known accept.Vouched
}

// trusts reports whether the certificate of a call's connection is still valid. It is asked for each call,
// because connections last for days.
func (s *Server) trusts(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return true // impossible
	}
	c, ok := p.AuthInfo.(*client)
	return !ok || s.opts.Conns.StillValid(&c.State, &c.known, time.Now())
}

// conn is a connection of a [Server].
type conn struct {
	net.Conn
	raw    net.Conn // below TLS
	server *Server
	spoken bool // bytes have been read; only the reader uses it
}

// Read implements [net.Conn]. It tells the listener when the peer has sent its first bytes: a shutdown does not
// wait for a connection that has sent none.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.spoken {
		c.spoken = true
		c.server.opts.Conns.ConnState(c.raw, http.StateActive)
	}
	return n, err
}

// Write implements [net.Conn]. It sets a deadline, because grpc-go sets none: a peer that reads nothing would
// keep the connection and all unsent data in memory. It also closes a connection after a failed write, because
// grpc-go does not.
func (c *conn) Write(p []byte) (int, error) {
	err := c.SetWriteDeadline(time.Now().Add(time.Duration(c.server.opts.Config.WriteTimeout)))
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Close() // the reader gets the error
	}
	return n, err
}
