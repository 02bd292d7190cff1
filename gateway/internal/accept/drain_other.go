//go:build !linux

package accept

import "syscall"

// dropNewConnections does nothing here: a connection may be reset when the socket is closed.
func dropNewConnections(syscall.Conn) {}
