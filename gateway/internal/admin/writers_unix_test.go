//go:build unix

package admin

import (
	"errors"
	"io/fs"
	"os"
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

// A closed socket removes its name, but not a socket that another process has put there.
func TestNameOfSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	open := func() *Socket {
		t.Helper()
		s, err := OpenSocket(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := open()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := open()
	first.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("what is another's was removed: %v", err)
	}
	second.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the name is left: %v", err)
	}
}
