package limit

import "github.com/weir-go/weir"

// Snapshot implements [weir.Snapshotter]. It counts the slots of a limiter in
// the fast gear one by one, so it is not for every request. It does not wait for
// a controller that takes its time.
func (l *Limiter) Snapshot() weir.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := weir.Snapshot{
		Name: l.name, Kind: "limit", Mode: "enforce",
		Limit: l.limit, InFlight: l.inFlight(), Waiting: int64(l.room.Len()),
		Controller: l.controlledBy, LimitReason: l.reason, Signal: l.signal, Faults: l.faults,
		Latency: l.median, Wait: l.wait(),
		Leaked: l.count.leaked.Load(),
	}
	if l.bank > 0 && l.slow || !l.slow && s.InFlight < s.Limit {
		s.Wait = 0
	}
	if s.Waiting > 0 {
		s.WaitingByClass = make(map[weir.Priority]int64)
		for c, n := range l.room.ByClass() {
			if n > 0 {
				s.WaitingByClass[weir.OfClass(c)] = int64(n)
			}
		}
	}
	s.Admitted = l.admissions()
	s.Exempt, s.ExemptAdmitted = l.exempt.read()
	for _, r := range weir.Reasons() {
		n := l.count.rejected[r].Load()
		if r == weir.ReasonLimit {
			n += l.count.exempt.Load()
		}
		if n > 0 {
			if s.Rejected == nil {
				s.Rejected = make(map[weir.Reason]uint64)
			}
			s.Rejected[r] = n
		}
	}
	for _, o := range weir.Outcomes() {
		if n := l.outcomes[o]; n > 0 {
			if s.Outcomes == nil {
				s.Outcomes = make(map[weir.Outcome]uint64)
			}
			s.Outcomes[o] = n
		}
	}
	return s
}

// admissions counts the permits granted so far: those that have been given
// back, by the generations of the slots, and those that are out; but not those
// whose work never started.
func (l *Limiter) admissions() uint64 {
	var n uint64
	for _, b := range *l.table.Load() {
		n += b.Uses()
		if b.Held() {
			n++
		}
	}
	cancelled := l.count.cancelled.Load()
	if cancelled > n { // counted between the two reads
		return 0
	}
	return n - cancelled
}

// unserved counts the refusals for want of a slot.
func (c *counters) unserved() uint64 {
	return c.rejected[weir.ReasonLimit].Load() + c.rejected[weir.ReasonQueueFull].Load() +
		c.rejected[weir.ReasonQueueTimeout].Load()
}
