package keyed

import (
	"math"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// Snapshot implements [weir.Snapshotter]: all keys together. Limit is the sum of
// the limits of those that are known. Counts include those of evicted keys.
func (l *Limiters) Snapshot() weir.Snapshot { return l.Usage(0).Snapshot }

// Usage describes the gate, with the top keys. Bytes is not known, and left 0. It
// asks every limiter, so it is for every few seconds and not for every request.
func (l *Limiters) Usage(top int) Usage {
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

// census returns what the lock is needed for: who is known, and what became of those
// who no longer are. The limiters are asked without it, for that takes long, and all
// work needs it. A key that is evicted meanwhile is counted once: among those known.
func (l *Limiters) census() (u Usage, keys []resident) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u = Usage{Keys: int64(len(l.order)), MaxKeys: int64(l.maxKeys), Evicted: l.evicted, Newcomers: uint64(len(l.order)) + l.evicted}
	u.Name, u.Kind, u.Mode = l.name, "keyed", "enforce"
	addCounts(&u.Snapshot, &l.gone)
	for _, r := range weir.Reasons() {
		if n := l.refused[r].Load(); n > 0 {
			addCounts(&u.Snapshot, &weir.Snapshot{Rejected: map[weir.Reason]uint64{r: n}})
		}
	}
	keys = make([]resident, len(l.order))
	for i, p := range l.order {
		keys[i] = resident{p.key, p.parts}
	}
	return u, keys
}

// KeyOf returns the key whose limiter decides about w.
func (l *Limiters) KeyOf(w weir.Work) string {
	if l.key != nil {
		return l.key(w)
	}
	return w.Tenant
}

// Key describes one key, all of its parts together, and reports whether it is known.
// Of one that is not, only the Key is set.
func (l *Limiters) Key(key string) (KeyUse, bool) {
	parts, ok := l.partsOf(key)
	all := together(parts)
	return useOf(key, &all), ok
}

// Limiter describes one part of a key, and reports false if it is not known.
func (l *Limiters) Limiter(key, part string) (weir.Snapshot, bool) {
	parts, _ := l.partsOf(key)
	if parts[part] == nil {
		return weir.Snapshot{}, false
	}
	return parts[part].Snapshot(), true
}

// partsOf returns the limiters of a key, and false if it is not known.
func (l *Limiters) partsOf(key string) (map[string]*limit.Limiter, bool) {
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

// add adds what is there at the moment, and counts.
func add(to, from *weir.Snapshot) {
	addCounts(to, from)
	to.Limit += from.Limit
	to.InFlight += from.InFlight
	to.Waiting += from.Waiting
	to.Exempt += from.Exempt
	to.Controller = from.Controller
	for class, n := range from.WaitingByClass {
		if to.WaitingByClass == nil {
			to.WaitingByClass = map[weir.Priority]int64{}
		}
		to.WaitingByClass[class] += n
	}
}

// addCounts adds what only grows.
func addCounts(to, from *weir.Snapshot) {
	to.Admitted += from.Admitted
	to.ExemptAdmitted += from.ExemptAdmitted
	to.Faults += from.Faults
	to.Leaked += from.Leaked
	for r, n := range from.Rejected {
		if to.Rejected == nil {
			to.Rejected = map[weir.Reason]uint64{}
		}
		to.Rejected[r] += n
	}
	for o, n := range from.Outcomes {
		if to.Outcomes == nil {
			to.Outcomes = map[weir.Outcome]uint64{}
		}
		to.Outcomes[o] += n
	}
}
