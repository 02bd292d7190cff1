package weirredis

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// MaxDocument bounds a [Document], in bytes.
const MaxDocument = 1 << 20

// Document is a text on the server that several processes read and write, such as the
// rules of their quotas. Nobody can overwrite what they have not seen. It needs no rights
// beside those of the buckets, its key has the store's Prefix, and it never expires. Unlike a
// bucket it cannot be made again from nothing: let the server keep it on disk.
//
// Reading and writing take at most [Config.DialTimeout]. One request of a store's documents is
// under way at a time; others wait for it, for the same time. The error is an [*Error]; after
// a write, [Error.Charged] says that it may have been done.
type Document struct {
	store *Store
	key   string
}

// Document returns the document with a name. No bucket has the same key.
func (s *Store) Document(name string) *Document {
	return &Document{store: s, key: s.cfg.Prefix + "document:" + keyOf("", name)}
}

// A document is stored behind its digest. If a caller has the document already, the
// server sends the digest alone.
const (
	digestSize = 2 * sha256.Size

	readScript = `local v = redis.call('GET', KEYS[1])
if not v then return '' end
if string.sub(v, 1, 64) == ARGV[1] then return ARGV[1] end
return v`

	writeScript = `local v = redis.call('GET', KEYS[1])
if (v and string.sub(v, 1, 64) or '') ~= ARGV[1] then return '0' end
redis.call('SET', KEYS[1], ARGV[2])
return '1'`
)

// digest returns the digest of a document, or nothing if there is none.
func digest(data []byte) string {
	if data == nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Read returns the document, nil if there is none. known is the document as the caller knows
// it, or nil. If it has not changed Read returns known, and the server does not send it again.
func (d *Document) Read(ctx context.Context, known []byte) ([]byte, error) {
	sum := digest(known)
	text, err := d.run(ctx, readScript, sum)
	switch {
	case err != nil:
		return nil, err
	case text == "":
		return nil, nil
	case text == sum:
		return known, nil
	case len(text) < digestSize || digest([]byte(text[digestSize:])) != text[:digestSize]:
		return nil, fail(Invalid, fmt.Errorf("the value of %s is not a document of this library", d.key))
	}
	return []byte(text[digestSize:]), nil
}

// Write replaces was, nil for none, by next. If there is another document by now, it writes
// nothing and returns false. It is never sent twice.
func (d *Document) Write(ctx context.Context, was, next []byte) (written bool, err error) {
	if next == nil || len(next) > MaxDocument {
		return false, fmt.Errorf("weirredis: a document of %d bytes; must be from 1 to %d", len(next), MaxDocument)
	}
	text, err := d.run(ctx, writeScript, digest(was), digest(next)+string(next))
	return text == "1", err
}

// run runs a script on the document. The caller waits until ctx ends, but no longer than a
// connection may stay silent. The script goes on until the client returns, and nothing
// else is sent meanwhile. So if the server stands still, one script waits for it.
func (d *Document) run(ctx context.Context, script string, args ...string) (string, error) {
	s := d.store
	if err := ctx.Err(); err != nil {
		return "", fail(Canceled, err)
	}
	deadline := time.NewTimer(s.cfg.maxSilence())
	defer deadline.Stop()
	select {
	case s.document <- struct{}{}:
	case <-deadline.C:
		return "", fail(Full, errDeadline)
	case <-ctx.Done():
		return "", fail(Full, ctx.Err())
	case <-s.ctx.Done():
		return "", fail(Closed, nil)
	}
	var text string
	var fault *Error
	done := make(chan struct{})
	if !s.spawn(func() {
		text, fault = d.send(script, args)
		<-s.document
		close(done)
	}) {
		<-s.document
		return "", fail(Closed, nil)
	}
	select {
	case <-done:
		if fault != nil { // a nil *Error is no nil error
			return "", fault
		}
		return text, nil
	case <-deadline.C:
		return "", fail(Timeout, errDeadline)
	case <-ctx.Done():
		return "", fail(Timeout, ctx.Err())
	}
}

func (d *Document) send(script string, args []string) (string, *Error) {
	c := d.store.client.Load()
	if c == nil {
		return "", fail(Down, d.store.lanes[0].lastCause())
	}
	text, err := c.Do(context.Background(), c.B().Eval().Script(script).Numkeys(1).Key(d.key).Arg(args...).Build()).ToString()
	fault := errorOf(err)
	if fault != nil && replica(fault) {
		d.store.cfg.guards.breakAll() // no lane may be down, so that nobody probes
	}
	return text, fault
}
