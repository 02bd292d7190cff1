package room

// tags is a heap of flows by their tags, of four children each. Where a flow is in
// it stands in its spot.
type tags []entry

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

func (h *tags) push(fs []spot, e entry, most int) {
	*h = append(extend(*h, most), e)
	fs[e.flow].ready = uint32(len(*h))
	h.up(fs, len(*h)-1)
}

// drop takes flow i out.
func (h *tags) drop(fs []spot, i uint32) (e entry) {
	at, last := int(fs[i].ready-1), len(*h)-1
	e = (*h)[at]
	fs[i].ready = 0
	moved := (*h)[last]
	*h = (*h)[:last]
	if at < last {
		h.put(fs, at, moved)
		h.settle(fs, at)
	}
	return e
}

// settle brings the entry at i to where it belongs.
func (h tags) settle(fs []spot, i int) {
	if !h.up(fs, i) {
		h.down(fs, i)
	}
}

func (h tags) up(fs []spot, i int) (moved bool) {
	e := h[i]
	for i > 0 {
		parent := (i - 1) / children
		if !e.before(h[parent]) {
			break
		}
		h.put(fs, i, h[parent])
		i, moved = parent, true
	}
	if moved {
		h.put(fs, i, e)
	}
	return moved
}

func (h tags) down(fs []spot, i int) {
	e, from := h[i], i
	for {
		first := children*i + 1
		if first >= len(h) {
			break
		}
		least := first
		for child := first + 1; child < min(first+children, len(h)); child++ {
			if h[child].before(h[least]) {
				least = child
			}
		}
		if !h[least].before(e) {
			break
		}
		h.put(fs, i, h[least])
		i = least
	}
	if i != from {
		h.put(fs, i, e)
	}
}

func (h tags) put(fs []spot, i int, e entry) {
	h[i] = e
	fs[e.flow].ready = uint32(i + 1)
}
