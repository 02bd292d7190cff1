package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// smallDisk is a file system of 8 MB, or none where this process may not mount one.
func smallDisk(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=8m")
	if errors.Is(err, syscall.EPERM) {
		t.Skip("only root may mount a small file system")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// fill takes all that is left of a file system, and returns how to give it back.
func fill(t *testing.T, folder string) (empty func()) {
	t.Helper()
	name := filepath.Join(folder, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// What a store that may not grow does, one on a full disk does, too.
func TestDiskFull(t *testing.T) {
	s := newSystem(t)
	folder := smallDisk(t)
	s.path = filepath.Join(folder, "store.db")
	s.standsStill("full", func(*store, []*store) (end func()) { return fill(t, folder) })
}
