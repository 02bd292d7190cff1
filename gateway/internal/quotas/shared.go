package quotas

import (
	"bytes"
	"context"
	"sync"

	"github.com/weir-go/weir/weirredis"
)

// Shared is a [Store] of several gateways: a document on a Redis or Valkey server.
type Shared struct {
	name  string
	store *weirredis.Store
	doc   *weirredis.Document

	mu   sync.Mutex // guards what follows
	seen []byte     // what is there, as far as is known; nil for nothing
}

// NewShared returns the store on a server, which it closes in the end. name is what
// messages call it.
func NewShared(name string, server *weirredis.Store) *Shared {
	return &Shared{name: name, store: server, doc: server.Document("quotas")}
}

// Name says which store it is.
func (s *Shared) Name() string { return s.name }

// Most is what the server takes at a time.
func (s *Shared) Most() int { return weirredis.MaxDocument }

// Close ends the connection.
func (s *Shared) Close() error { return s.store.Close() }

// Read returns the document. What has not changed is not sent again.
func (s *Shared) Read(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	known := s.seen
	s.mu.Unlock()
	data, err := s.doc.Read(ctx, known)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.seen = data
	s.mu.Unlock()
	return bytes.Clone(data), nil
}

// Write replaces the document that was read last.
func (s *Shared) Write(ctx context.Context, was string, next []byte) error {
	s.mu.Lock()
	seen := s.seen
	s.mu.Unlock()
	if tag(seen) != was {
		return ErrChanged
	}
	written, err := s.doc.Write(ctx, seen, next)
	switch {
	case err != nil:
		return err
	case !written:
		return ErrChanged
	}
	s.mu.Lock()
	s.seen = bytes.Clone(next)
	s.mu.Unlock()
	return nil
}
