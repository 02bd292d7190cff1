//go:build !linux

package kafka

import (
	"errors"
	"net"
)

// awaitGone cannot tell here.
func awaitGone(net.Conn) error { return errors.ErrUnsupported }
