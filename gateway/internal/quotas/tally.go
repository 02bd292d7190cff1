package quotas

import (
	"context"
	"errors"
	"maps"
	"time"
)

// Who changes rules, or would like to.
const (
	ViaSocket = "socket"
	ViaToken  = "token"
	Nobody    = "nobody" // who may not
)

// What comes of a change, or a reset.
const (
	Changed   = "changed"
	Validated = "validated" // was only to be looked at
	Refused   = "refused"   // is wrong, or nothing is kept anywhere
	Conflict  = "conflict"  // the rules are others than the writer has seen
	Failed    = "failed"    // the store failed, and nothing is changed
	Unsure    = "unsure"    // the store failed, and may have kept it
	Denied    = "denied"    // who asks may not write
	Filled    = "reset"     // a bucket is full again; no rule has changed
)

// Kinds of failures of a store.
const (
	FailedRead   = "read"
	FailedBroken = "broken" // what is there is no document
	FailedWrite  = "write"
)

// whos, outcomes and kinds are the words in use, each of which is counted from 0.
var (
	whos     = []string{ViaSocket, ViaToken}
	outcomes = []string{Changed, Validated, Refused, Conflict, Failed, Unsure, Filled}
	kinds    = []string{FailedRead, FailedBroken, FailedWrite}
)

// By is who changes rules in which way, and what comes of it.
type By struct{ Who, Outcome string }

// tally counts what becomes of changes, and the failures of the store.
type tally struct {
	changes  map[By]uint64
	failures map[string]uint64
}

func (t *tally) change(who, outcome string) {
	if t.changes == nil {
		t.changes = map[By]uint64{}
	}
	t.changes[By{who, outcome}]++
}

// failed counts an error of the store, if it is one.
func (t *tally) failed(err error) {
	if err == nil || errors.Is(err, ErrChanged) || errors.Is(err, context.Canceled) {
		return
	}
	if t.failures == nil {
		t.failures = map[string]uint64{}
	}
	var read *unreadable
	var write *unwritten
	switch {
	case errors.As(err, &write):
		t.failures[FailedWrite]++
	case errors.As(err, &read):
		t.failures[FailedRead]++
	default:
		t.failures[FailedBroken]++
	}
}

// unwritten is the error of a store that did not take its document.
type unwritten struct{ error }

func (u *unwritten) Unwrap() error { return u.error }

// Stats is what there is to count.
type Stats struct {
	// Kept is file or store, empty where nothing is kept; In says which.
	Kept, In string
	// InForce and Idle are the rules set at run time by gate, those that the gates go by
	// and those that do not fit the configuration. Each gate with a quota has both; under
	// the empty name are the rules of gates that there are no more.
	InForce, Idle map[string]int
	// Age is the time since the store was last read, negative if it never was.
	Age time.Duration
	// Failures are those of the store by kind, Changes those made or not.
	Failures map[string]uint64
	Changes  map[By]uint64
}

// Stats returns what there is to count.
func (b *Book) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{InForce: map[string]int{}, Idle: map[string]int{}, Failures: map[string]uint64{}, Changes: map[By]uint64{}, Age: -1}
	if b.store != nil {
		s.In, s.Kept = b.store.Name(), "store"
		if _, ok := b.store.(*File); ok {
			s.Kept = "file"
		}
		if !b.read.IsZero() {
			s.Age = time.Since(b.read)
		}
	}
	for _, kind := range kinds {
		s.Failures[kind] = 0
	}
	maps.Copy(s.Failures, b.tally.failures)
	for _, who := range whos {
		for _, outcome := range outcomes {
			s.Changes[By{who, outcome}] = 0
		}
	}
	s.Changes[By{Nobody, Denied}] = 0
	maps.Copy(s.Changes, b.tally.changes)
	if b.plan != nil {
		b.plan.count(&s)
	}
	return s
}

// count counts the rules of a plan.
func (p *Plan) count(s *Stats) {
	for _, gate := range quotaGates(&p.spec) {
		s.InForce[gate], s.Idle[gate] = 0, 0
	}
	for i := range p.doc.Rules {
		gate := p.doc.Rules[i].Gate
		if _, ok := s.InForce[gate]; !ok {
			gate = ""
		}
		if len(p.faults[i]) > 0 {
			s.Idle[gate]++
		} else {
			s.InForce[gate]++
		}
	}
}
