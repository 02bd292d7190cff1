//go:build !plan9

package attempt

import "syscall"

var means = [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
