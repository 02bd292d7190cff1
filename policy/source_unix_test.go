//go:build unix

package policy

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe that nobody writes to would hold a thread for ever, at every reload
// another one.
func TestFileThatIsNone(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no pipes here: ", err)
	}
	for _, path := range []string{pipe, t.TempDir(), "/dev/zero"} {
		if v, err := (SignalSpec{Path: path}).fromFile(t.Context()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v, %v", path, v, err)
		}
	}
}
