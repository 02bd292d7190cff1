//go:build !plan9

package attempt_test

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/weir-go/weir/internal/attempt"
)

// What this process lacks is found at any depth, and in the text of a failed lookup. All else is the server's, or the network's.
func TestLacksMeans(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{syscall.EMFILE, true},
		{fmt.Errorf("dial: %w", os.NewSyscallError("socket", syscall.ENFILE)), true},
		{os.NewSyscallError("connect", syscall.ENOBUFS), true},
		{os.NewSyscallError("socket", syscall.ENOMEM), true},
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), false},
		{os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), false},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "dial udp 192.0.2.1:53: socket: too many open files", Name: "a"}}, true},
		{&net.DNSError{Err: "write udp 192.0.2.1:53: connect: no buffer space available", Name: "a"}, true},
		{&net.DNSError{Err: "no such host", Name: "too many open files", IsNotFound: true}, false},
		{nil, false},
	} {
		if got := attempt.LacksMeans(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}
