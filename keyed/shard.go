package keyed

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/slot"
)

// shard is a part of the keys under one lock, as a state machine on explicit time,
// without a clock. The shards share the settings and two counts of the gate: of
// keys, and of waiting work.
//
// A key's account is what it holds. Work is granted iff that stays within the
// key's limit. A limit that shrinks below what is held revokes nothing. It grants
// nothing until enough has come back.
type shard struct {
	gate  *Pools
	crowd atomic.Int64 // waiting here: whether a release needs the clock

	mu       sync.Mutex
	table    keys.Table
	permits  [2]gate.Pool[use] // untimed and timed
	accounts gate.Accounts
	queues   map[uint32]*queue // by slot, while somebody waits
	expiry   byExpiry
	kept     [keptRooms]*queue
	inFlight int64
	peak     int64 // the most that one key held since the window began
	count    tally
	service  room.Service
	refusal  *weir.Rejection // the last for want of a slot
	closed   bool
	armed    time.Duration // when the timer will fire
	timer    *time.Timer

	_ [64]byte // the next shard's lock is not this one's cache line
}

// tally are the counts of a shard, which only grow.
type tally struct {
	admitted, cancelled, evicted, newcomers uint64
	outcomes                                [5]uint64 // by weir.Outcome
	latency                                 time.Duration
	timed                                   int64
}

// use is what the gate keeps about a permit.
type use struct {
	start time.Duration // if timed
	cost  int64         // units of the key
	slot  uint32        // the key's
}

func (s *shard) init(g *Pools) {
	s.gate = g
	s.table = keys.New(g.seed)
	s.queues = make(map[uint32]*queue)
	s.armed = room.Never
	for kind := range s.permits {
		s.permits[kind].Init((*holder)(s), uint32(kind), 1)
	}
}

// settings returns those in force. Read them under the lock. A change stores the new
// settings first and then visits each shard, so no decision misses them.
func (s *shard) settings() *settings { return s.gate.settings.Load() }

// decide is an arrival under the lock: a permit, a refusal, or neither if place
// has been queued. The last result is false if the key has no place in the table.
func (s *shard) decide(w *weir.Work, a *arrival, out *gate.Answers) (p weir.Permit, refused *weir.Rejection, known bool) {
	if s.closed {
		return p, s.gate.front.Draining(), true
	}
	set := s.settings()
	if set.oversize(&a.name, a.cost) {
		return p, s.oversize(set, a), true
	}
	slot, ok := s.findOrAdd(set, a.hash, &a.name)
	if !ok {
		return p, nil, false
	}
	e := s.table.At(slot)
	if !e.Is(keys.Waiting) {
		if t, ok := s.grant(set, slot, a.cost, a.now, a.timed); ok {
			return weir.NewPermit(t), nil, true
		}
	}
	if a.place == nil || a.until.Patience <= a.now || set.places == 0 {
		refused = s.noSlot(set, slot, a.now)
	} else {
		refused = s.enqueue(set, slot, w, a, out)
	}
	if refused != nil {
		inc(&e.Refused)
	}
	return p, refused, true
}

// quick is decide for the cases that end with a permit.
func (s *shard) quick(a *arrival) (p weir.Permit, ok bool) {
	if s.closed {
		return p, false
	}
	set := s.settings()
	if set.oversize(&a.name, a.cost) {
		return p, false
	}
	slot, ok := s.findOrAdd(set, a.hash, &a.name)
	if !ok || s.table.At(slot).Is(keys.Waiting) {
		return p, false
	}
	t, ok := s.grant(set, slot, a.cost, a.now, a.timed)
	return weir.NewPermit(t), ok
}

// noSlot is the refusal of work while every slot of its key is taken. Equal refusals
// share one Rejection. The clock has not been read for work that neither waits nor is timed.
func (s *shard) noSlot(set *settings, slot uint32, now time.Duration) *weir.Rejection {
	e := s.table.At(slot)
	held, most := e.Held(), set.limitOf(e)
	q := s.queueOf(slot)
	if q != nil && now == 0 {
		now = s.gate.front.Now()
	}
	retry := s.wait(q, room.Unwaiting, most, now)
	if r := s.refusal; r != nil && r.Value == float64(held) && r.Limit == float64(most) && r.RetryAfter == retry && r.Signal == set.signal {
		return r
	}
	s.refusal = &weir.Rejection{Gate: s.gate.Name(), Reason: weir.ReasonLimit, Value: float64(held), Limit: float64(most),
		RetryAfter: retry, Retryable: true, Signal: set.signal}
	return s.refusal
}

