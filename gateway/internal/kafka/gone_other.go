//go:build !linux

package kafka

import (
	"errors"
	"net"
)

// awaitGone is not supported here.
func awaitGone(net.Conn) error { return errors.ErrUnsupported }
