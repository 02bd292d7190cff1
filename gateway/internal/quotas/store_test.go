package quotas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if info, err := os.Stat(f.Name() + ".lock"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// shelf is what several gateways share: a document that is replaced only by who has seen
// it.
type shelf struct {
	mu  sync.Mutex
	doc []byte
}

func (s *shelf) Read(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.doc), nil
}

func (s *shelf) Write(_ context.Context, was string, next []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tag(s.doc) != was {
		return ErrChanged
	}
	s.doc = bytes.Clone(next)
	return nil
}

func (s *shelf) Most() int    { return maxBytes }
func (s *shelf) ByHand() bool { return false }
func (s *shelf) Name() string { return "shelf" }
func (s *shelf) Close() error { return nil }

// What is set at several gateways at once is all kept, and in force at all of them once
// they have looked.
func TestGatewaysAtOnce(t *testing.T) {
	store := new(shelf)
	const gateways, each = 3, 8
	var desks []*desk
	for range gateways {
		desks = append(desks, newDesk(t, store, base()))
	}
	var all sync.WaitGroup
	for g, d := range desks {
		all.Go(func() {
			for i := range each {
				err := ErrChanged
				for errors.Is(err, ErrChanged) { // as often as the others come first
					_, err = d.Change(context.Background(), set("api", fmt.Sprintf("g%d-%d", g, i), "3/h"))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for g, d := range desks {
		d.Follow(t.Context())
		if n := len(d.List("api").Rules); n != 2+gateways*each {
			t.Errorf("gateway %d knows %d rules, want %d", g, n, 2+gateways*each)
		}
		if got := d.passes("api", fmt.Sprintf("g%d-%d", (g+1)%gateways, each-1), 9); got != 3 {
			t.Errorf("gateway %d lets through %d, want 3", g, got)
		}
		if l := d.List(""); l.ETag != desks[0].List("").ETag {
			t.Errorf("gateway %d has ETag %s", g, l.ETag)
		}
	}
	if rev := desks[0].saved.doc.Revision; rev != gateways*each {
		t.Errorf("revision %d after %d changes", rev, gateways*each)
	}
}

// narrow is a store for small documents.
type narrow struct{ shelf }

func (s *narrow) Most() int { return 3000 }

// What a store cannot take is refused before it is sent there, with how much it can.
func TestStoreTooSmall(t *testing.T) {
	d := newDesk(t, new(narrow), base())
	d.must(set("api", "carol", "3/h"))
	before := d.List("").ETag
	_, err := d.Change(t.Context(), Change{Ops: []Op{{Gate: "api", Replace: many(100, "1/h")}}, Via: ViaToken})
	var faults Faults
	if !errors.As(err, &faults) || !strings.Contains(err.Error(), "shelf can keep 3000; delete some") {
		t.Errorf("%v", err)
	}
	if l := d.List(""); l.ETag != before || d.Stats().Changes[By{ViaToken, Refused}] != 1 {
		t.Errorf("%+v", l)
	}
	d.must(Change{Ops: []Op{{Gate: "api", Replace: many(10, "1/h")}}})
}
