//go:build !plan9

package attempt

import (
	"errors"
	"slices"
	"syscall"
)

// LacksMeans reports whether err, by which no connection could be made, is for want of a file descriptor or of memory in
// this process or on its host. That says nothing about the server. To lack a local address does: a host without IPv6 has
// none for a server of IPv6.
func LacksMeans(err error) bool {
	return slices.ContainsFunc(means[:], func(lack syscall.Errno) bool { return errors.Is(err, lack) })
}

var means = [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
