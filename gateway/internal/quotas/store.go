package quotas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weir-go/weir/weirredis"
)

// Store keeps one document. One goroutine at a time uses it, and nobody writes to the bytes.
type Store interface {
	// Read returns the document, or nothing if there is none yet.
	Read(ctx context.Context) ([]byte, error)
	// Write replaces the document with the tag was by next, as a whole or not at all. The
	// error is [ErrChanged] if there is another document. After [ErrUnchanged] nothing was
	// written; after any other error it may have been.
	Write(ctx context.Context, was string, next []byte) error
	// Most is the largest document, in bytes.
	Most() int
	// ByHand reports whether people replace the document, perhaps with an older one.
	ByHand() bool
	// Name names the store in messages.
	Name() string
	Close() error
}

// ErrUnchanged is the error of a change that failed and has written nothing.
var ErrUnchanged = errors.New("nothing is changed")

// ErrChanged is the error of a write over a document that the writer has not seen.
var ErrChanged = errors.New("the rules have been changed by somebody else")

// File is the [Store] of one gateway: a file that is replaced as a whole.
type File struct {
	name string
	lock *os.File
	// crash, if set, is called before each step of a write. If it returns an error the write
	// ends as in a crash: nothing is cleaned up.
	crash func(step string) error
}

// OpenFile returns the store in a file. The file need not exist, but its directory must. No
// other process can open the store at the same time: each would overwrite what the other
// has written.
func OpenFile(name string) (*File, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(name + ".lock")
	switch {
	case errors.Is(err, errLocked):
		return nil, fmt.Errorf("%s is in use by another gateway; give each a file of its own, or keep the rules in a store that both share", name)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: its directory does not exist; make it, so that only the gateway's user can write there", name)
	case err != nil:
		return nil, fmt.Errorf("rules cannot be kept in %s: %w", name, err)
	}
	return &File{name: name, lock: lock}, nil
}

// Name returns the name of the file.
func (f *File) Name() string { return f.name }

// Most implements [Store].
func (f *File) Most() int { return maxBytes }

// ByHand implements [Store]: a backup of a file is put back by hand.
func (f *File) ByHand() bool { return true }

// Close lets others open the file.
func (f *File) Close() error { return f.lock.Close() }

// Read returns what is in the file.
func (f *File) Read(context.Context) ([]byte, error) {
	info, err := os.Stat(f.name) // first, because opening a pipe waits for a writer
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", f.name)
	}
	file, err := os.Open(f.name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxBytes+1))
}

// Write replaces the file. The new file is complete on the disk before it gets the name, and
// the name is on the disk before Write returns. Whatever happens in between, there is the old
// file or the new one; a full disk leaves the old one.
func (f *File) Write(ctx context.Context, was string, next []byte) error {
	now, err := f.Read(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnchanged, err)
	}
	if tag(now) != was {
		return ErrChanged
	}
	tmp := f.name + ".new" // always the same, so that crashes leave one at most
	err = f.writeSynced(tmp, next)
	if err == nil {
		err = f.step("rename")
	}
	if err == nil {
		err = os.Rename(tmp, f.name)
	}
	if err != nil {
		if !errors.Is(err, errCrash) {
			_ = os.Remove(tmp) // it may not be there
		}
		return fmt.Errorf("%w: %w", ErrUnchanged, err)
	}
	if err := f.step("sync directory"); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(f.name))
}

// errCrash is the error of a write that a test ends.
var errCrash = errors.New("crash")

func (f *File) step(name string) error {
	if f.crash == nil {
		return nil
	}
	return f.crash(name)
}

// writeSynced writes a file, and returns when it is on the disk.
func (f *File) writeSynced(name string, data []byte) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	half := len(data) / 2
	for _, part := range [][]byte{data[:half], data[half:]} {
		if err == nil {
			err = f.step("write")
		}
		if err == nil {
			_, err = file.Write(part)
		}
	}
	if err == nil {
		err = f.step("sync")
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// syncDirectory writes the names in a directory to the disk.
func syncDirectory(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Memory is the [Store] of a gateway that runs without a file. It ends with the gateway.
type Memory struct{ document []byte }

// Name implements [Store].
func (m *Memory) Name() string { return "the memory of this gateway" }

// Most implements [Store].
func (m *Memory) Most() int { return maxBytes }

// ByHand implements [Store].
func (m *Memory) ByHand() bool { return false }

// Close implements [Store].
func (m *Memory) Close() error { return nil }

// Read implements [Store].
func (m *Memory) Read(context.Context) ([]byte, error) { return m.document, nil }

// Write implements [Store].
func (m *Memory) Write(_ context.Context, was string, next []byte) error {
	if tag(m.document) != was {
		return ErrChanged
	}
	m.document = next
	return nil
}

// Shared is the [Store] of several gateways: a document on a Redis or Valkey server.
type Shared struct {
	name  string
	store *weirredis.Store
	doc   *weirredis.Document
	seen  []byte // the document as it was last read or written; nil if there is none
}

// NewShared returns the store on a server. It closes the server's connection. name names the
// store in messages.
func NewShared(name string, server *weirredis.Store) *Shared {
	return &Shared{name: name, store: server, doc: server.Document("quotas")}
}

// Name says which store it is.
func (s *Shared) Name() string { return s.name }

// Most is what the server takes at a time.
func (s *Shared) Most() int { return weirredis.MaxDocument }

// ByHand implements [Store]: people change it through a gateway, not by hand.
func (s *Shared) ByHand() bool { return false }

// Close ends the connection.
func (s *Shared) Close() error { return s.store.Close() }

// Read returns the document. The server sends it only if it has changed.
func (s *Shared) Read(ctx context.Context) ([]byte, error) {
	data, err := s.doc.Read(ctx, s.seen)
	if err == nil {
		s.seen = data
	}
	return data, err
}

// Write replaces the document that was read last.
func (s *Shared) Write(ctx context.Context, was string, next []byte) error {
	if tag(s.seen) != was {
		return ErrChanged
	}
	written, err := s.doc.Write(ctx, s.seen, next)
	var fault *weirredis.Error
	switch {
	case errors.As(err, &fault) && !fault.Charged():
		return fmt.Errorf("%w: %w", ErrUnchanged, err)
	case err != nil:
		return err
	case !written:
		return ErrChanged
	}
	s.seen = next
	return nil
}
