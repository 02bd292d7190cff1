package quota

import (
	"context"
	"errors"
)

// Store keeps buckets. [Memory] is one; package weirtest has the tests that every
// Store must pass.
//
// A Store is safe for concurrent use. It keeps tokens and the time at which they
// were last counted, never a time of arrival and never the limit, so a limit that
// changes loses nothing. A bucket that is full again may be forgotten, one that is
// not may not be.
type Store interface {
	// Take decides about t, in one step for all of its windows. The error is for a
	// take that makes no sense, or for a store that cannot tell now; nothing is
	// known then of what it charged. The take is not kept after the return.
	Take(ctx context.Context, t *Take) (Result, error)
	// Give puts tokens back into each window of key, up to its burst, or takes more
	// if tokens are negative, into debt if need be: to settle what work has really
	// cost, or to undo a take.
	Give(ctx context.Context, key string, limits []Limit, tokens float64) error
}

// ErrBusy is what the error of a Store is, for errors.Is, where nothing need be wrong
// with its server: as many questions are under way as may be, or the answer was late
// and the server has not been silent for long. A gate that is [Open] where the store fails goes by
// its own buckets then, or a flood would be the way past the quota.
var ErrBusy = errors.New("quota: too many decisions are under way")
