package quota

import (
	"sync/atomic"

	"github.com/weir-go/weir"
)

type counter = atomic.Int64

// maxReasons is room for every weir.Reason.
const maxReasons = 32

// book is the gate's counters, but for those of its pools.
type book struct {
	rejected    [maxReasons]atomic.Uint64
	uncounted   atomic.Uint64 // exempt, or no rule
	charged     atomic.Uint64 // without a permit
	storeErrors atomic.Uint64
	unsettled   atomic.Uint64
}

func (b *book) free(count bool) {
	if count {
		b.uncounted.Add(1)
	}
}

// Snapshot implements [weir.Snapshotter]. InFlight is the permits that are out,
// Limit is 0: a quota has none. ExemptAdmitted is the work that is exempt, or that
// no rule matches, or an exempt one.
func (q *Quota) Snapshot() weir.Snapshot {
	s := weir.Snapshot{Name: q.name, Kind: "quota", Mode: "enforce", Waiting: q.room.waiting.Load(), Admitted: q.book.charged.Load(),
		ExemptAdmitted: q.book.uncounted.Load(),
		Rejected:       map[weir.Reason]uint64{}, Outcomes: map[weir.Outcome]uint64{}}
	for i := range q.pools {
		p := &q.pools[i]
		p.mu.Lock()
		s.InFlight += p.inFlight
		s.Admitted += p.issued
		for o, n := range p.outcomes {
			if n > 0 {
				s.Outcomes[weir.Outcome(o)] += n
			}
		}
		p.mu.Unlock()
	}
	for r := range q.book.rejected {
		if n := q.book.rejected[r].Load(); n > 0 {
			s.Rejected[weir.Reason(r)] = n
		}
	}
	return s
}

// Faults is how a gate has fared with its store.
type Faults struct {
	// StoreErrors counts takes that the store failed at, which were decided as
	// Config.OnStoreError says.
	StoreErrors uint64
	// Unsettled counts charges that could not be given back, or settled, because the
	// store failed.
	Unsettled uint64
}

// Faults returns how the gate has fared with its store.
func (q *Quota) Faults() Faults {
	return Faults{StoreErrors: q.book.storeErrors.Load(), Unsettled: q.book.unsettled.Load()}
}

// Store returns where the buckets are: Config.Store, or the [Memory] in its place.
func (q *Quota) Store() Store { return q.store }
