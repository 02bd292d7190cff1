package kafka

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// A quick connection does what package net's own have to.
func TestQuickConnections(t *testing.T) {
	nettest.TestConn(t, func() (one, other net.Conn, stop func(), err error) {
		l, err := nettest.NewLocalListener("tcp")
		if err != nil {
			return nil, nil, nil, err
		}
		defer l.Close()
		if one, err = net.Dial("tcp", l.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		if other, err = l.Accept(); err != nil {
			one.Close()
			return nil, nil, nil, err
		}
		one, other = quick(one), quick(other)
		return one, other, func() { one.Close(); other.Close() }, nil
	})
}
