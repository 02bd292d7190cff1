package keyed

import (
	"math"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
)

// Snapshot implements [weir.Snapshotter]: all keys together. Limit is the sum of
// the limits of those that are known. Counts include those of evicted keys.
func (l *Limiters) Snapshot() weir.Snapshot { return l.Usage(0).Snapshot }

// Usage describes the gate, with the top keys. Bytes is not known, and left 0. It
// asks every limiter, so it is for every few seconds and not for every request.
func (l *Limiters) Usage(top int) Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{Keys: int64(len(l.order)), MaxKeys: int64(l.maxKeys), Evicted: l.evicted, Newcomers: uint64(len(l.order)) + l.evicted}
	u.Name, u.Kind, u.Mode = l.name, "keyed", "enforce"
	addCounts(&u.Snapshot, &l.gone)
	for _, r := range weir.Reasons() {
		if n := l.refused[r].Load(); n > 0 {
			addCounts(&u.Snapshot, &weir.Snapshot{Rejected: map[weir.Reason]uint64{r: n}})
		}
	}
	for _, p := range l.order {
		one := p.snapshot()
		addCounts(&u.Snapshot, &one)
		u.Limit += one.Limit
		u.InFlight += one.InFlight
		u.Waiting += one.Waiting
		u.Exempt += one.Exempt
		u.Controller = one.Controller
		if one.InFlight > 0 {
			u.Busy++
		}
		if top > 0 {
			u.Top = append(u.Top, useOf(p.key, &one))
		}
	}
	slices.SortFunc(u.Top, compare)
	u.Top = u.Top[:min(max(top, 0), len(u.Top))]
	return u
}

// KeyOf returns the key whose limiter decides about w.
func (l *Limiters) KeyOf(w *weir.Work) string {
	if l.key != nil {
		return l.key(*w)
	}
	return w.Tenant
}

// Key describes one key, all of its parts together, and reports whether it is known.
// Of one that is not, only the Key is set.
func (l *Limiters) Key(key string) (KeyUse, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pools[key]
	if !ok {
		return useOf(key, &weir.Snapshot{}), false
	}
	all := p.snapshot()
	return useOf(key, &all), true
}

// Limiter describes one part of a key, and reports false if it is not known.
func (l *Limiters) Limiter(key, part string) (weir.Snapshot, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pools[key]
	if !ok || p.parts[part] == nil {
		return weir.Snapshot{}, false
	}
	return p.parts[part].Snapshot(), true
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

// snapshot is the limiters of a key together.
func (p *pool) snapshot() (all weir.Snapshot) {
	for _, limiter := range p.parts {
		s := limiter.Snapshot()
		addCounts(&all, &s)
		all.Limit += s.Limit
		all.InFlight += s.InFlight
		all.Waiting += s.Waiting
		all.Exempt += s.Exempt
		all.Controller = s.Controller
	}
	return all
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
