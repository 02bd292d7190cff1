package quota

import (
	"math"
	"time"
)

// sameTick is for how long a bucket may be charged without moving its time on. It
// bounds for how long a limit that has changed counts as if it had changed before.
const (
	sameTick    = time.Millisecond
	tickSeconds = .001
)

// take does a take by the hash of its key. Its first part is for one window in
// which there are enough tokens even without those that came back since the
// bucket's time, and room for these: then one compare-and-swap is all, if that time
// is less than a millisecond ago. Should it be of before somebody else's write,
// whose tokens are the same as before that, the sum is still right, and the bucket
// holds no less than what is looked at here.
//
// The order of it is for speed: the clock is read last, because the processor
// finishes everything before it reads the clock.
func (m *Memory) take(hash uint64, t *Take) (Result, error) {
	if len(t.Limits) == 1 && uint64(t.Cost) <= MaxTokens && t.Mode == Strict && !m.exact {
		l, cost, need := &t.Limits[0], float64(t.Cost), float64(t.Cost)
		if t.Debt {
			need = 0
		}
		if s := m.shard(hash).table.Load().find(windowID(hash, 0)); s != nil && l.Rate > 0 {
			word := s.tokens.Load()
			at := s.time.Load()
			last := time.Duration(at&timeMask) * time.Microsecond
			tokens := math.Float64frombits(word) // not a number where somebody is writing
			left := tokens - cost
			if tokens < need || !(tokens <= l.Burst-l.Rate*tickSeconds) {
				return m.touch(hash, s, word, at, t, time.Since(m.epoch))
			}
			now := time.Since(m.epoch)
			if uint64(now-last) < uint64(sameTick) && s.tokens.CompareAndSwap(word, math.Float64bits(left)) {
				return Result{OK: true, Remaining: left}, nil
			}
			return m.touch(hash, s, word, at, t, now)
		}
	}
	return m.takeSlowly(hash, t)
}

// touch is take for one window of a rate that its class knows, found as word and
// at: the same as Take.decide, in fewer steps.
func (m *Memory) touch(hash uint64, s *slot, word, at uint64, t *Take, now time.Duration) (Result, error) {
	l, cost := &t.Limits[0], float64(t.Cost)
	b, class := unpack(word, at)
	if word == busy || word == moved || (*m.classes.list.Load())[class].limit != *l || !t.Debt && cost > l.Burst {
		return m.takeSlowly(hash, t)
	}
	b.last = near(b.last, now)
	now = max(now.Truncate(time.Microsecond), b.last) // see steady
	b.tokens = min(b.tokens+l.Rate*(now-b.last).Seconds(), l.Burst)
	b.last = now
	if lack := b.lacks(l, cost, t.Debt); lack > 0 {
		if wait := l.wait(lack, moment{}); s.tokens.Load() == word {
			return Result{Wait: max(wait, time.Millisecond), Remaining: b.tokens}, nil
		}
		return m.takeSlowly(hash, t)
	}
	b.take(l, cost)
	if !s.write(word, at, b, class) {
		return m.takeSlowly(hash, t)
	}
	return Result{OK: true, Remaining: b.tokens}, nil
}

// takeSlowly is take for all cases.
func (m *Memory) takeSlowly(hash uint64, t *Take) (Result, error) {
	if err := t.Validate(); err != nil {
		return Result{}, err
	}
	at := m.moment(m.now(), t.Limits)
	if len(t.Limits) == 1 {
		return m.one(hash, t, at), nil
	}
	return m.several(hash, t, at), nil
}

// one does a take of one window. It writes nothing where nothing changes, so that
// those who are refused do not slow down others; but on a clock that may go back,
// the time until then must count.
func (m *Memory) one(hash uint64, t *Take, at moment) Result {
	sh, id, l := m.shard(hash), windowID(hash, 0), &t.Limits[0]
	for {
		s := sh.table.Load().find(id)
		if s == nil && t.Mode == DryRun {
			b := [1]bucket{m.fresh(0, l, at)}
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
		if s.write(word, last, *b, m.classes.of(l, class)) {
			return r
		}
	}
}

// several does a take of several windows, one at a time in each shard.
func (m *Memory) several(hash uint64, t *Take, at moment) Result {
	sh, n := m.shard(hash), len(t.Limits)
	if sh.table.Load().find(windowID(hash, n-1)) == nil {
		m.makeRoom(n)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var buf [MaxWindows]*slot
	slots := buf[:n]
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
