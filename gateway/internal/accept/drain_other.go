//go:build !linux

package accept

import "syscall"

// dropNewConnections can do nothing here: a connection may be reset in the moment of
// closing.
func dropNewConnections(syscall.Conn) {}
