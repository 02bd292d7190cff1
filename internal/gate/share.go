package gate

import (
	"time"

	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/slot"
)

// Accounts say in whose share the work in flight counts. Work that came
// before anybody had to wait has no account. Nobody's share was short then, and the
// path of all work must not pay for it.
type Accounts struct {
	All      []Account // by slot id
	Forecast *Forecast // nil: shares are of cost, not of time
}

// Account says in whose share the work in a slot counts, and how much it has been
// charged. It counts while the slot is held with this ticket. The names stay
// until the slot is used again.
type Account struct {
	Ticket       slot.Ticket
	User, Tenant string
	Cost         int64   // in units
	Ratio        float64 // how many times that has been charged; 1 but for shares of time
	class        int8
}

// largestCost bounds a cost that is known afterwards. A larger cost would use up the
// share for longer than anybody waits. And sums must not overflow.
const largestCost = 1 << 30

// Open records the class, user and tenant that t was granted to.
func (a *Accounts) Open(t slot.Ticket, class int8, user, tenant string, cost int64) *Account {
	id := int(t.ID())
	if id >= len(a.All) {
		a.All = append(a.All, make([]Account, id+1-len(a.All))...)
	}
	a.All[id] = Account{Ticket: t, class: class, User: user, Tenant: tenant, Cost: max(1, cost), Ratio: 1}
	return &a.All[id]
}

// OpenWaiter is Open for work that has waited in r and is served now. The room has charged
// what the work would have taken when it came; cost is what it takes. They differ if the
// limit has moved. Where shares are of time, the work is charged at once what it will
// probably take.
func (a *Accounts) OpenWaiter(r *room.Room, t slot.Ticket, w *room.Waiter, cost int64) {
	of := a.Open(t, w.Class, w.User, w.Tenant, cost)
	if a.Forecast != nil {
		of.Ratio = a.Forecast.Expect(of.User, of.Tenant)
	}
	of.adjust(r, float64(of.Cost)*of.Ratio-float64(max(1, w.Units)))
}

// Forget drops what is known of a ticket's slot, and with it the names.
func (a *Accounts) Forget(t slot.Ticket) {
	if id := int(t.ID()); id < len(a.All) {
		a.All[id] = Account{}
	}
}

// Of returns the account of a live ticket, nil if there is none.
func (a *Accounts) Of(t slot.Ticket) *Account {
	id := int(t.ID())
	if id >= len(a.All) || a.All[id].Ticket != t || !t.Live() {
		return nil
	}
	return &a.All[id]
}

// SetCost charges what the work has really cost, at least 1 unit. Its tenant waits
// longer for the next turn, or less long. It reports whether that may have changed
// who goes next. r is where the tenant waits, nil if nobody waits there.
func (a *Accounts) SetCost(r *room.Room, t slot.Ticket, units int64) bool {
	of := a.Of(t)
	if of == nil {
		return false
	}
	units = min(max(units, 1), largestCost)
	more := float64(units-of.Cost) * of.Ratio
	of.Cost = units
	return of.adjust(r, more)
}

// Finish replaces the forecast by the time that the work has really taken. Work of
// the median time is charged its cost, work of ten times that ten times its cost.
func (a *Accounts) Finish(r *room.Room, t slot.Ticket, took, median time.Duration) {
	of := a.Of(t)
	if a.Forecast == nil || of == nil || median <= 0 {
		return
	}
	ratio := max(0, took).Seconds() / median.Seconds()
	of.adjust(r, float64(of.Cost)*(ratio-of.Ratio))
	a.Forecast.learn(of.User, of.Tenant, ratio)
}

func (a *Account) adjust(r *room.Room, units float64) bool {
	if r == nil {
		return false
	}
	r.AdjustCost(int(a.class), a.User, a.Tenant, units)
	return true
}

// Forecast guesses how long the work of a tenant takes, from what it took lately.
// Without it, a growing limit would give as many new slots to a tenant with long
// work as to one with short work. The mean work in flight would grow with the
// limit, and a controller that compares the two would see contention in that.
//
// It remembers a fixed number of tenants. The hash of a tenant's name gives its place,
// which holds two. If a third has the same place, the one learned of last and the new one
// stay. Unknown tenants are taken to be like the median.
type Forecast struct {
	hash    Hash
	guesses [1 << 9][2]guess // of each place, the one learned of last is first
}

// guess is how long a tenant's work takes, in medians.
type guess struct {
	who   uint64
	ratio float64
}

// NewForecast returns a forecast if it is on: the one before, if there was one. virtual says whether
// time is.
func NewForecast(on bool, before *Forecast, virtual bool) *Forecast {
	switch {
	case !on:
		return nil
	case before != nil:
		return before
	}
	return &Forecast{hash: NewHash(virtual)}
}

func (t *Forecast) find(user, tenant string) (*[2]guess, uint64) {
	who := t.hash.String(user)*31 + t.hash.String(tenant) | 1
	return &t.guesses[who>>1%uint64(len(t.guesses))], who
}

// Expect returns how many medians the tenant's work takes.
func (t *Forecast) Expect(user, tenant string) float64 {
	place, who := t.find(user, tenant)
	for _, g := range place {
		if g.who == who {
			return g.ratio
		}
	}
	return 1
}

// learn adds what it took once.
func (t *Forecast) learn(user, tenant string, ratio float64) {
	place, who := t.find(user, tenant)
	if place[1].who == who {
		place[0], place[1] = place[1], place[0]
	}
	if g := &place[0]; g.who == who {
		g.ratio += (ratio - g.ratio) / 8
		return
	}
	place[0], place[1] = guess{who, ratio}, place[0]
}