// oversize is the refusal of a cost above the limit of its key. Oversize work of an
// unknown key does not make the key known.
func (s *shard) oversize(set *settings, a *arrival) *weir.Rejection {
	if slot, ok := s.table.Peek(a.hash, &a.name); ok {
		inc(&s.table.At(slot).Refused)
	}
	return s.gate.front.Oversize(a.cost, set.limitOfName(&a.name), set.signal)
}

// findOrAdd returns the slot of a key. An unknown key becomes known. It reports false if
// there is no place. Then every key of this shard is in use, and the gate has as many
// keys as it may.
func (s *shard) findOrAdd(set *settings, h uint64, n *keys.Name) (slot uint32, ok bool) {
	if slot, ok := s.table.Find(h, n); ok {
		return slot, true
	}
	if !s.makeRoom(set.maxKeys) {
		return 0, false
	}
	slot = s.table.Add(h, n, uint8(s.gate.dealt.Add(1)%keys.Groups))
	s.count.newcomers++
	s.mark(set, s.table.At(slot))
	return slot, true
}

// makeRoom reserves a place for one more key. If there is none, an idle key of this
// shard is evicted.
func (s *shard) makeRoom(most int64) bool {
	for n := s.gate.keys.Add(1); n > most; {
		if !s.table.Evict() {
			s.gate.keys.Add(-1)
			return false
		}
		s.count.evicted++
		n = s.gate.keys.Add(-1)
	}
	return true
}

// mark records whether a key has an override.
func (s *shard) mark(set *settings, e *keys.Entry) {
	own := false
	if len(set.overrides) > 0 {
		_, own = set.overrides[*e.Name()]
	}
	e.Set(keys.Marked, own)
}

// grant hands out cost units of the key in a slot, or reports that there are not
// as many. A cost above the limit is charged as the whole limit. Such work runs
// alone and is never stuck for ever.
func (s *shard) grant(set *settings, slot uint32, cost int64, now time.Duration, timed bool) (t slot.Ticket, ok bool) {
	e := s.table.At(slot)
	most := set.limitOf(e)
	cost = min(cost, most)
	if e.Held()+cost > most {
		return t, false
	}
	s.hold(slot, cost)
	s.count.admitted++
	inc(&e.Admitted)
	return s.issue(use{now, cost, slot}, timed), true
}

// hold changes what a key holds, and returns by how much.
func (s *shard) hold(slot uint32, units int64) int64 {
	units = s.table.Hold(slot, units)
	s.inFlight += units
	s.peak = max(s.peak, s.table.At(slot).Held())
	return units
}

func (s *shard) issue(u use, timed bool) slot.Ticket {
	if timed {
		return s.permits[1].Issue(&u)
	}
	return s.permits[0].Issue(&u)
}

// holder is the shard as the slots of its permits know it.
type holder shard

// Done implements [slot.Holder].
func (h *holder) Done(t slot.Ticket, outcome uint8) {
	s, timed, o := (*shard)(h), isTimed(t), weir.Outcome(outcome)
	var out gate.Answers
	now := s.lock(timed)
	if timed && s.accounts.Forecast != nil && t.Live() {
		u := &s.pool(t).At(t).Use
		s.accounts.Finish(s.roomOf(u.slot), t, now-u.start, s.service.Median())
	}
	u, sampled, ok := s.release(t, now)
	if !ok {
		s.mu.Unlock()
		return
	}
	var service time.Duration
	if !sampled {
		service = s.sample(&u, timed, o, now)
	}
	s.answerKey(u.slot, now, &out)
	s.unlock(now, &out)
	if !sampled {
		s.gate.front.Finished(o, service)
	}
}

