package room

// The waiters are kept in a binary heap as well, soonest expiry at the root,
// each knowing its index, so that any of them can leave in O(log n).

func (r *Room) push(w *Waiter) {
	r.expiry = append(extend(r.expiry, r.size), w)
	w.heap = int32(len(r.expiry))
	r.up(len(r.expiry) - 1)
}

func (r *Room) remove(i int) {
	last := len(r.expiry) - 1
	r.expiry[i].heap = 0
	if i != last {
		moved := r.expiry[last]
		r.expiry[i] = moved
		moved.heap = int32(i + 1)
	}
	r.expiry[last] = nil
	r.expiry = r.expiry[:last]
	if i < last {
		r.up(i)
		r.down(i)
	}
}

func (r *Room) up(i int) {
	w := r.expiry[i]
	for i > 0 {
		parent := (i - 1) / 2
		if r.expiry[parent].Expires <= w.Expires {
			break
		}
		r.put(i, r.expiry[parent])
		i = parent
	}
	r.put(i, w)
}

func (r *Room) down(i int) {
	w := r.expiry[i]
	for {
		least, at := i, w.Expires
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.expiry); child++ {
			if e := r.expiry[child].Expires; e < at {
				least, at = child, e
			}
		}
		if least == i {
			break
		}
		r.put(i, r.expiry[least])
		i = least
	}
	r.put(i, w)
}

func (r *Room) put(i int, w *Waiter) {
	r.expiry[i] = w
	w.heap = int32(i + 1)
}
