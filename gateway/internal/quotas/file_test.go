package quotas

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Wherever a crash ends a write, what is read afterwards is the old or the new, and
// the next write succeeds.
func TestFileSurvivesACrash(t *testing.T) {
	old, next, third := strings.Repeat("old ", 500), strings.Repeat("new ", 700), "third"
	for after := 0; ; after++ {
		f := newFile(t, inTemp(t))
		if err := f.Write(t.Context(), tag(nil), []byte(old)); err != nil {
			t.Fatal(err)
		}
		var steps []string
		f.crash = func(step string) error {
			if steps = append(steps, step); len(steps) > after {
				return errCrash
			}
			return nil
		}
		err := f.Write(t.Context(), tag([]byte(old)), []byte(next))
		f.Close() // as the kernel does when the process ends
		again := newFile(t, f.Name())
		got, readErr := again.Read(t.Context())
		if readErr != nil || string(got) != old && string(got) != next {
			t.Fatalf("crash before %v: %v, %d bytes that are neither", steps, readErr, len(got))
		}
		if err == nil && string(got) != next {
			t.Fatalf("a write that succeeded is lost")
		}
		if len(steps) <= 3 && string(got) != old {
			t.Errorf("crash at %v: the new one is there already", steps)
		}
		if err := again.Write(t.Context(), tag(got), []byte(third)); err != nil {
			t.Fatalf("after a crash at %v: %v", steps, err)
		}
		if err == nil {
			if after != 5 {
				t.Errorf("a write has %d steps that a crash was tried at, want 5", after)
			}
			return
		}
	}
}

// A full disk leaves the old file, and nothing beside it.
func TestFileFullDisk(t *testing.T) {
	f := newFile(t, inTemp(t))
	if err := f.Write(t.Context(), tag(nil), []byte("old")); err != nil {
		t.Fatal(err)
	}
	f.crash = func(step string) error {
		if step == "sync" {
			return syscall.ENOSPC
		}
		return nil
	}
	if err := f.Write(t.Context(), tag([]byte("old")), []byte("new")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if got, err := f.Read(t.Context()); err != nil || string(got) != "old" {
		t.Errorf("%q %v", got, err)
	}
	entries, err := os.ReadDir(filepath.Dir(f.Name()))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v %v: want the file and its lock", entries, err)
	}
}

func TestFileOfOne(t *testing.T) {
	f := newFile(t, inTemp(t))
	if _, err := OpenFile(f.Name()); err == nil || !strings.Contains(err.Error(), "another gateway") {
		t.Errorf("a second one: %v", err)
	}
	if err := f.Write(t.Context(), "what?", []byte("x")); !errors.Is(err, ErrChanged) {
		t.Errorf("over what has not been seen: %v", err)
	}
	if got, err := f.Read(t.Context()); err != nil || got != nil {
		t.Errorf("%q %v", got, err)
	}
	if _, err := OpenFile(filepath.Join(t.TempDir(), "no", "q.json")); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Mkdir(f.Name(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "no plain file") {
		t.Errorf("a directory: %v", err)
	}
	if info, err := os.Stat(f.Name() + ".lock"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}
