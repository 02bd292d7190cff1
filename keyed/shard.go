package keyed

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// shard is a part of the keys under one lock, as a state machine: explicit time,
// no clock. What it shares with the others are three counts of the gate, of keys,
// waiting and exempt work, and the settings.
//
// A key's account is what it holds. Work is granted iff that stays within the
// key's limit; a limit that shrinks below what is held revokes nothing and grants
// nothing until enough has come back.
type shard struct {
	gate  *Pools
	crowd atomic.Int64 // waiting here: whether a release needs the clock

	mu       sync.Mutex
	table    keys.Table
	permits  permits
	accounts []account         // by berth
	queues   map[uint32]*queue // by slot, while somebody waits
	expiry   []*queue          // heap by expiry
	kept     [keptRooms]*queue
	inFlight int64
	exempt   int64 // exempt work in flight, which is not in inFlight
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
	exempt                                  uint64
	outcomes                                [5]uint64 // by weir.Outcome
	latency                                 time.Duration
	timed                                   int64
}

func (s *shard) init(g *Pools) {
	s.gate = g
	s.table = keys.New(g.seed)
	s.queues = make(map[uint32]*queue)
	s.armed = room.Never
	s.permits.init(s)
}

// settings are those in force. They must be read under the lock: new ones are put
// into force first and each shard is visited then, so who had the lock before that
// is looked at again, and who has it after has seen them.
func (s *shard) settings() *settings { return s.gate.settings.Load() }

// find returns the slot of a key, which becomes known if it was not. It reports
// false if there is no place: every key of this shard is in use and the gate has
// as many as it may.
func (s *shard) find(set *settings, h uint64, n *keys.Name) (slot uint32, ok bool) {
	if slot, ok := s.table.Find(h, n); ok {
		return slot, true
	}
	if !s.makeRoom(set.maxKeys) {
		return 0, false
	}
	slot = s.table.Add(h, n)
	s.count.newcomers++
	s.mark(set, s.table.At(slot))
	return slot, true
}

// makeRoom takes a place for one more key. An idle key of this shard gives up its
// own where there is none.
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

// mark notes whether a key has an override.
func (s *shard) mark(set *settings, e *keys.Entry) {
	own := false
	if len(set.overrides) > 0 {
		_, own = set.overrides[*e.Name()]
	}
	e.Set(keys.Marked, own)
}

// grant hands out cost units of the key in a slot, or reports that there are not
// as many. A cost above the limit is charged as the whole limit, so that such work
// runs alone and is never stuck for ever.
func (s *shard) grant(set *settings, slot uint32, cost int64, now time.Duration, timed bool) (weir.Permit, bool) {
	e := s.table.At(slot)
	most := set.of(e)
	cost = min(cost, most)
	if e.Held()+cost > most {
		return weir.Permit{}, false
	}
	s.hold(slot, cost)
	s.count.admitted++
	inc(&e.Admitted)
	return s.permits.issue(slot, cost, now, timed), true
}

// hold changes what a key holds, and returns by how much.
func (s *shard) hold(slot uint32, units int64) int64 {
	units = s.table.Hold(slot, units)
	s.inFlight += units
	s.peak = max(s.peak, s.table.At(slot).Held())
	return units
}

// quick is decide where it comes to a permit.
func (s *shard) quick(a *arrival) (p weir.Permit, ok bool) {
	if s.closed {
		return p, false
	}
	set := s.settings()
	if set.oversize(&a.name, a.cost) {
		return p, false
	}
	slot, ok := s.find(set, a.hash, &a.name)
	if !ok || s.table.At(slot).Is(keys.Waiting) {
		return p, false
	}
	return s.grant(set, slot, a.cost, a.now, a.timed)
}

