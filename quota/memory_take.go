package quota

import "math"

// sameTick is for how long, in microseconds, a bucket may be charged without
// moving its time on. It bounds for how long a limit that has changed counts as if
// it had changed before.
const sameTick = 1000

// quick does a take of one window for which there are enough tokens even without
// those that came back since the bucket's time, which is less than a millisecond
// ago: then one compare-and-swap is all. If the time is of before somebody else's
// write (tokens that are the same again), the sum is still right, and the bucket
// holds no less than what is looked at here.
func (m *Memory) quick(hash uint64, t *Take, now int64) (r Result, ok bool) {
	s := m.shard(hash).table.Load().find(windowID(hash, 0), m.shift)
	if s == nil || t.Mode == DryRun || t.Mode > Reserve {
		return r, false
	}
	l, cost := &t.Limits[0], float64(t.Cost)
	need := cost
	if t.Debt && t.Mode != Permissive {
		need = 0
	}
	for range 4 {
		word := s.tokens.Load()
		passed := now - int64(s.time.Load()&timeMask)
		if uint64(passed) >= sameTick || !(l.Rate > 0) || cost < 0 {
			return r, false
		}
		// What came back beyond the burst is taken off the tokens, so that the time
		// can stay.
		came := l.Rate * float64(passed) * 1e-6
		tokens := min(math.Float64frombits(word), l.Burst-came)
		left := tokens - cost
		if !(tokens >= need && left >= -MaxTokens) {
			return r, false // not a number either
		}
		if s.tokens.CompareAndSwap(word, math.Float64bits(left)) {
			left += came
			return Result{OK: true, Remaining: left, Reset: l.fill(l.Burst-left, moment{})}, true
		}
	}
	return r, false
}

// one does a take of one window. It writes nothing where nothing changes, so that
// those who are refused do not slow down others; but on a clock that may go back,
// the time until then must count.
func (m *Memory) one(hash uint64, t *Take, at moment) Result {
	sh, id, l := m.shard(hash), windowID(hash, 0), &t.Limits[0]
	for {
		s := sh.table.Load().find(id, m.shift)
		if s == nil && t.Mode == DryRun {
			b := [1]bucket{full(l, at)}
			return t.decide(b[:], at)
		}
		if s == nil {
			s = m.place(sh, id, l, at)
		}
		var buckets [1]bucket
		var class uint16
		var word uint64
		var ok bool
		b := &buckets[0]
		if *b, class, word, ok = s.read(); !ok {
			sh.wait()
			continue
		}
		when := m.steady(at, b, l)
		back := when.by(l) < b.last
		last := pack(*b, class)
		r := t.decide(buckets[:], when)
		if !m.exact && (t.Mode == DryRun || !r.OK && !back) {
			return r
		}
		if !s.tokens.CompareAndSwap(word, busy) {
			continue
		}
		if s.time.Load() != last { // the tokens were others and are the same again
			s.tokens.Store(word)
			continue
		}
		s.unlock(*b, m.classes.of(l, class))
		return r
	}
}

// several does a take of several windows, one at a time in each shard.
func (m *Memory) several(hash uint64, t *Take, at moment) Result {
	sh := m.shard(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var buf [MaxWindows]*slot
	slots := buf[:len(t.Limits)]
	if m.gather(sh, hash, t.Limits, at, slots) {
		defer m.strays.mu.Unlock()
	}
	var kept [MaxWindows]bucket
	var classes [MaxWindows]uint16
	for i, s := range slots {
		kept[i], classes[i], _ = s.lock() // with the locks held nothing moves
		at = m.steady(at, &kept[i], &t.Limits[i])
	}
	before := kept
	r := t.decide(kept[:len(slots)], at)
	for i, s := range slots {
		if t.Mode == DryRun && !m.exact {
			s.unlock(before[i], classes[i])
			continue
		}
		s.unlock(kept[i], m.classes.of(&t.Limits[i], classes[i]))
	}
	return r
}

// gather finds or makes the slots of a key whose shard is locked. It reports
// whether one is a stray; then strays are locked too, and stay so: nobody waits
// for a bucket while holding another that somebody may wait for.
func (m *Memory) gather(sh *shard, hash uint64, limits []Limit, at moment, slots []*slot) (strays bool) {
	for begun := (*table)(nil); begun != sh.table.Load(); { // making one may move the others
		begun = sh.table.Load()
		for i := range limits {
			slots[i] = m.placeLocked(sh, windowID(hash, i), &limits[i], at)
		}
	}
	for i := range limits {
		if slots[i] != nil {
			continue
		}
		if !strays {
			strays = true
			m.strays.mu.Lock()
		}
		slots[i] = m.stray(i, &limits[i], at)
	}
	return strays
}
