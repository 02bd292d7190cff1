package shed_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/shed"
)

// world is a server on virtual time: workers with exponential service times of
// 10 ms behind a queue in order of arrival, and an open loop of Poisson arrivals
// of 1,000 users in front of the gate. A tenth of the work is critical, the rest
// background.
type world struct {
	random  *rand.Rand
	now     time.Duration
	workers int
	free    times // when each worker is free
	pending times // when admitted work ends

	count
	inversions int // critical work refused while background was let through
}

// count is what came, by class, what was let through, and what of that was late.
type count struct {
	offered, admitted, late [shed.Classes]int
}

// share is how much of a class was let through.
func (c *count) share(p weir.Priority) float64 {
	i := int(p - weir.Background)
	return float64(c.admitted[i]) / float64(c.offered[i])
}

// useful is what was let through and in time, in multiples of what was offered.
func (c *count) useful() float64 {
	offered, good := 0, 0
	for i := range c.offered {
		offered += c.offered[i]
		good += c.admitted[i] - c.late[i]
	}
	return float64(good) / float64(offered)
}

// users are the names of those who send work.
var users = func() (names [1000]string) {
	for i := range names {
		names[i] = fmt.Sprint("user-", i)
	}
	return names
}()

const (
	service  = 10 * time.Millisecond
	deadline = 500 * time.Millisecond
)

func newWorld(workers int, seed uint64) *world {
	return &world{random: rand.New(rand.NewPCG(seed, 1)), workers: workers, free: make(times, workers)}
}

// load is what is in the server over its workers.
func (w *world) load() (float64, bool) {
	for len(w.pending) > 0 && w.pending[0] <= w.now {
		heap.Pop(&w.pending)
	}
	return float64(len(w.pending)) / float64(w.workers), true
}

// wait is how long a newcomer would wait, over DAGOR's 20 ms.
func (w *world) wait() (float64, bool) {
	return float64(max(w.free[0]-w.now, 0)) / float64(20*time.Millisecond), true
}

func (w *world) clock() time.Duration { return w.now }

// run offers load times the capacity for so long and returns what came of it.
func (w *world) run(gate *shed.Shedder, load float64, length time.Duration) count {
	w.count = count{}
	until := w.now + length
	gap := float64(service) / float64(w.workers) / load
	for {
		next := w.now + time.Duration(w.random.ExpFloat64()*gap)
		for {
			at, ok := gate.Next()
			if !ok || at > min(next, until) {
				break
			}
			w.now = max(w.now, at)
			gate.Step()
		}
		if next > until {
			w.now = until
			return w.count
		}
		w.now = next
		w.arrive(gate)
	}
}

func (w *world) arrive(gate *shed.Shedder) {
	work := weir.Work{User: users[w.random.IntN(len(users))], Priority: weir.Background}
	if w.random.IntN(10) == 0 {
		work.Priority = weir.Critical
	}
	class := int(work.Priority - weir.Background)
	took := time.Duration(w.random.ExpFloat64() * float64(service))
	w.offered[class]++
	if _, err := gate.TryAdmit(work); err != nil {
		if work.Priority == weir.Critical && gate.Level() < 3*shed.Users {
			w.inversions++
		}
		return
	}
	w.admitted[class]++
	begin := max(w.now, w.free[0])
	end := begin + took
	w.free[0] = end
	heap.Fix(&w.free, 0)
	heap.Push(&w.pending, end)
	if end-w.now > deadline {
		w.late[class]++
	}
}

// times is a heap of moments, the soonest first.
type times []time.Duration

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i] < t[j] }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *times) Push(x any)        { *t = append(*t, x.(time.Duration)) }
func (t *times) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = old[:len(old)-1]
	return last
}
