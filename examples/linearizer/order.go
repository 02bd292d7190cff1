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

// claim is what the store knows of a partition.
type claim struct {
	epoch int64 // of the processor that last took it over
	next  int64 // the offset of the first record that is not applied
	// leader is the leader epoch of the record before next, -1 if it is unknown. By it Kafka tells whether its log is
	// still the one that was read.
	leader int32
}

// errFenced is the end of a processor's right to a partition.
var errFenced = errors.New("fenced")

// An epoch is the consumer group's generation, behind a count of the groups of that name: one that was deleted
// begins anew with generation 1.
const generationBits = 32

// take is what the claim becomes when a processor of this generation takes the partition over. Of two processors
// the one with the lower was the owner before. gone is the epoch of a group that is known to be deleted, 0 for none:
// any generation may follow it.
func (c claim) take(generation int32, gone int64) (claim, error) {
	group := c.epoch >> generationBits
	if gone != 0 && gone == c.epoch {
		group++
	}
	epoch := group<<generationBits | int64(generation)
	if epoch < c.epoch {
		return c, fmt.Errorf("%w: the partition was taken over by %s, and this is %s", errFenced, ownerOf(c.epoch), ownerOf(epoch))
	}
	c.epoch = epoch
	return c, nil
}

// owned is an error unless the processor of this epoch is the owner.
func (c claim) owned(epoch int64) error {
	if epoch != c.epoch {
		return fmt.Errorf("%w: the partition belongs to %s, and this is %s", errFenced, ownerOf(c.epoch), ownerOf(epoch))
	}
	return nil
}

// ownerOf names an epoch for people.
func ownerOf(epoch int64) string {
	if group := epoch >> generationBits; group > 0 {
		return fmt.Sprintf("generation %d of group %d", int32(epoch), group+1)
	}
	return fmt.Sprintf("generation %d", epoch)
}

// advance is what the claim becomes when its owner has dealt with the record at offset. fresh says that its batch was
// new. Offsets may leave gaps: Kafka's own markers have some, too. A new batch at an offset that was applied before is
// behind records that Kafka has lost. What comes after it is new, too, so the claim goes back.
func (c claim) advance(offset int64, leader int32, fresh bool) claim {
	if offset < c.next && !fresh {
		return c
	}
	c.next, c.leader = offset+1, leader
	return c
}
