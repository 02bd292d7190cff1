// Package rawconn makes connections that read and write without telling Go's scheduler.
//
// A system call is announced to the scheduler, since it may block. One that takes longer than some 20 µs
// loses its processor to another thread, which has to be woken for it. A socket of package net never blocks.
// But a write often takes that long where other processes share the cores, as it wakes whoever reads. Of the CPU
// time of passing on a small request two fifths were spent on waking threads.
//
// Until such a call returns, a collection of garbage has to wait for it. So it moves no more than [Most].
package rawconn

import "net"

// Most is how much is moved in a call that the scheduler does not know of, in bytes. More goes the usual way.
const Most = 128 << 10

// TCP returns the socket of c, nil if c is not one of TCP with nothing over it.
func TCP(c net.Conn) *net.TCPConn {
	switch c := c.(type) {
	case *net.TCPConn:
		return c
	case interface{ TCP() *net.TCPConn }:
		return c.TCP()
	}
	return nil
}
