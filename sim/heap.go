package sim

import "time"

// never is later than everything.
const never = time.Duration(1<<63 - 1)

// eventKind says what an event does.
type eventKind uint8

const (
	eventArrival eventKind = iota // subject: the class whose next request is due
	eventTimeout                  // subject: the attempt whose client loses patience
	eventRetry                    // subject: the attempt that is made again
	eventPhase                    // subject: the phase that begins
	eventBin                      // a bin of the time series closes
	eventError                    // subject: the attempt that the backend fails
	eventClient                   // subject: the client whose next request is due
	eventInner                    // subject: the attempt whose nested calls are over
)

// event is one thing that is due. generation guards against a subject whose
// place in its pool has been taken by another since.
type event struct {
	at         time.Duration
	order      uint32 // ties: first come, first served
	generation uint32
	subject    int32
	kind       eventKind
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && int32(e.order-f.order) < 0
}

// eventQueue is a heap of events with four children to a node, which is
// shallower than two and touches fewer cache lines. It keeps its memory, so a
// steady state allocates nothing.
type eventQueue struct {
	heap  []event
	order uint32
}

func (q *eventQueue) push(e event) {
	e.order = q.order
	q.order++
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = e
}

// next returns when the first event is due.
func (q *eventQueue) next() time.Duration {
	if len(q.heap) == 0 {
		return never
	}
	return q.heap[0].at
}

// pop removes and returns the first event.
func (q *eventQueue) pop() event {
	first := q.heap[0]
	last := q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	if len(q.heap) > 0 {
		q.sink(last)
	}
	return first
}

// sink puts e at the root and lets it fall to its place.
func (q *eventQueue) sink(e event) {
	h, i := q.heap, 0
	for {
		first := 4*i + 1
		if first >= len(h) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(h)); c++ {
			if h[c].before(&h[least]) {
				least = c
			}
		}
		if !h[least].before(&e) {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = e
}