// decide is an arrival under the lock: a permit, a refusal, or neither if place
// has been queued. The last result is false if the key has no place in the table.
func (s *shard) decide(a *arrival, out *answers) (p weir.Permit, refused *weir.Rejection, known bool) {
	if s.closed {
		return p, s.gate.draining(), true
	}
	set := s.settings()
	if set.oversize(&a.name, a.cost) {
		return p, s.oversize(set, a), true
	}
	slot, ok := s.find(set, a.hash, &a.name)
	if !ok {
		return p, nil, false
	}
	e := s.table.At(slot)
	if !e.Is(keys.Waiting) {
		if p, ok = s.grant(set, slot, a.cost, a.now, a.timed); ok {
			return p, nil, true
		}
	}
	if a.place == nil || a.until.patience <= a.now || set.places == 0 {
		refused = s.wanting(set, slot, a.now)
	} else {
		refused = s.enqueue(set, slot, a, out)
	}
	if refused != nil {
		inc(&e.Refused)
	}
	return p, refused, true
}

// release ends p, and returns its berth, or nil if p was not live.
func (s *shard) release(p weir.Permit) (b *berth, sampled bool) {
	live, sampled := p.Slot().Recall(p)
	if !live {
		return nil, false
	}
	b = s.permits.at(p.Slot())
	if b.cost > 0 {
		s.hold(b.slot, -b.cost)
	} else {
		s.exempt--
		s.gate.exempt.Add(-1)
	}
	s.forget(b.ID())
	s.permits.putBack(b)
	return b, sampled
}

// spareOne admits exempt work, which the gate has counted already.
func (s *shard) spareOne(a *arrival) (weir.Permit, *weir.Rejection) {
	if s.closed {
		return weir.Permit{}, s.gate.draining()
	}
	s.exempt++
	s.count.exempt++
	return s.permits.issue(0, 0, a.now, a.timed), nil
}

// sample counts an outcome, but not of exempt work, and returns how long the work
// took, 0 if it was not timed.
func (s *shard) sample(b *berth, o weir.Outcome, now time.Duration) (service time.Duration) {
	if b.timed() {
		service = max(0, now-b.start)
	}
	if b.cost == 0 {
		return service
	}
	if int(o) < len(s.count.outcomes) {
		s.count.outcomes[o]++
	}
	if b.timed() && (o == weir.OK || o == weir.Overload || o == weir.Abandoned) {
		s.service.Add(service)
		s.count.latency += service
		s.count.timed++
	}
	return service
}

// serve goes through the room of one key: whose time is up is refused, whose turn
// it is is admitted.
func (s *shard) serve(set *settings, q *queue, now time.Duration, out *answers) {
	for w := q.room.Expired(now); w != nil; w = q.room.Expired(now) {
		q.room.Expire(w)
		inc(&s.table.At(q.slot).Refused)
		s.answer(out, w, weir.Permit{}, s.expired(w, now))
	}
	for w := q.room.Next(now); w != nil; w = q.room.Next(now) {
		p, ok := s.grant(set, q.slot, w.Owner.(*waiter).cost, now, true)
		if !ok {
			break
		}
		q.room.Serve(w)
		s.open(p, w)
		s.answer(out, w, p, nil)
	}
	s.settle(q)
}

// served is serve for a key that has something more to give, if anybody waits for
// it.
func (s *shard) served(slot uint32, now time.Duration, out *answers) {
	if s.table.At(slot).Is(keys.Waiting) {
		s.serve(s.settings(), s.queues[slot], now, out)
	}
}

// expire refuses those whose time is up, in all rooms.
func (s *shard) expire(now time.Duration, out *answers) {
	for len(s.expiry) > 0 && s.expiry[0].room.Expiry() <= now {
		s.serve(s.settings(), s.expiry[0], now, out)
	}
}

