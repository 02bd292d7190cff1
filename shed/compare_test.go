package shed_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/shed"
)

// ways are the ways to shed that are compared: by what they go by, and how.
var ways = []struct {
	name     string
	pressure func(*world) func() (float64, bool)
	cursor   *shed.Cursor
}{
	{"thresholds, by load", byLoad, nil},
	{"cursor, by load", byLoad, &shed.Cursor{}},
	{"thresholds, by wait", byWait, nil},
	{"cursor, by wait", byWait, &shed.Cursor{}},
}

func byLoad(w *world) func() (float64, bool) { return w.load }
func byWait(w *world) func() (float64, bool) { return w.wait }

func (w *world) gate(t *testing.T, way int) *shed.Shedder {
	t.Helper()
	gate, err := shed.New(shed.Config{Pressure: ways[way].pressure(w), Cursor: ways[way].cursor, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

// What each way makes of a lasting overload, of which a tenth is critical: from
// the fifth second on, when it has settled.
func TestOverload(t *testing.T) {
	const (
		loadThresholds = iota
		loadCursor
		waitThresholds
		waitCursor
	)
	for _, load := range []float64{2, 5, 10} {
		var critical, useful [4]float64
		for way := range ways {
			w := newWorld(20, 1)
			gate := w.gate(t, way)
			calm := w.run(gate, 0.5, 5*time.Second)
			w.run(gate, load, 5*time.Second)
			c := w.run(gate, load, 5*time.Second)
			critical[way], useful[way] = c.share(weir.Critical), c.useful()*load
			t.Logf("%4gx %-28s background %5.3f  critical %5.3f  useful %.2f of the capacity  (at .5: %.4f let through)",
				load, ways[way].name, c.share(weir.Background), critical[way], useful[way], calm.useful())
			if w.inversions > 0 {
				t.Errorf("%gx, %s: critical work was refused %d times while lower work was let through", load, ways[way].name, w.inversions)
			}
		}
		// Thresholds let whole classes come and go; a cursor has no need to
		// touch the higher one. At 10x the critical alone is the capacity.
		least := map[float64]float64{2: 0.999, 5: 0.98, 10: 0.80}[load]
		for _, way := range []int{loadCursor, waitCursor} {
			if critical[way] < least {
				t.Errorf("%gx, %s: %.3f of critical work let through, want %v", load, ways[way].name, critical[way], least)
			}
			if useful[way] < 0.75 {
				t.Errorf("%gx, %s: %.2f of the capacity useful, want 0.75", load, ways[way].name, useful[way])
			}
		}
		if critical[loadThresholds] > critical[loadCursor]-0.2 || critical[waitThresholds] > critical[waitCursor]-0.2 {
			t.Errorf("%gx: thresholds let %.3f and %.3f of critical work through, which is no longer far less than a cursor",
				load, critical[loadThresholds], critical[waitThresholds])
		}
	}
}

// How many windows a cursor takes to follow a step of the load, up and down.
func TestStepOfTheLoad(t *testing.T) {
	for _, c := range []struct {
		way, up, down int // windows of a tenth of a second
	}{
		{way: 1, up: 5, down: 10},
		{way: 3, up: 5, down: 10},
	} {
		for _, load := range []float64{2, 5, 10} {
			w := newWorld(20, 1)
			gate := w.gate(t, c.way)
			w.run(gate, 0.5, 3*time.Second)
			up := w.until(gate, load, func(c count) bool { return c.passed()*load < 1.1 })
			w.run(gate, load, 5*time.Second) // until the queue of the first moments is gone
			down := w.until(gate, 0.5, func(c count) bool { return c.share(weir.Background) > 0.99 })
			t.Logf("%s: from 0.5 to %gx in %d windows, and back in %d", ways[c.way].name, load, up, down)
			if up > c.up || down > c.down {
				t.Errorf("%s: from 0.5 to %gx in %d windows and back in %d, want at most %d and %d",
					ways[c.way].name, load, up, down, c.up, c.down)
			}
		}
	}
}

// Half of the workers are gone: what was well before no longer is.
func TestLostCapacity(t *testing.T) {
	for _, way := range []int{1, 3} {
		w := newWorld(20, 1)
		gate := w.gate(t, way)
		w.run(gate, 5, 5*time.Second)
		for i := range w.free[:10] {
			w.free[i] += time.Hour
		}
		heap.Init(&w.free)
		w.run(gate, 5, 2*time.Second)
		c := w.run(gate, 5, 3*time.Second)
		useful := c.useful() * 5 * 2
		t.Logf("%s: %.2f of what is left is useful", ways[way].name, useful)
		if useful < 0.7 || c.share(weir.Critical) < c.share(weir.Background) {
			t.Errorf("%s: %.2f of what is left is useful, want 0.7; %.3f of critical and %.3f of background work let through",
				ways[way].name, useful, c.share(weir.Critical), c.share(weir.Background))
		}
	}
}

// passed is the part of all that was let through.
func (c *count) passed() float64 {
	offered, admitted := 0, 0
	for i := range c.offered {
		offered += c.offered[i]
		admitted += c.admitted[i]
	}
	return float64(admitted) / float64(offered)
}

// until counts the windows of a tenth of a second until one is as wanted.
func (w *world) until(gate *shed.Shedder, load float64, wanted func(count) bool) int {
	for n := range 1000 {
		if wanted(w.run(gate, load, 100*time.Millisecond)) {
			return n
		}
	}
	return 1000
}

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
	offered, admitted, late [weir.Classes]int
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
		if work.Priority == weir.Critical && gate.Level() < 3*shed.Levels/weir.Classes {
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
