//go:build linux && !race

package rawconn

import (
	"bytes"
	"io"
	"runtime"
	"testing"
)

// A write of much waits for one that is under way, and does not go between its parts.
func TestWritesInTurn(t *testing.T) {
	one, other := pairOf(t, "tcp")
	c := New(one).(*conn)
	c.writes.mu.Lock() // as a write does between its parts
	began, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		close(began)
		_, err := c.Write(make([]byte, Most+1))
		wrote <- err
		one.Close()
	}()
	<-began
	for range 1000 {
		runtime.Gosched() // a write that does not wait would go first
	}
	if _, err := one.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	c.writes.mu.Unlock()
	got, err := io.ReadAll(other)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err != nil || !bytes.HasPrefix(got, []byte("first")) || len(got) != len("first")+Most+1 {
		t.Errorf("%d bytes came, which begin with %q: %v", len(got), got[:min(len(got), 5)], err)
	}
}