// Sample implements [slot.Holder].
func (h *holder) Sample(t slot.Ticket, outcome uint8) {
	s, timed, o := (*shard)(h), isTimed(t), weir.Outcome(outcome)
	now := s.lock(timed)
	if !t.MarkSampled() {
		s.mu.Unlock()
		return
	}
	service := s.sample(&s.pool(t).At(t).Use, timed, o, now)
	s.mu.Unlock()
	s.gate.front.Finished(o, service)
}

// Cancel implements [slot.Holder].
func (h *holder) Cancel(t slot.Ticket) {
	s := (*shard)(h)
	var out gate.Answers
	now := s.lock(false)
	u, _, ok := s.release(t, now)
	if !ok {
		s.mu.Unlock()
		return
	}
	s.count.cancelled++
	if e := s.table.At(u.slot); e.Admitted > 0 {
		e.Admitted--
	}
	s.answerKey(u.slot, now, &out)
	s.unlock(now, &out)
}

// SetCost implements [slot.Holder]. From now on the ticket holds units
// instead of what it was admitted with, at least 1 and at most the key's limit.
// More may bring the key above its limit. Then nothing is granted until enough has
// come back. Less admits waiters. All of the units, also those above the limit,
// count for the order of turns among those that wait for the key.
func (h *holder) SetCost(t slot.Ticket, name string, units int64) {
	s := (*shard)(h)
	if name != "" && name != s.gate.Name() {
		return
	}
	var out gate.Answers
	now := s.lock(false)
	u := &s.pool(t).At(t).Use
	if !t.Live() {
		s.mu.Unlock()
		return
	}
	most := s.settings().limitOf(s.table.At(u.slot))
	change := s.hold(u.slot, min(max(units, 1), most)-u.cost)
	u.cost += change
	if charged := s.accounts.SetCost(s.roomOf(u.slot), t, units); charged || change < 0 {
		s.answerKey(u.slot, now, &out)
	}
	s.unlock(now, &out)
}

// lock takes the shard's lock and returns the time, which is read before: 0 where
// nobody needs it.
func (s *shard) lock(timed bool) (now time.Duration) {
	if timed || s.crowd.Load() > 0 {
		now = s.gate.front.Now()
		s.mu.Lock()
		return now
	}
	s.mu.Lock()
	if len(s.queues) == 0 {
		return 0
	}
	s.mu.Unlock() // somebody has just begun to wait
	return s.lock(true)
}

// unlock ends everything that may have admitted a waiter.
func (s *shard) unlock(now time.Duration, out *gate.Answers) {
	s.arm(now)
	quit := s.closed && s.inFlight == 0
	s.mu.Unlock()
	out.Deliver()
	if quit {
		s.gate.quit()
	}
}

// release ends t, and returns what it was used for, or false if t was not live.
func (s *shard) release(t slot.Ticket, now time.Duration) (u use, sampled, ok bool) {
	if sampled, ok = s.pool(t).Recall(t, &u); !ok {
		return u, false, false
	}
	s.accounts.Forget(t)
	s.hold(u.slot, -u.cost)
	if q := s.queueOf(u.slot); q != nil {
		q.drain.Finish(now, u.cost, true)
	}
	return u, sampled, true
}

// sample counts an outcome. It returns how long the work took, 0 if it was not timed.
func (s *shard) sample(u *use, timed bool, o weir.Outcome, now time.Duration) (service time.Duration) {
	if timed {
		service = max(0, now-u.start)
	}
	if int(o) < len(s.count.outcomes) {
		s.count.outcomes[o]++
	}
	if timed && (o == weir.OK || o == weir.Overload || o == weir.Abandoned) {
		s.service.Add(service)
		s.count.latency += service
		s.count.timed++
		if q := s.queueOf(u.slot); q != nil {
			q.service.Add(service)
		}
	}
	return service
}

// isTimed reports whether a use is timed, by the number of its slot. A release must know
// that before it has the lock, because it reads the clock outside of the lock.
func isTimed(t slot.Ticket) bool { return t.ID()&1 != 0 }

func (s *shard) pool(t slot.Ticket) *gate.Pool[use] { return &s.permits[t.ID()&1] }

// answerKey calls answerWaiters for a key that has got free slots, if anybody waits for it.
func (s *shard) answerKey(slot uint32, now time.Duration, out *gate.Answers) {
	if s.table.At(slot).Is(keys.Waiting) {
		s.answerWaiters(s.settings(), s.queues[slot], now, out)
	}
}

