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
	for i > 0 {
		parent := (i - 1) / 2
		if r.expiry[parent].Expires <= r.expiry[i].Expires {
			return
		}
		r.swap(i, parent)
		i = parent
	}
}

func (r *Room) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.expiry); child++ {
			if r.expiry[child].Expires < r.expiry[least].Expires {
				least = child
			}
		}
		if least == i {
			return
		}
		r.swap(i, least)
		i = least
	}
}

func (r *Room) swap(i, j int) {
	r.expiry[i], r.expiry[j] = r.expiry[j], r.expiry[i]
	r.expiry[i].heap, r.expiry[j].heap = int32(i+1), int32(j+1)
}
