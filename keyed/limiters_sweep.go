package keyed

import "time"

// To find that every pool is in use takes the lock of each limiter, and all
// work of all keys waits for it. So it is done in pieces, and while it is so no more
// often than sweepEvery and for no more than a fiftieth of the time.
const (
	sweepPiece = 256
	sweepEvery = 10 * time.Millisecond
	sweepPart  = 50
)

// sweep is the search for an idle pool, as far as it has come.
type sweep struct {
	hand   int           // the pool that was looked at last
	looked int           // at so many in vain
	spent  time.Duration // on it
	next   time.Duration // when to begin again, after every pool was found in use
}

// place makes room for one more key, and reports false if there is none.
func (l *Limiters) place() bool {
	for {
		l.mu.Lock()
		evicted, ok, again := l.makeRoom()
		l.mu.Unlock()
		l.retire(evicted)
		if !again {
			return ok
		}
	}
}

// makeRoom evicts idle keys until there is a place for one more, and returns them:
// one as a rule, more after MaxKeys has become smaller. It reports false if too
// many are in use, or if that is not known yet and it has to be called again.
func (l *Limiters) makeRoom() (evicted []*pool, ok, again bool) {
	for len(l.order) >= l.maxKeys {
		now := l.now()
		if now < l.sweep.next {
			return evicted, false, false
		}
		p := l.stalest()
		done := l.now()
		l.sweep.spent += done - now
		switch {
		case p != nil:
			l.sweep = sweep{hand: l.sweep.hand}
			l.evict(p)
			evicted = append(evicted, p)
		case l.sweep.looked < 2*len(l.order):
			return evicted, false, true
		default:
			l.sweep = sweep{hand: l.sweep.hand, next: done + max(sweepEvery, sweepPart*l.sweep.spent)}
			return evicted, false, false
		}
	}
	return evicted, true, false
}

// stalest returns an idle pool that was not asked for since the hand last came by,
// nil if there is none among the next that it looks at.
func (l *Limiters) stalest() *pool {
	for range min(sweepPiece, 2*len(l.order)-l.sweep.looked) {
		l.sweep.looked++
		l.sweep.hand = (l.sweep.hand + 1) % len(l.order)
		p := l.order[l.sweep.hand]
		switch {
		case p.pins > 0:
		case p.seen:
			p.seen = false
		case p.idle():
			return p
		}
	}
	return nil
}
