//go:build !linux

package kafka

import (
	"errors"
	"net"
)

// awaitGone is not supported here.
func awaitGone(net.Conn) error { return errors.ErrUnsupported }

// hasGone is false: nobody knows.
func hasGone(*net.TCPConn) bool { return false }

// receivedBy is not supported here.
func receivedBy(*net.TCPConn) (n uint64, ok bool) { return 0, false }
