package kafka

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/weir-go/weir/internal/rawconn"
)

// A connection of package rawconn passes the tests for net.Conn. The test stands here because the root module requires nothing.
func TestRawConnections(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			nettest.TestConn(t, func() (one, other net.Conn, stop func(), err error) {
				l, err := nettest.NewLocalListener(network)
				if err != nil {
					return nil, nil, nil, err
				}
				defer l.Close()
				if one, err = net.Dial(network, l.Addr().String()); err != nil {
					return nil, nil, nil, err
				}
				if other, err = l.Accept(); err != nil {
					one.Close()
					return nil, nil, nil, err
				}
				one, other = rawconn.New(one), rawconn.New(other)
				return one, other, func() { one.Close(); other.Close() }, nil
			})
		})
	}
}
