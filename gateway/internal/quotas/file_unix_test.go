//go:build unix

package quotas

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is no file is said so at once. To open a pipe would wait for a writer, and
// whoever changes rules for that.
func TestFileIsNoFile(t *testing.T) {
	f := newFile(t, inTemp(t))
	for name, err := range map[string]error{
		"pipe":   syscall.Mkfifo(f.Name()+".pipe", 0o600),
		"device": os.Symlink("/dev/zero", f.Name()+".device"),
	} {
		if err := errors.Join(err, os.Rename(f.Name()+"."+name, f.Name())); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "no plain file") {
			t.Errorf("a %s: %v", name, err)
		}
		if err := f.Write(t.Context(), tag(nil), []byte("x")); err == nil || !strings.Contains(err.Error(), "no plain file") {
			t.Errorf("over a %s: %v", name, err)
		}
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(t.Context(), tag(nil), []byte("x")); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(f.Name()))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v %v: want the file and its lock", entries, err)
	}
}

// Who has which quota is nobody else's business on the machine.
func TestFileIsPrivate(t *testing.T) {
	name := inTemp(t)
	newDesk(t, newFile(t, name), base()).must(set("api", "bob", "3/h"))
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the rules have mode %o, want 600", mode)
	}
}
