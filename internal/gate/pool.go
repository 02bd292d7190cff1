package gate

import "github.com/weir-go/weir"

// Pool keeps the slots that permits are issued from. It is for gates that do not count
// by their slots. There are as many berths as were ever in use at a time.
type Pool[T any] struct {
	holder weir.Holder
	common weir.Slots // attention stays raised: every release comes to the holder
	chunks [][]Berth[T]
	free   *Berth[T]
	first  uint32
	shift  uint8
}

// Berth is a slot with what the gate keeps about its present use.
type Berth[T any] struct {
	weir.Slot
	Use  T
	next *Berth[T] // in the free list
}

// berthChunk is how many berths are made at once.
const berthChunk = 64

// Init sets who hears of releases. Slots are numbered from first on, in steps of
// 1<<shift. So pools with one holder can be told apart by number.
func (p *Pool[T]) Init(h weir.Holder, first uint32, shift uint8) {
	p.holder, p.first, p.shift = h, first, shift
	p.common.Attention.Store(1)
}

// Issue hands out a permit for a use.
func (p *Pool[T]) Issue(use *T) weir.Permit {
	if p.free == nil {
		p.grow()
	}
	b := p.free
	p.free = b.next
	b.Use = *use
	return b.Issue()
}

func (p *Pool[T]) grow() {
	chunk := make([]Berth[T], berthChunk)
	from := uint32(len(p.chunks)) * berthChunk
	p.chunks = append(p.chunks, chunk)
	for i := range chunk {
		b := &chunk[i]
		b.Init(p.holder, &p.common, p.first+(from+uint32(i))<<p.shift)
		b.next, p.free = p.free, b
	}
}

// At returns the berth that a permit of this pool stands for.
func (p *Pool[T]) At(permit weir.Permit) *Berth[T] {
	i := permit.Slot().ID() >> p.shift
	return &p.chunks[i/berthChunk][i%berthChunk]
}

// Recall ends a permit and sets use to what it was used for. It reports false if the
// permit was not live. Uses go by pointer because they are copied under a lock.
func (p *Pool[T]) Recall(permit weir.Permit, use *T) (sampled, ok bool) {
	live, sampled := permit.Slot().Recall(permit)
	if !live {
		return false, false
	}
	b := p.At(permit)
	*use = b.Use
	b.Use = *new(T)
	b.next, p.free = p.free, b
	return sampled, true
}
