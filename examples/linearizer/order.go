package main

import (
	"bytes"
	"errors"
	"fmt"
)

// The rules of the linearizer, without a store, a broker or a clock. The processor carries them out in
// transactions; order_test.go holds them against a naive model.

// status is what became of a batch.
type status string

const (
	applied  status = "applied"   // its events are in the log
	conflict status = "conflict"  // the database had another revision than the batch expected
	reused   status = "reused_id" // the id belongs to a batch with another content
	noBatch  status = "no_batch"  // the record could not be read as a batch
	lost     status = "lost"      // the record went by without a result: somebody has deleted it
)

// result is the answer to a batch, for good.
type result struct {
	Status status `json:"status"`
	// First and Last are the revisions of the batch's events, 0 if it has none.
	First int64 `json:"first,omitempty"`
	Last  int64 `json:"last,omitempty"`
	// Expected and Revision are of a conflict: what the batch expected, and what the database had.
	Expected int64 `json:"expected,omitempty"`
	Revision int64 `json:"revision,omitempty"`
	// Reason says more where something is wrong.
	Reason string `json:"reason,omitempty"`
}

// settled is the first result of an id, with the content that it was for.
type settled struct {
	result
	digest []byte
}

// decide says what becomes of a batch. head is the revision of its database, before what became of an earlier
// batch with this id, nil if there was none. fresh says that the result is a new one, to be kept.
func decide(b *batch, head int64, before *settled) (r result, fresh bool) {
	switch {
	case before != nil:
		return before.again(b.digest()), false
	case b.Expect != nil && *b.Expect != head:
		return result{Status: conflict, Expected: *b.Expect, Revision: head}, true
	}
	return result{Status: applied, First: head + 1, Last: head + int64(len(b.Events))}, true
}

// again is the answer to a batch whose id has a result: the same for the same content.
func (s *settled) again(digest []byte) result {
	if !bytes.Equal(s.digest, digest) {
		return result{Status: reused, Reason: "a batch with this id and another content came first; its result stands"}
	}
	return s.result
}

// claim is what the store knows of a partition: the epoch of the processor that last took it over, and the
// offset of the first record that is not applied.
type claim struct{ epoch, next int64 }

// errFenced is the end of a processor's right to a partition.
var errFenced = errors.New("fenced")

// take is what the claim becomes when a processor of this epoch takes the partition over. The epoch is the
// consumer group's generation, so of two processors the one with the lower was the owner before.
func (c claim) take(epoch int64) (claim, error) {
	if epoch < c.epoch {
		return c, fmt.Errorf("%w: the partition was taken over with epoch %d, and this is %d", errFenced, c.epoch, epoch)
	}
	return claim{epoch, c.next}, nil
}

// advance is what the claim becomes when its owner has applied the record at offset. done says that it was
// applied before. Offsets may leave gaps: Kafka's own markers have some, too.
func (c claim) advance(epoch, offset int64) (_ claim, done bool, err error) {
	if epoch != c.epoch {
		return c, false, fmt.Errorf("%w: the partition belongs to epoch %d, and this is %d", errFenced, c.epoch, epoch)
	}
	if offset < c.next {
		return c, true, nil
	}
	return claim{epoch, offset + 1}, false, nil
}
