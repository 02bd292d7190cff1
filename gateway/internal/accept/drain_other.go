//go:build !linux

package accept

import "net"

// dropNewConnections can do nothing here: a connection may be reset in the moment of
// closing.
func dropNewConnections(*net.TCPListener) {}
