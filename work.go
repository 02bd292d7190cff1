package weir

import (
	"math"
	"time"
)

// Work says who asks for what. The zero value is one anonymous, normal unit of
// work that waits as long as the gate's own settings allow. Building a Work
// allocates nothing, and a gate never keeps one longer than the call.
type Work struct {
	// Op names the operation: a route pattern, an RPC method, a topic. It shows
	// up in hooks and may choose a rule; the empty name is fine.
	Op string

	// Tenant divides the work of one User: a customer, a database, a queue. A
	// gate is fair between a user's tenants. The caller names the tenant, so the
	// name proves nothing.
	Tenant string
	// User is the principal that is responsible for the work: authenticated, or
	// else known by its network address. A gate is fair between users first, so that
	// nobody gains by inventing tenants. Work that names no user is of one user,
	// the nameless. Client is the program in use. Quotas are kept by user, by
	// client, or by both.
	User, Client string

	// Descriptor says what the work is about in free keys and values, for quotas whose
	// rules name them: "database=users,plan=free". Build it with quota.AppendPair, which
	// escapes and bounds them. Other gates ignore it.
	Descriptor string

	// Priority decides who goes first when not everybody can. The zero value
	// is Normal.
	Priority Priority

	// Write says that the work changes something. Gates with separate pools for reads
	// and writes go by it (keyed.ReadWrite). Other gates ignore it.
	Write bool

	// Exempt work is counted, but it never waits and takes no slot. It is for
	// health checks, an operator's access, and the release of what others wait
	// for. A gate with a cap on exempt work refuses what goes beyond it
	// (ReasonLimit). Only the program itself may set Exempt, by what the work
	// is. Never take it from a header or a field that a caller has sent.
	Exempt bool

	// Cost is how much the work takes, in the unit of the gate. That is slots
	// for a concurrency gate, tokens for a quota. 0 means 1; a negative cost is
	// refused with ReasonTooLarge. A Work that passes several gates with
	// different units gets its cost from each gate's own cost function.
	Cost int64

	// Deadline is when the answer stops being useful; the zero time means
	// never. A context only ends the wait: where its deadline is known, set it
	// here, and work that would be late is refused at once.
	Deadline time.Time

	// Attempt is the number of the attempt: 0 for the first, 1 for the first retry. Callers
	// say it, so it may only count against them: who says 0 each time gains nothing.
	Attempt int

	// MaxWait bounds the time spent waiting for a slot. 0 leaves it to the
	// gate, NoWait refuses instead of waiting.
	MaxWait time.Duration
}

// VirtualEpoch is the time of day at which the clock of a gate on virtual time
// starts, for Work.Deadline.
var VirtualEpoch = time.Unix(0, 0)

// NoWait as Work.MaxWait asks for an answer at once: admitted or refused. As the MaxWait of a
// gate's queue it means that nothing waits there. It is not the -1 that leaves a queue without
// a bound of its own.
const NoWait time.Duration = math.MinInt64

// CostOrOne returns the cost of w: Cost, or 1 where none was given.
func (w *Work) CostOrOne() int64 {
	if w.Cost == 0 {
		return 1
	}
	return w.Cost
}

// Priority is the importance of a piece of work. Higher values go first.
type Priority int8

// The priorities, least important first. The zero value is Normal.
const (
	Background Priority = iota - 1 // can wait for hours: reindexing, prefetching
	Normal                         // somebody is waiting for it
	High                           // many are waiting, or it unblocks other work
	Critical                       // the service is useless without it
)

// Classes is how many classes of priority gates tell apart: one for each constant.
const Classes = 4

// Class returns the class of p, from 0 for [Background] to [Classes]-1 for
// [Critical]. A priority outside of these counts as the nearest.
func (p Priority) Class() int { return int(min(max(p, Background), Critical) - Background) }

// PriorityOf is the inverse of [Priority.Class] for the classes that there are.
func PriorityOf(class int) Priority { return Background + Priority(class) }

// String returns the lower-case name, or "priority(n)" for a value that is not
// one of the constants.
func (p Priority) String() string {
	switch p {
	case Background:
		return "background"
	case Normal:
		return "normal"
	case High:
		return "high"
	case Critical:
		return "critical"
	}
	return "priority(" + itoa(int64(p)) + ")"
}

// MarshalText makes Priority a readable JSON map key.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the inverse of [Priority.MarshalText] for the named priorities.
func (p *Priority) UnmarshalText(text []byte) error {
	return parseName(p, []Priority{Background, Normal, High, Critical}, text)
}

// ParsePriority is the inverse of [Priority.String] for the named priorities.
// Anything else, the empty string included, reports false.
func ParsePriority(s string) (Priority, bool) {
	for p := Background; p <= Critical; p++ {
		if s == p.String() {
			return p, true
		}
	}
	return Normal, false
}
