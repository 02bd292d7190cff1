package room

// crowds tells whose queue it is that stands. A flood makes a queue stand that the
// others, who are served before it, have no part in: when their waiters are many
// for a moment, because the limit goes down or a few come together, these will be
// served, and cutting them would be refusing those that the gate has slots for.
//
// So a standing queue is cut for the priorities whose work, with all above it,
// comes faster than anything is served; and of it those are spared of whose user
// hardly anybody waits, unless those of whom nobody waits alone come faster than
// that: then the flood is many users with little each. Of users without a name it is
// each tenant. (If tenants counted, inventing them would turn a flood into many with
// little each, and the cut on everybody.)
type crowds struct {
	came   [Classes]int // in this interval, by class
	firsts int          // of those that a place was sought for, those of whom nobody waited
	class  [Classes]bool
	many   bool
}

// modest is how many of a user wait at least where it is part of a flood: two may
// come together.
const modest = 3

// answering counts the waiters, up to most, of whoever answers for w: its user, or
// its tenant if that has no name.
func (r *Room) answering(w *Waiter, most int) (n int) {
	if w.User == "" {
		return r.count(r.tenant(w), most)
	}
	user := r.users.find(w.User, uint32(max(0, min(w.Class, Classes-1))))
	if user == 0 {
		return 0
	}
	for _, tenant := range r.inner[user].longest {
		if n += r.count(tenant, most-n); n >= most {
			break
		}
	}
	return n
}

// meets is told of a newcomer that finds nobody of its own waiting, or some.
func (c *crowds) meets(nobody bool) {
	if nobody {
		c.firsts++
	}
}

// judge closes an interval in which so many were served.
func (c *crowds) judge(judged bool, served int) {
	above := 0
	for i := Classes - 1; i >= 0; i-- {
		above += c.came[i]
		c.class[i] = judged && !draining(above, served)
	}
	c.many = judged && !draining(c.firsts, served)
	c.came, c.firsts = [Classes]int{}, 0
}
