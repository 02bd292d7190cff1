package room

// level shares what is served between flows: the users of a class, or the tenants
// of a user. It is start-time fair queueing (Goyal, Vin and Cheng 1996): each flow
// carries the virtual time at which its next waiter starts, its tag; the least tag
// goes next, and what is served moves its flow's tag on by units / weight. A
// flow's first waiter starts at the virtual time of its level, which is the tag of
// whoever was served last, or at the flow's old tag while that is still ahead.
//
// In any time in which two flows both have somebody waiting, what they are served
// by weight differs by no more than one waiter's units by weight of each,
// whatever the gate's speed does meanwhile.
type level struct {
	ready   []entry  // a heap of four children each, by tag; the first has somebody waiting
	longest []uint32 // a heap of those that have somebody waiting, by load
	now     float64  // virtual time; never above the least tag
	weight  float64  // a user's own, as last heard
}

// entry is a flow's tag. Among equal tags the lesser turn goes first.
type entry struct {
	tag  float64
	turn int32
	flow uint32
}

func (e entry) before(o entry) bool {
	return e.tag < o.tag || e.tag == o.tag && e.turn < o.turn
}

const children = 4

// join is told that flow i, which may be idle or new, has somebody waiting now.
func (l *level) join(fs []spot, i uint32, turn int32, most int) {
	at := fs[i].ready
	if at == 0 {
		l.ready = append(extend(l.ready, most), entry{l.now, turn, i})
		at = uint32(len(l.ready))
		fs[i].ready = at
	} else {
		l.ready[at-1].turn = turn
	}
	if len(l.ready) > 1 {
		l.settle(fs, int(at-1))
	}
}

// charge moves the tag of a flow that is served.
func (l *level) charge(fs []spot, i uint32, by float64, turn int32) {
	l.now = l.ready[0].tag
	at := int(fs[i].ready - 1)
	l.ready[at].tag += by
	l.ready[at].turn = turn
	l.down(fs, at)
	if l.now > rebase {
		l.restart()
	}
}

// Tags grow without bound while a level is never empty, and lose their fractions.
// So now and then they are counted from the present.
const rebase = 1 << 32

func (l *level) restart() {
	for i := range l.ready {
		l.ready[i].tag -= l.now
	}
	l.now = 0
}

// drop takes flow i out of the heap of tags.
func (l *level) drop(fs []spot, i uint32) {
	at, last := int(fs[i].ready-1), len(l.ready)-1
	fs[i].ready = 0
	moved := l.ready[last]
	l.ready = l.ready[:last]
	if at < last {
		l.ready[at] = moved
		fs[moved.flow].ready = uint32(at + 1)
		l.settle(fs, at)
	}
}

// settle brings the entry at i to where it belongs.
func (l *level) settle(fs []spot, i int) {
	if !l.up(fs, i) {
		l.down(fs, i)
	}
}

func (l *level) up(fs []spot, i int) (moved bool) {
	e := l.ready[i]
	for i > 0 {
		parent := (i - 1) / children
		if !e.before(l.ready[parent]) {
			break
		}
		l.put(fs, i, l.ready[parent])
		i, moved = parent, true
	}
	if moved {
		l.put(fs, i, e)
	}
	return moved
}

func (l *level) down(fs []spot, i int) {
	e, from := l.ready[i], i
	for {
		first := children*i + 1
		if first >= len(l.ready) {
			break
		}
		least := first
		for child := first + 1; child < min(first+children, len(l.ready)); child++ {
			if l.ready[child].before(l.ready[least]) {
				least = child
			}
		}
		if !l.ready[least].before(e) {
			break
		}
		l.put(fs, i, l.ready[least])
		i = least
	}
	if i != from {
		l.put(fs, i, e)
	}
}

func (l *level) put(fs []spot, i int, e entry) {
	l.ready[i] = e
	fs[e.flow].ready = uint32(i + 1)
}

// tag returns flow i's tag, or what it would be if it came now.
func (l *level) tag(fs []spot, i uint32) float64 {
	if at := fs[i].ready; at != 0 {
		return l.ready[at-1].tag
	}
	return l.now
}