// roomOf returns the room of a key, nil if nobody waits for it.
func (s *shard) roomOf(slot uint32) *room.Room {
	if q := s.queueOf(slot); q != nil {
		return &q.room
	}
	return nil
}

// queueOf returns the queue of a key, nil if nobody waits for it.
func (s *shard) queueOf(slot uint32) *queue {
	if len(s.queues) == 0 {
		return nil
	}
	return s.queues[slot]
}

// step refuses the waiters whose time is up.
func (s *shard) step() {
	var out gate.Answers
	now := s.gate.front.Now()
	s.mu.Lock()
	s.armed = room.Never
	s.expire(now, &out)
	s.unlock(now, &out)
}

// arm sets the timer for the next expiry. It does not go back when the next
// event turns out to be later. A needless call is cheaper than a new timer for
// every waiter that leaves.
func (s *shard) arm(now time.Duration) {
	next := s.due()
	if !s.gate.front.Timed() || next >= s.armed {
		return
	}
	s.armed = next
	if s.timer == nil {
		s.timer = time.AfterFunc(next-now, s.step)
		return
	}
	s.timer.Reset(next - now)
}

// due returns when the next waiter expires.
func (s *shard) due() time.Duration {
	if len(s.expiry) == 0 {
		return room.Never
	}
	return s.expiry[0].room.Expiry()
}

// expire refuses the waiters whose time is up, in all rooms.
func (s *shard) expire(now time.Duration, out *gate.Answers) {
	for len(s.expiry) > 0 && s.expiry[0].room.Expiry() <= now {
		s.answerWaiters(s.settings(), s.expiry[0], now, out)
	}
}

// answerWaiters goes through the room of one key. Waiters whose time is up are refused,
// waiters whose turn it is are admitted.
func (s *shard) answerWaiters(set *settings, q *queue, now time.Duration, out *gate.Answers) {
	for w := q.room.Expired(now); w != nil; w = q.room.Expired(now) {
		q.room.Expire(w)
		inc(&s.table.At(q.slot).Refused)
		s.answer(out, w, weir.Permit{}, s.expired(set, q, w, now))
	}
	for w := q.room.Next(now); w != nil; w = q.room.Next(now) {
		t, ok := s.grant(set, q.slot, gate.WaiterOf(w).Cost, now, true)
		if !ok {
			break
		}
		q.room.Dequeue(w)
		s.accounts.OpenWaiter(&q.room, t, w, min(gate.WaiterOf(w).Cost, set.limitOf(s.table.At(q.slot))))
		s.answer(out, w, weir.NewPermit(t), nil)
	}
	s.tidy(q)
}

// resized admits the waiters that can start under new settings. overrides says
// whether the overrides have changed, too.
func (s *shard) resized(set *settings, overrides bool, now time.Duration, out *gate.Answers) {
	if overrides {
		s.accounts.Forecast = gate.NewForecast(set.byTime, s.accounts.Forecast, s.gate.front.IsVirtual())
		s.table.All(func(_ uint32, e *keys.Entry) bool {
			s.mark(set, e)
			return true
		})
	}
	for _, q := range append([]*queue(nil), s.expiry...) {
		q.configure(set, q.room.Size())
		s.answerWaiters(set, q, now, out)
	}
	s.shrinkTo(set.maxKeys)
}

// shrinkTo evicts idle keys of this shard while the gate has more than most.
func (s *shard) shrinkTo(most int64) {
	for s.gate.keys.Load() > most && s.table.Evict() {
		s.count.evicted++
		s.gate.keys.Add(-1)
	}
}

// close refuses everybody who waits, and what comes.
func (s *shard) close(out *gate.Answers) {
	now := s.gate.front.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.expiry) > 0 {
		q := s.expiry[0]
		for w := q.room.Next(now); w != nil; w = q.room.Next(now) {
			q.room.Remove(w)
			s.answer(out, w, weir.Permit{}, s.gate.front.Draining())
		}
		s.tidy(q)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.armed = room.Never
}

// inc adds one to a count, which stops at its maximum.
func inc(n *uint32) {
	if *n < math.MaxUint32 {
		*n++
	}
}
