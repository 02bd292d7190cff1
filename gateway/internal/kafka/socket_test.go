package kafka

import (
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// pairOf returns the two ends of a connection.
func pairOf() (one, other net.Conn, err error) {
	l, err := nettest.NewLocalListener("tcp")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if one, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if other, err = l.Accept(); err != nil {
		one.Close()
	}
	return one, other, err
}

// A quick connection does what package net's own have to.
func TestQuickConnections(t *testing.T) {
	nettest.TestConn(t, func() (one, other net.Conn, stop func(), err error) {
		if one, other, err = pairOf(); err != nil {
			return nil, nil, nil, err
		}
		one, other = quick(one), quick(other)
		return one, other, func() { one.Close(); other.Close() }, nil
	})
}

// What a socket has no room for is written when it has, be it more or less than the scheduler is told of.
func TestQuickConnectionsWriteAll(t *testing.T) {
	for _, size := range []int{largeBuffer, 3 * largeBuffer} {
		one, other, err := pairOf()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { one.Close(); other.Close() })
		if err := one.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(i % 251)
		}
		wrote := make(chan int, 1)
		go func() {
			n, _ := quick(one).Write(sent)
			wrote <- n
			one.Close()
		}()
		got, err := io.ReadAll(other)
		if n := <-wrote; n != size || err != nil || !bytes.Equal(got, sent) {
			t.Errorf("of %d bytes %d are written, and %d come: %v", size, n, len(got), err)
		}
	}
}
