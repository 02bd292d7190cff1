package quotas

import (
	"context"
	"errors"
)

// Store keeps one document.
type Store interface {
	// Read returns the document, and nothing if there is none yet.
	Read(ctx context.Context) ([]byte, error)
	// Write puts next in the place of a document with the tag was, as a whole or not
	// at all, and [ErrChanged] if another stands there. After an [ErrUnchanged] nothing
	// was written; after any other error that is not known.
	Write(ctx context.Context, was string, next []byte) error
	// Most is the most bytes that a document may have.
	Most() int
	// Name says where the document is, in messages.
	Name() string
	Close() error
}

// ErrUnchanged is the error of a change that the store kept from being made.
var ErrUnchanged = errors.New("nothing is changed")

// ErrChanged is the error of a writer who has not seen what it would overwrite.
var ErrChanged = errors.New("the rules have been changed by somebody else")
