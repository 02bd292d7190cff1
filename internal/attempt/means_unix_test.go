//go:build unix

package attempt_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/attempt"
)

// A lookup of a name may hide that it found no descriptor: it goes on with the next of the names that it tries, and without
// /etc/resolv.conf asks a server on this host. So a failed one is judged by whether there are descriptors.
func TestLookupWithoutMeans(t *testing.T) {
	hidden := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "a", IsNotFound: true}}
	if attempt.LacksMeans(hidden) {
		t.Error("a name that nobody knows is a lack of descriptors")
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := was
	none.Cur = 1 // below what is open
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	lacks := attempt.LacksMeans(hidden)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := (&net.Dialer{}).DialContext(ctx, "tcp", "a.invalid:1")
	found := attempt.LacksMeans(err)
	other := attempt.LacksMeans(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	var lookup *net.DNSError
	if !lacks || !found || !errors.As(err, &lookup) {
		t.Errorf("without descriptors: %v is a lack: %v; %v is one: %v", hidden, lacks, err, found)
	}
	if other {
		t.Error("a refused connection is a lack of descriptors")
	}
}
