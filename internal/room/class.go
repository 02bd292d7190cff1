package room

import "math"

// Classes is how many classes of priority there are. Class 0 goes last.
const Classes = 4

// class is the waiters of one priority.
type class struct {
	level         // its users
	n       int   // waiters
	units   int64 // that they wait for
	share   float64
	arrears float64 // units that it may be served out of turn
}

// SetShares guarantees classes a share of what is served, by units: while somebody
// waits in a class and somebody in one above it, the class is served that share of
// what is served then, and no more out of turn. What is served while nothing waits
// above it does not count. A class with a share also keeps that share of the
// places. The default is 0, strict priority. What is not a number or negative is
// taken for 0, and if all exceed 1 together they are cut in proportion.
func (r *Room) SetShares(shares [Classes]float64) {
	sum := 0.
	for i, s := range shares {
		shares[i] = max(0, min(s, 1))
		if math.IsNaN(s) {
			shares[i] = 0
		}
		sum += shares[i]
	}
	for i, s := range shares {
		r.classes[i].share = s / max(1, sum)
	}
}

// ByClass returns how many wait by class.
func (r *Room) ByClass() (n [Classes]int) {
	for i := range r.classes {
		n[i] = r.classes[i].n
	}
	return n
}

// highest returns the highest class that somebody waits in.
func (r *Room) highest() int {
	for i := Classes - 1; i > 0; i-- {
		if r.classes[i].n > 0 {
			return i
		}
	}
	return 0
}

// nextClass returns which class goes next. Somebody must be waiting.
func (r *Room) nextClass() int {
	highest := r.highest()
	for i := highest - 1; i >= 0; i-- {
		c := &r.classes[i]
		if c.n == 0 || c.share == 0 {
			continue
		}
		const chance = 1e-9 // sums of shares are not exact
		if units := cost(r.head(i)); c.arrears >= (1-c.share)*units-chance {
			return i
		}
	}
	return highest
}

// account enters that w, still waiting, is served.
func (r *Room) account(w *Waiter) {
	units := cost(w)
	for i := range r.highest() {
		c := &r.classes[i]
		if c.n == 0 || c.share == 0 {
			continue
		}
		c.arrears += c.share * units
		if i == int(w.Class) {
			c.arrears = max(0, c.arrears-units)
		}
	}
}

// reserved is how many of the places are a class's own: one at least, but never
// the only one there is, which a low class would keep from all above it.
func (r *Room) reserved(class int) int {
	share, places := r.classes[class].share, r.places()
	if share == 0 || places < 2 {
		return 0
	}
	return max(1, int(share*float64(places)))
}

// outranked returns the class that has to make room for one of w's: the lowest
// below it that has more than its own places; or, where w's own has fewer than
// those, the lowest of all that has more; or else w's own.
func (r *Room) outranked(w *Waiter) int {
	own := int(w.Class)
	below := own
	if r.classes[own].n < r.reserved(own) {
		below = Classes
	}
	for i := range below {
		if i != own && r.classes[i].n > r.reserved(i) {
			return i
		}
	}
	return own
}
