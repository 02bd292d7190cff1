package limit

import (
	"hash/maphash"
	"time"

	"github.com/weir-go/weir"
)

// byTime makes shares parts of the time that slots are held. What work takes is
// known when it is done; until then it is charged what that of its tenant took
// lately. Without such a guess a tenant with long work would get as many of the
// slots that a growing limit adds as one with short work, the mean work inside
// would grow with the limit, and a controller that compares the two would take
// that for contention.
//
// It remembers so many tenants, each in the one place that its name hashes to; of
// two with the same place the later stays. Who is not known is taken to be like
// the median.
type byTime struct {
	seed    maphash.Seed
	guesses [1 << 10]guess
}

// guess is how long a tenant's work takes, in medians.
type guess struct {
	who   uint64
	ratio float64
}

func newByTime(on bool, before *byTime) *byTime {
	switch {
	case !on:
		return nil
	case before != nil:
		return before
	}
	return &byTime{seed: maphash.MakeSeed()}
}

func (t *byTime) of(user, tenant string) (*guess, uint64) {
	who := maphash.String(t.seed, user)*31 + maphash.String(t.seed, tenant) | 1
	return &t.guesses[who>>1%uint64(len(t.guesses))], who
}

// expect returns how many medians the tenant's work takes.
func (t *byTime) expect(user, tenant string) float64 {
	if g, who := t.of(user, tenant); g.who == who {
		return g.ratio
	}
	return 1
}

// learn takes up what it took once.
func (t *byTime) learn(user, tenant string, ratio float64) {
	g, who := t.of(user, tenant)
	if g.who != who {
		*g = guess{who, ratio}
		return
	}
	g.ratio += (ratio - g.ratio) / 8
}

// chargeAhead charges what p, just granted to somebody who has waited, will
// presumably take beyond its cost, or less than that.
func (l *Limiter) chargeAhead(p weir.Permit) {
	a := &l.accounts[p.Slot().ID()]
	a.ratio = l.byTime.expect(a.user, a.tenant)
	l.room.Settle(int(a.class), a.user, a.tenant, float64(a.cost)*(a.ratio-1))
}

// chargeTime settles, when work is done, what it was charged in advance with the
// time that it has held its slots. What takes the median time is charged its cost,
// what takes ten times that ten times its cost.
func (l *Limiter) chargeTime(p weir.Permit, now time.Duration) {
	a, median := l.account(p), l.service.Median()
	if a == nil || median <= 0 {
		return
	}
	took := max(0, now-l.berth(p.Slot()).start).Seconds() / median.Seconds()
	l.room.Settle(int(a.class), a.user, a.tenant, float64(a.cost)*(took-a.ratio))
	l.byTime.learn(a.user, a.tenant, took)
}
