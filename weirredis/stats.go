package weirredis

import (
	"sync/atomic"
	"time"
)

// Stats is what a store has done since it was made, and how it is. The numbers are
// read one after the other.
type Stats struct {
	// Takes and Gives count what the server was asked and did answer.
	Takes, Gives uint64
	// Failed counts what it was not asked or did not answer, by [Reason].
	Failed map[Reason]uint64
	// InFlight is how many scripts are under way, those included that nobody waits
	// for any more.
	InFlight int
	// Down says that part of the keys or all of them, if the server is no cluster,
	// are not being decided, Since when and Why.
	Down  bool
	Since time.Time
	Why   error
	// Trips counts how often the store has given a server up, Probes how often it
	// has looked whether it is back.
	Trips, Probes uint64
	// Leases, if Config.Lease is on, are the keys that have tokens here, Leased the
	// decisions made by them alone, Remembered the refusals made without asking.
	Leases             int
	Leased, Remembered uint64
}

// counters are the atomic ones behind Stats.
type counters struct {
	takes, gives       atomic.Uint64
	failed             [len(reasons)]atomic.Uint64
	trips, probes      atomic.Uint64
	leased, remembered atomic.Uint64
}

// Stats returns what the store has done and how it is.
func (s *Store) Stats() Stats {
	st := Stats{
		Takes: s.count.takes.Load(), Gives: s.count.gives.Load(),
		Failed: make(map[Reason]uint64, len(reasons)),
		Trips:  s.count.trips.Load(), Probes: s.count.probes.Load(),
		Leased: s.count.leased.Load(), Remembered: s.count.remembered.Load(),
		Leases: s.leases.held(),
	}
	for r := Down; int(r) < len(reasons); r++ {
		st.Failed[r] = s.count.failed[r].Load()
	}
	for i := range s.lanes {
		l := &s.lanes[i]
		st.InFlight += int(l.inFlight.Load())
		if !l.down.Load() {
			continue
		}
		l.mu.Lock()
		if !st.Down || l.since.Before(st.Since) {
			st.Down, st.Since, st.Why = true, l.since, l.cause
		}
		l.mu.Unlock()
	}
	return st
}
