// Package freeport finds ports of the loopback address for servers that a test or a
// benchmark starts as processes of their own.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// Range is the ports from First to First+Size-1. On Linux each port is for one process, until that ends. Elsewhere
// it counts as free until the server that was started for it listens, so processes that run side by side
// use different ranges. Ranges stay below 32768: from there the kernel gives ports to connections.
type Range struct {
	First, Size uint32
	// Bus, if not 0, asks for a second free port, so far above the first. The nodes of a
	// Redis cluster need one for the bus between them.
	Bus uint32

	next atomic.Uint32 // the last port that was tried is First + next%Size; 0: none yet
}

// Addr returns an address host:port where nobody listens, another one each time until all
// ports of the range were tried.
func (r *Range) Addr() (string, error) {
	port, err := r.Ports(1)
	if err != nil {
		return "", err
	}
	return address(port), nil
}

// Ports returns the first of n ports in a row where nobody listens, others each time as Addr does.
func (r *Range) Ports(n uint32) (first uint32, err error) {
	r.next.CompareAndSwap(0, 1+rand.Uint32N(r.Size))
	for range r.Size {
		first := r.First + (r.next.Add(n)-n+1)%r.Size
		if first+n <= r.First+r.Size && r.free(first, n) {
			return first, nil
		}
	}
	return 0, fmt.Errorf("fewer than %d in a row are free of the ports from %d to %d", n, r.First, r.First+r.Size-1)
}

func (r *Range) free(first, n uint32) bool {
	for port := first; port < first+n; port++ {
		if !claim(port) || !free(port) || r.Bus != 0 && !free(port+r.Bus) {
			return false
		}
	}
	return true
}

// claims holds the ports that this process has asked for.
var claims = struct {
	sync.Mutex
	names map[uint32]net.Listener
}{names: map[uint32]net.Listener{}}

// claim reports whether no other process has asked for a port. A server may take long to listen, and another run of the
// same tests must not start one on its port meanwhile. A name in Linux's abstract namespace ends with its process.
func claim(port uint32) bool {
	if runtime.GOOS != "linux" {
		return true
	}
	claims.Lock()
	defer claims.Unlock()
	if claims.names[port] != nil {
		return true
	}
	name, err := net.Listen("unix", fmt.Sprintf("@weir-test-port-%d", port))
	if err != nil {
		return false
	}
	claims.names[port] = name
	return true
}

// free reports whether nobody listens on a port. No process may be started meanwhile: it
// has a copy of each open socket until it runs its program. That copy would still listen
// when the server comes.
func free(port uint32) bool {
	probe()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// probe lets package os find out whether the kernel has process descriptors. It does so once,
// with a process that it starts without that lock.
var probe = sync.OnceFunc(func() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
})

func address(port uint32) string { return fmt.Sprintf("127.0.0.1:%d", port) }
