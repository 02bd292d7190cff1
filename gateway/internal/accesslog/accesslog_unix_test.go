//go:build unix

package accesslog

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// A pipe in the file's place keeps nobody waiting until it has a reader.
func TestOpenIsNoFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "access.log")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(config.AccessLog{To: name}, nil, new(Counts)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}
