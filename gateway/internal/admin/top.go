package admin

import (
	"container/heap"
	"slices"
	"strings"
	"sync"
)

// candidates is how many names are counted for each that has series of its own.
const candidates = 8

// leastPromoted is how often a name must certainly have come before it can replace another name
// with series. So a flood of names that come once changes nothing.
const leastPromoted = 16

// top keeps a T for each of a bounded number of names, those that come most often. They have series
// of their own; the rest share one. Names without series are candidates. Space-saving counts them
// (Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent and Top-k Elements in Data
// Streams, ICDT 2005). It evicts the rarest name when it is full, and knows by how much a count may
// be too high. A candidate replaces the rarest name with series if it certainly came twice as
// often. Counts fade, so that the series follow the present.
//
// An event counts for its name if that has series at the moment, else for the rest. So no
// count ever falls, but the series of a name may begin late, end, and begin again at 0.
type top[T any] struct {
	mu    sync.Mutex
	most  int // with series
	named map[string]*entry[T]
	rest  T
	known map[string]*entry[T] // the candidates
	heap  byCount[T]           // the same, the rarest first
	seen  int                  // since the last fading
	free  int                  // series that no name has had yet
	moves int                  // promotions left until the next fading
	floor uint64               // at most the least count of those with series
}

// entry is a name that has series, or is a candidate.
type entry[T any] struct {
	name  string
	count uint64 // how often it came lately; of a candidate an upper bound
	wrong uint64 // by how much count may be too high
	at    int    // in the heap
	kept  T
}

func newTop[T any](most int) *top[T] {
	t := &top[T]{named: make(map[string]*entry[T]), known: make(map[string]*entry[T])}
	t.setMost(most)
	return t
}

// orNew returns t with another number of names that have series, or a new one if t is nil.
func (t *top[T]) orNew(most int) *top[T] {
	if t == nil {
		return newTop[T](most)
	}
	t.setMost(most)
	return t
}

// setMost sets how many names have series of their own.
func (t *top[T]) setMost(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n == t.most {
		return
	}
	t.free += max(0, n-t.most)
	for t.most = n; len(t.named) > n; {
		delete(t.named, t.rarest().name)
	}
	t.free = min(t.free, n-len(t.named))
	t.known, t.heap = make(map[string]*entry[T]), nil
	t.moves, t.floor = n, 0
}

// size is how many names have series of their own.
func (t *top[T]) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.most
}

// add counts that name has come, and lets count change what is kept for it.
func (t *top[T]) add(name string, count func(*T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count(t.keptFor(name))
}

// keptFor returns what is kept for name, which has come once more.
func (t *top[T]) keptFor(name string) *T {
	if t.most == 0 || name == Rest {
		return &t.rest
	}
	t.fade()
	e := t.named[name]
	if e == nil {
		e = t.countCandidate(name)
	}
	if e == nil {
		return &t.rest
	}
	e.count++
	return &e.kept
}

// fade halves all counts, once in so many events.
func (t *top[T]) fade() {
	const each = 100
	if t.seen++; t.seen < each*candidates*t.most {
		return
	}
	t.seen, t.moves, t.floor = 0, t.most, t.floor/2
	for _, e := range t.named {
		e.count /= 2
	}
	for _, e := range t.heap { // which keeps their order
		e.count, e.wrong = e.count/2, e.wrong/2
	}
}

// countCandidate counts a name without series, and returns it if it has got series by that.
func (t *top[T]) countCandidate(name string) *entry[T] {
	if t.free > 0 {
		t.free--
		e := &entry[T]{name: name}
		t.named[name] = e
		return e
	}
	e := t.spaceSave(name)
	sure := e.count - e.wrong
	if sure < leastPromoted || sure <= 2*t.floor || t.moves == 0 {
		return nil
	}
	out := t.rarest()
	if t.floor = out.count; sure <= 2*t.floor {
		return nil
	}
	t.moves--
	delete(t.known, name)
	delete(t.named, out.name)
	in := &entry[T]{name: name, count: sure - 1} // the caller counts this one
	t.named[name] = in
	*e = entry[T]{name: out.name, count: out.count, at: e.at}
	t.known[e.name] = e
	heap.Fix(&t.heap, e.at)
	return in
}

// spaceSave counts a candidate, in the place of the rarest if there is no room.
func (t *top[T]) spaceSave(name string) *entry[T] {
	e := t.known[name]
	switch {
	case e != nil:
		e.count++
	case len(t.heap) < candidates*t.most:
		e = &entry[T]{name: name, count: 1}
		heap.Push(&t.heap, e)
	default:
		e = t.heap[0]
		delete(t.known, e.name)
		e.name, e.wrong = name, e.count
		e.count++
	}
	t.known[name] = e
	heap.Fix(&t.heap, e.at)
	return e
}

// rarest returns the name with series that came least often.
func (t *top[T]) rarest() *entry[T] {
	var least *entry[T]
	for _, e := range t.named {
		if least == nil || e.count < least.count || e.count == least.count && e.name < least.name {
			least = e
		}
	}
	return least
}

// byCount is a heap of candidates for package heap.
type byCount[T any] []*entry[T]

func (h byCount[T]) Len() int           { return len(h) }
func (h byCount[T]) Less(i, j int) bool { return h[i].count < h[j].count }

func (h byCount[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push is called by heap.Push, to append a candidate.
func (h *byCount[T]) Push(e any) {
	e.(*entry[T]).at = len(*h)
	*h = append(*h, e.(*entry[T]))
}

// Pop is for package heap. Nobody calls it: a candidate gives its place to another.
func (h *byCount[T]) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Rest is the label of all names without series. A name that is really called so is one of
// them.
const Rest = "other"

// each calls visit with what is kept for each name that has series, sorted by name, and with
// the rest at last.
func (t *top[T]) each(visit func(name string, kept T)) {
	t.mu.Lock()
	rest := t.rest
	named := make([]entry[T], 0, len(t.named))
	for _, e := range t.named {
		named = append(named, *e)
	}
	t.mu.Unlock()
	slices.SortFunc(named, func(a, b entry[T]) int { return strings.Compare(a.name, b.name) })
	for i := range named {
		visit(named[i].name, named[i].kept)
	}
	visit(Rest, rest)
}
