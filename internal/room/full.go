package room

// Full reports whether a newcomer that names nobody, of class 0 or 1, would surely
// be refused. It would not where the newest goes first, or would go first for it,
// or where somebody else might have to make room.
func (r *Room) Full() bool {
	if len(r.expiry) < r.size {
		return false
	}
	if r.size == 0 {
		return true
	}
	if r.NewestFirst() || r.order == Adaptive && r.standing.is {
		return false
	}
	return r.classes[0].n == 0 && r.reserved(0) == 0 && r.classes[1].n >= r.reserved(1) && r.nameless()
}

// nameless reports whether nobody in class 1 has a name.
func (r *Room) nameless() bool {
	users := r.classes[1].longest
	if len(users) != 1 {
		return len(users) == 0
	}
	tenants := r.inner[users[0]].longest
	w := r.tenants.all[tenants[0]].back
	return len(tenants) == 1 && w.User == "" && w.Tenant == ""
}
