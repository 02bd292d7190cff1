package keyed

import (
	"cmp"
	"math"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// Usage is the gate at one moment, with the keys that use most of it.
type Usage struct {
	weir.Snapshot
	// Keys is how many keys are known, MaxKeys how many may be. Busy is how many
	// hold something. Bytes is the memory that the tables take.
	Keys    int64 `json:"keys"`
	MaxKeys int64 `json:"max_keys"`
	Busy    int64 `json:"busy"`
	Bytes   int64 `json:"bytes"`
	// Newcomers counts the keys that became known, Evicted those that were
	// evicted.
	Newcomers uint64 `json:"newcomers"`
	Evicted   uint64 `json:"evicted"`
	// Top are the keys with most in flight and waiting, the largest first.
	// Among equals, those that were refused most come first.
	Top []KeyUse `json:"top,omitempty"`
}

// KeyUse is one key at one moment.
type KeyUse struct {
	// Key is the key itself up to 36 bytes. A longer key is shown as its first 16
	// bytes and eight digits of a hash.
	Key string `json:"key"`
	// Limit is the limit of the key. InFlight is how much of it the key holds,
	// Waiting its work in the room.
	Limit    int64 `json:"limit"`
	InFlight int64 `json:"in_flight"`
	Waiting  int64 `json:"waiting"`
	// Admitted and Refused count since the key became known. A key that was
	// evicted and comes back starts again from 0. They stop at 4,294,967,295.
	Admitted uint32 `json:"admitted"`
	Refused  uint32 `json:"refused"`
}

// Snapshot implements [weir.Snapshotter], for all keys together. Limit is that of
// one key without an override, so InFlight may well be above it.
func (g *Pools) Snapshot() weir.Snapshot { return g.Usage(0).Snapshot }

// Usage describes the gate, with the top keys. It takes the lock of each shard for
// some ns a key. So call it every few seconds, not for every request. With top 0
// it does not read the keys.
func (g *Pools) Usage(top int) Usage {
	set, sum := g.settings.Load(), g.total()
	u := Usage{Keys: sum.keys, MaxKeys: set.maxKeys, Busy: sum.busy, Bytes: sum.bytes, Newcomers: sum.newcomers, Evicted: sum.evicted}
	u.Snapshot = weir.Snapshot{
		Name: g.Name(), Kind: "keyed", Mode: "enforce",
		Limit: set.limit, PerKey: true, InFlight: sum.inFlight, Waiting: sum.waiting,
		Admitted:   sum.admitted - sum.cancelled,
		Controller: set.controller, LimitReason: set.reason, Signal: set.signal, Faults: g.sizer.Faults.Load(), Latency: sum.median,
		WaitingByClass: gate.ByPriority(sum.byClass), Outcomes: gate.ByOutcome(sum.outcomes[:]),
		Leaked: g.front.Leaked(), Rejected: g.front.Rejected(),
	}
	u.Exempt, u.ExemptAdmitted = g.exempt.Read()
	if top > 0 {
		u.Top = g.top(set, top)
	}
	return u
}

// KeyOf returns the key of w, and so of the pool that it uses.
func (g *Pools) KeyOf(w weir.Work) string {
	if g.key != nil {
		return g.key(w)
	}
	return w.Tenant
}

// Key describes one key, and reports whether it is known. An unknown key holds
// nothing, and its Limit is the one that it would get.
func (g *Pools) Key(key string) (KeyUse, bool) {
	n := keys.NameOf(key)
	h := keys.Hash(g.seed, &n)
	set, s := g.settings.Load(), g.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, ok := s.table.Peek(h, &n)
	if !ok {
		return KeyUse{Key: n.String(), Limit: set.overrides[n].from(set.limit)}, false
	}
	u := s.use(set, slot, s.table.At(slot))
	u.Key = n.String()
	return u, true
}

// top returns the n keys that use most, the largest first.
func (g *Pools) top(set *settings, n int) []KeyUse {
	var best []KeyUse
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		s.table.All(func(slot uint32, e *keys.Entry) bool {
			u := s.use(set, slot, e)
			if len(best) == n && compare(u, best[n-1]) >= 0 {
				return true
			}
			u.Key = e.Name().String() // only of those that are shown: it allocates
			at, _ := slices.BinarySearchFunc(best, u, compare)
			best = slices.Insert(best, at, u)
			best = best[:min(n, len(best))]
			return true
		})
		s.mu.Unlock()
	}
	return best
}

// compare puts the key that uses more first.
func compare(a, b KeyUse) int {
	return cmp.Or(
		cmp.Compare(b.InFlight+b.Waiting, a.InFlight+a.Waiting),
		cmp.Compare(b.Refused, a.Refused),
		cmp.Compare(b.Admitted, a.Admitted),
	)
}

