package keyed

// The rooms with somebody in them are kept in a binary heap, the one that somebody
// has to leave soonest at the root.

func (s *shard) sift(i int) {
	for i > 0 && s.before(i, (i-1)/2) {
		s.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.expiry); child++ {
			if s.before(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

func (s *shard) before(i, j int) bool { return s.expiry[i].room.Expiry() < s.expiry[j].room.Expiry() }

func (s *shard) swap(i, j int) {
	s.expiry[i], s.expiry[j] = s.expiry[j], s.expiry[i]
	s.expiry[i].heap, s.expiry[j].heap = i, j
}
