package room

// Who has to go when a level is too full is the last of the flow with the
// greatest load, kept at the root of a heap. Among equal loads it is the flow
// whose turn comes last, so that among flows of one waiter each the last waiter is
// the last.

// worse reports whether a would have to go before b.
func (l *level) worse(fs []spot, a, b uint32) bool {
	if fs[a].load != fs[b].load {
		return fs[a].load > fs[b].load
	}
	return l.ready[fs[b].ready-1].before(l.ready[fs[a].ready-1])
}

// weigh puts flow i where it belongs after its load or its tag has changed.
func (l *level) weigh(fs []spot, i uint32, most int) {
	if fs[i].longest == 0 {
		l.longest = append(extend(l.longest, most), i)
		fs[i].longest = uint32(len(l.longest))
	}
	if len(l.longest) > 1 {
		l.sift(fs, int(fs[i].longest-1))
	}
}

// unload takes flow i out: nobody of it waits.
func (l *level) unload(fs []spot, i uint32) {
	at, last := int(fs[i].longest-1), len(l.longest)-1
	fs[i].longest, fs[i].load = 0, 0
	moved := l.longest[last]
	l.longest = l.longest[:last]
	if at < last {
		l.longest[at] = moved
		fs[moved].longest = uint32(at + 1)
		l.sift(fs, at)
	}
}

func (l *level) sift(fs []spot, i int) {
	moved := l.longest[i]
	for i > 0 {
		parent := (i - 1) / children
		if !l.worse(fs, moved, l.longest[parent]) {
			break
		}
		l.set(fs, i, l.longest[parent])
		i = parent
	}
	for {
		first := children*i + 1
		if first >= len(l.longest) {
			break
		}
		worst := first
		for child := first + 1; child < min(first+children, len(l.longest)); child++ {
			if l.worse(fs, l.longest[child], l.longest[worst]) {
				worst = child
			}
		}
		if !l.worse(fs, l.longest[worst], moved) {
			break
		}
		l.set(fs, i, l.longest[worst])
		i = worst
	}
	l.set(fs, i, moved)
}

func (l *level) set(fs []spot, i int, flow uint32) {
	l.longest[i] = flow
	fs[flow].longest = uint32(i + 1)
}