// resized lets in whom the new settings let in, and looks up anew who has a limit
// of its own.
func (s *shard) resized(set *settings, overrides bool, now time.Duration, out *answers) {
	if overrides {
		s.table.All(func(_ uint32, e *keys.Entry) bool {
			s.mark(set, e)
			return true
		})
	}
	for _, q := range append([]*queue(nil), s.expiry...) {
		q.configure(set, q.room.Size())
		s.serve(set, q, now, out)
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

// inc adds one to a count that stays at its end.
func inc(n *uint32) {
	if *n < math.MaxUint32 {
		*n++
	}
}

var (
	_ weir.Holder     = (*shard)(nil)
	_ weir.CostHolder = (*shard)(nil)
)

// lock takes the shard's lock and returns the time, which is read before: 0 where
// nobody needs it.
func (s *shard) lock(timed bool) (now time.Duration) {
	if timed || s.crowd.Load() > 0 {
		now = s.gate.now()
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

// unlock is the end of everything that may have let somebody in.
func (s *shard) unlock(now time.Duration, out *answers) {
	s.arm(now)
	quit := s.closed && s.inFlight == 0 && s.exempt == 0
	s.mu.Unlock()
	out.Deliver()
	if quit {
		s.gate.quit()
	}
}

// PermitDone implements [weir.Holder].
func (s *shard) PermitDone(p weir.Permit, o weir.Outcome) {
	var out answers
	now := s.lock(isTimed(p.Slot().ID()))
	if p.Live() && s.settings().byTime {
		s.chargeTime(s.permits.at(p.Slot()), now)
	}
	b, sampled := s.release(p)
	if b == nil {
		s.mu.Unlock()
		return
	}
	var service time.Duration
	if !sampled {
		service = s.sample(b, o, now)
	}
	if b.cost > 0 {
		s.served(b.slot, now, &out)
	}
	s.unlock(now, &out)
	if !sampled {
		s.gate.finished(o, service)
	}
}

// PermitSampled implements [weir.Holder].
func (s *shard) PermitSampled(p weir.Permit, o weir.Outcome) {
	now := s.lock(isTimed(p.Slot().ID()))
	if !p.Slot().MarkSampled(p) {
		s.mu.Unlock()
		return
	}
	service := s.sample(s.permits.at(p.Slot()), o, now)
	s.mu.Unlock()
	s.gate.finished(o, service)
}

// PermitCancelled implements [weir.Holder].
func (s *shard) PermitCancelled(p weir.Permit) {
	var out answers
	now := s.lock(false)
	b, _ := s.release(p)
	if b == nil {
		s.mu.Unlock()
		return
	}
	if b.cost == 0 {
		s.count.exempt--
	} else {
		s.count.cancelled++
		if e := s.table.At(b.slot); e.Admitted > 0 {
			e.Admitted--
		}
		s.served(b.slot, now, &out)
	}
	s.unlock(now, &out)
}

// PermitCost implements [weir.CostHolder]: from now on the permit holds units
// instead of what it was admitted with, at least 1 and at most the key's limit.
// More may bring the key above its limit, and then nothing is granted until enough
// has come back; less lets in who waits. All of the units, also those above the
// limit, count for whose turn is next among those that wait for the key.
func (s *shard) PermitCost(p weir.Permit, gate string, units int64) {
	if gate != "" && gate != s.gate.name {
		return
	}
	var out answers
	now := s.lock(false)
	b := s.permits.at(p.Slot())
	if !p.Live() || b.cost == 0 {
		s.mu.Unlock()
		return
	}
	most := s.settings().of(s.table.At(b.slot))
	change := s.hold(b.slot, min(max(units, 1), most, limit.MaxLimit)-b.cost)
	b.cost += change
	if settled := s.settleCost(b, units); settled || change < 0 {
		s.served(b.slot, now, &out)
	}
	s.unlock(now, &out)
}

// SlotFreed implements [weir.Holder]; a berth is never freed inline.
func (s *shard) SlotFreed(*weir.Slot) {}

// berth is a slot with what the gate keeps of its present holder, guarded by the
// shard's lock.
type berth struct {
	weir.Slot
	start time.Duration // of the present use, if timed
	cost  int64         // units of the key; 0: exempt work
	slot  uint32        // the key's
	next  uint32        // on the free list: the next berth's id, plus 1
}

// Whether a use is timed shows in the number of its berth, which never changes: a
// release must know before it has the lock, because the clock is read outside of
// it.
func isTimed(id uint32) bool { return id&1 != 0 }

func (b *berth) timed() bool { return isTimed(b.ID()) }

// permits are the berths of a shard. There are as many as were ever in use at a
// time.
type permits struct {
	shard  *shard
	common weir.Slots // attention stays raised: every release comes to the shard
	chunks [][]berth
	free   [2]uint32 // untimed and timed: the first one's id, plus 1
}

// berthChunk is how many berths are made at once.
const berthChunk = 64

func (s *permits) init(sh *shard) {
	s.shard = sh
	s.common.Attention.Store(1)
}

func (s *permits) issue(slot uint32, cost int64, now time.Duration, timed bool) weir.Permit {
	kind := 0
	if timed {
		kind = 1
	}
	if s.free[kind] == 0 {
		s.grow()
	}
	b := s.berth(s.free[kind] - 1)
	s.free[kind] = b.next
	b.start, b.cost, b.slot = now, cost, slot
	return b.Issue()
}

func (s *permits) grow() {
	chunk := make([]berth, berthChunk)
	from := uint32(len(s.chunks) * berthChunk)
	s.chunks = append(s.chunks, chunk)
	for i := range chunk {
		chunk[i].Init(s.shard, &s.common, from+uint32(i))
		s.putBack(&chunk[i])
	}
}

func (s *permits) putBack(b *berth) {
	kind := b.ID() & 1
	b.next, s.free[kind] = s.free[kind], b.ID()+1
}

func (s *permits) at(slot *weir.Slot) *berth { return s.berth(slot.ID()) }

func (s *permits) berth(id uint32) *berth { return &s.chunks[id/berthChunk][id%berthChunk] }

// account says whose part of what its key is served the work in a berth is, and how
// much it has been charged of it; 0: nobody knows. It is known of what has waited:
// when the rest came nobody's part was short, and the path of all work must not pay
// for it.
type account struct {
	user, tenant string
	charged      int64
	class        int8
}

// open notes that p was granted to w.
func (s *shard) open(p weir.Permit, w *room.Waiter) {
	id := int(p.Slot().ID())
	if id >= len(s.accounts) {
		s.accounts = append(s.accounts, make([]account, len(s.permits.chunks)*berthChunk-len(s.accounts))...)
	}
	s.accounts[id] = account{w.User, w.Tenant, max(1, w.Units), w.Class}
}

// forget ends the account of a berth, and with it the names.
func (s *shard) forget(id uint32) {
	if int(id) < len(s.accounts) {
		s.accounts[id] = account{}
	}
}

// settleCost settles what work has really cost with whose part it is, who has to
// wait the longer for the next turn at this key, or less long. It reports whether
// that may have changed who goes next.
func (s *shard) settleCost(b *berth, units int64) bool {
	id := int(b.ID())
	if id >= len(s.accounts) || s.accounts[id].charged == 0 {
		return false
	}
	a := &s.accounts[id]
	units = min(max(units, 1), limit.MaxLimit)
	more := units - a.charged
	a.charged = units
	q, waited := s.queues[b.slot]
	if waited {
		q.room.Settle(int(a.class), a.user, a.tenant, float64(more))
	}
	return waited
}

// chargeTime settles, when work is done, what it was charged in advance with the
// time that it has held its slots: beside the median of all keys of the shard.
func (s *shard) chargeTime(b *berth, now time.Duration) {
	id, median := int(b.ID()), s.service.Median()
	if id >= len(s.accounts) || s.accounts[id].charged == 0 || !b.timed() || median <= 0 {
		return
	}
	if q, waited := s.queues[b.slot]; waited {
		a, took := &s.accounts[id], max(0, now-b.start)
		q.room.Settle(int(a.class), a.user, a.tenant, float64(a.charged)*(took.Seconds()/median.Seconds()-1))
	}
}
