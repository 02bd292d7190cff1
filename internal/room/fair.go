package room

// level shares what is served between flows: the users of a class, or the tenants
// of a user. It is start-time fair queueing (Goyal, Vin and Cheng 1996): each flow
// carries the virtual time at which its next waiter starts, its tag; the least tag
// goes next, and what is served moves its flow's tag on by units / weight. A
// flow's first waiter starts at the virtual time of its level, or at the flow's old
// tag while that is still ahead.
//
// In any time in which two flows both have somebody waiting, what they are served
// by weight differs by no more than one waiter's units by weight of each, and the
// credit that one of them may have come with, whatever the gate's speed does
// meanwhile.
//
// The paper's virtual time is the tag of whoever was served last. Here it stays
// behind that by a credit of a few turns: whoever comes after a pause may be served
// so many at once before those that always have somebody waiting. Else two requests
// of a light flow that happen to come together count as a flood for a whole round,
// and the more others there are the longer that is. The flow has to stay away for as
// many rounds before it has the credit again, so over time it gains nothing.
type level struct {
	ready   tags     // of those that have somebody waiting
	idle    tags     // of those that have not, as long as they are ahead of virtual time
	longest []uint32 // a heap of those that have somebody waiting, by load
	now     float64  // virtual time; never above the least tag
	weight  float64  // a user's own, as last heard
}

// credit is how many turns virtual time stays behind, each of the mean units. Where
// 16 flood a gate of two cores beside a hundred light users (S13b on B1) these wait
// 43, 32, 14, 12 and 12 ms at the 99th percentile with a credit of 0, 1, 2, 3 and 4.
const credit = 3

// usual keeps the mean of what is served at a time, of the last 16 or so.
type usual float64

func (u *usual) add(units float64) {
	if *u == 0 {
		*u = usual(units)
	}
	*u += (usual(units) - *u) / 16
}

// join is told that flow i, which may be idle or new, has somebody waiting now.
func (l *level) join(fs []spot, i uint32, turn int32, most int) {
	e := entry{l.now, turn, i}
	if fs[i].ready != 0 {
		e.tag = l.idle.drop(fs, i).tag
	}
	l.ready.push(fs, e, most)
}

// charge moves the tag of a flow that is served.
func (l *level) charge(fs []spot, i uint32, by float64, turn int32, behind float64) {
	l.now = max(l.now, l.ready[0].tag-behind)
	at := int(fs[i].ready - 1)
	l.ready[at].tag += by
	l.ready[at].turn = turn
	l.ready.down(fs, at)
	if l.now > rebase {
		l.restart()
	}
}

// Tags grow without bound while a level is never empty, and lose their fractions.
// So now and then they are counted from the present.
const rebase = 1 << 32

func (l *level) restart() {
	for _, all := range [2]tags{l.ready, l.idle} {
		for i := range all {
			all[i].tag -= l.now
		}
	}
	l.now = 0
}

// at returns flow i's entry, and the heap that it is in; nil if it is new.
func (l *level) at(fs []spot, i uint32) (*entry, tags) {
	at := fs[i].ready
	switch {
	case at == 0:
		return nil, nil
	case fs[i].longest != 0:
		return &l.ready[at-1], l.ready
	}
	return &l.idle[at-1], l.idle
}

// tag returns flow i's tag, or what it would be if it came now.
func (l *level) tag(fs []spot, i uint32) float64 {
	if e, _ := l.at(fs, i); e != nil {
		return e.tag
	}
	return l.now
}