// use is a key at this moment, without its name.
func (s *shard) use(set *settings, slot uint32, e *keys.Entry) KeyUse {
	u := KeyUse{Limit: set.limitOf(e), InFlight: e.Held(), Admitted: e.Admitted, Refused: e.Refused}
	if e.Is(keys.Waiting) {
		u.Waiting = int64(s.queues[slot].room.Len())
	}
	return u
}

// Snapshot implements [weir.Snapshotter], for all keys together. Limit is the sum
// of the limits of all known keys. Counts include those of evicted keys.
func (l *Adaptive) Snapshot() weir.Snapshot { return l.Usage(0).Snapshot }

// Usage describes the gate, with the top keys. Bytes is unknown and stays
// 0. It asks every limiter, so call it every few seconds, not for every request.
func (l *Adaptive) Usage(top int) Usage {
	u, keys := l.census()
	for _, k := range keys {
		one := together(k.parts)
		add(&u.Snapshot, &one)
		if one.InFlight > 0 {
			u.Busy++
		}
		if top > 0 {
			u.Top = append(u.Top, useOf(k.key, &one))
		}
	}
	slices.SortFunc(u.Top, compare)
	u.Top = u.Top[:min(max(top, 0), len(u.Top))]
	return u
}

// resident is a key with its limiters.
type resident struct {
	key   string
	parts map[string]*limit.Limiter
}

// census returns what needs the lock: the known keys, and the counts of evicted ones.
// The limiters are asked without the lock, because that takes long and all work needs
// the lock. A key that is evicted meanwhile is counted once, among the known keys.
func (l *Adaptive) census() (u Usage, keys []resident) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u = Usage{Keys: int64(len(l.order)), MaxKeys: int64(l.maxKeys), Evicted: l.evicted, Newcomers: uint64(len(l.order)) + l.evicted}
	u.Name, u.Kind, u.Mode = l.Name(), "keyed", "enforce"
	addCounts(&u.Snapshot, &l.gone)
	addCounts(&u.Snapshot, &weir.Snapshot{Rejected: l.front.Rejected()})
	keys = make([]resident, len(l.order))
	for i, p := range l.order {
		keys[i] = resident{p.key, p.parts}
	}
	return u, keys
}

// KeyOf returns the key whose limiter decides about w.
func (l *Adaptive) KeyOf(w weir.Work) string {
	if l.key != nil {
		return l.key(w)
	}
	return w.Tenant
}

// Key describes one key, all of its parts together, and reports whether it is known.
// For an unknown key, only the field Key is set.
func (l *Adaptive) Key(key string) (KeyUse, bool) {
	parts, ok := l.partsOf(key)
	all := together(parts)
	return useOf(key, &all), ok
}

// Limiter describes one part of a key, and reports false if it is not known.
func (l *Adaptive) Limiter(key, part string) (weir.Snapshot, bool) {
	parts, _ := l.partsOf(key)
	if parts[part] == nil {
		return weir.Snapshot{}, false
	}
	return parts[part].Snapshot(), true
}

// partsOf returns the limiters of a key, and false if it is not known.
func (l *Adaptive) partsOf(key string) (map[string]*limit.Limiter, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pools[key]
	if !ok {
		return nil, false
	}
	return p.parts, true
}

func useOf(key string, s *weir.Snapshot) KeyUse {
	name := keys.NameOf(key)
	u := KeyUse{Key: name.String(), Limit: s.Limit, InFlight: s.InFlight, Waiting: s.Waiting}
	var refused uint64
	for _, n := range s.Rejected {
		refused += n
	}
	u.Admitted, u.Refused = uint32(min(s.Admitted, math.MaxUint32)), uint32(min(refused, math.MaxUint32))
	return u
}

// together is the limiters of a key as one.
func together(parts map[string]*limit.Limiter) (all weir.Snapshot) {
	for _, limiter := range parts {
		s := limiter.Snapshot()
		add(&all, &s)
	}
	return all
}

// add adds the levels of the moment, and the counts.
func add(to, from *weir.Snapshot) {
	addCounts(to, from)
	to.Limit += from.Limit
	to.InFlight += from.InFlight
	to.Waiting += from.Waiting
	to.Exempt += from.Exempt
	to.Controller = from.Controller
	for class, n := range from.WaitingByClass {
		gate.Count(&to.WaitingByClass, class, n)
	}
}

// addCounts adds the numbers that only grow.
func addCounts(to, from *weir.Snapshot) {
	to.Admitted += from.Admitted
	to.ExemptAdmitted += from.ExemptAdmitted
	to.Faults += from.Faults
	to.Leaked += from.Leaked
	for r, n := range from.Rejected {
		gate.Count(&to.Rejected, r, n)
	}
	for o, n := range from.Outcomes {
		gate.Count(&to.Outcomes, o, n)
	}
}
