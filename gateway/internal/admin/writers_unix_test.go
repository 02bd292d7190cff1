//go:build unix

package admin

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe in the token's place keeps no request waiting.
func TestTokenIsNoFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(name); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}
