package gate

import "github.com/weir-go/weir/slot"

// Pool keeps the slots that permits are issued from. It is for gates that do not count
// by their slots. There are as many berths as were ever in use at a time.
type Pool[T any] struct {
	group  slot.Group // attention stays raised: every release comes to the holder
	chunks [][]berth[T]
	free   *berth[T]
	first  uint32
	shift  uint8
}

// berth is a slot with what the gate keeps about its present use.
type berth[T any] struct {
	slot.Slot
	Use  T
	next *berth[T] // in the free list
}

// berthChunk is how many berths are made at once.
const berthChunk = 64

// Init sets who hears of releases. Slots are numbered from first on, in steps of
// 1<<shift. So pools with one holder can be told apart by number.
func (p *Pool[T]) Init(h slot.Holder, first uint32, shift uint8) {
	p.group.Holder, p.first, p.shift = h, first, shift
	p.group.Attention.Store(1)
}

// Issue hands out a ticket for a use.
func (p *Pool[T]) Issue(use *T) slot.Ticket {
	if p.free == nil {
		p.grow()
	}
	b := p.free
	p.free = b.next
	b.Use = *use
	return b.Issue()
}

func (p *Pool[T]) grow() {
	chunk := make([]berth[T], berthChunk)
	from := uint32(len(p.chunks)) * berthChunk
	p.chunks = append(p.chunks, chunk)
	for i := range chunk {
		b := &chunk[i]
		b.Init(&p.group, p.first+(from+uint32(i))<<p.shift)
		b.next, p.free = p.free, b
	}
}

// At returns the berth that a ticket of this pool stands for.
func (p *Pool[T]) At(t slot.Ticket) *berth[T] {
	i := t.ID() >> p.shift
	return &p.chunks[i/berthChunk][i%berthChunk]
}

// Recall ends a ticket and sets use to what it was used for. It reports false if the
// ticket was not live. Uses go by pointer because they are copied under a lock.
func (p *Pool[T]) Recall(t slot.Ticket, use *T) (sampled, ok bool) {
	live, sampled := t.Recall()
	if !live {
		return false, false
	}
	b := p.At(t)
	*use = b.Use
	b.Use = *new(T)
	b.next, p.free = p.free, b
	return sampled, true
}
