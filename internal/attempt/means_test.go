//go:build !plan9

package attempt_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/weir-go/weir/internal/attempt"
)

// What this process lacks is found at any depth. All else is the server's, or the network's.
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
		{nil, false},
	} {
		if got := attempt.LacksMeans(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}
