package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/station"
)

// world is one run: everything that moves on virtual time. It is one goroutine;
// whatever happens, happens in the order of the events.
type world struct {
	now    time.Duration
	end    time.Duration
	events eventQueue
	server server
	// consumer is behind the server, nil if the scenario has none.
	consumer *consumer
	fronts   []*front
	spread   *rand.Rand // which gateway a request goes to

	outside Outside // nil: the policy's gates, on virtual time

	classes  []*class
	attempts []*attempt
	spare    []int32 // attempts to use again

	phases   []span
	phase    *span     // the present one
	failing  int       // admitted work that will be failed, beside the server's
	delayed  []delayed // for a process that is suspended
	leaving  string    // what becomes of work whose client leaves: hold, release or cancel
	requests int       // still to be offered
	counted  bool      // the scenario says how many there are
	underway int       // requests whose task is not over
	steps    int       // of the gates since time last moved on

	stats    *statistics
	ledger   *ledger // nil: classes are not counted separately
	untold   bool    // the gates do not learn who asks
	clients  []client
	progress func(time.Duration)
}

// front is one gateway: its gates, as the simulator needs them.
type front struct {
	gates []weir.Arriver // by class
	limit func() int64   // in force now
	next  func() (time.Duration, bool)
	step  func()
	close func()
	// setCost is [policy.Policy.SetCost].
	setCost func(set func(gate string, units int64), units int64)
}

// stuckAfter bounds how often in a row gates may ask to be stepped without time
// passing.
const stuckAfter = 10_000

// checkEvery is after how many events at the latest it is asked whether the run is to go on.
const checkEvery = 1 << 16

// run plays the scenario to its end.
func (w *world) run(ctx context.Context) error {
	w.begin()
	for n := 1; ; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err() // a bin of time may hold any number of events
		}
		at, what := w.soonest()
		if at > w.end {
			break
		}
		if w.pass(at) {
			continue
		}
		if at > w.now {
			w.now, w.steps = at, 0
		}
		switch what {
		case serverNext:
			if job, finished := w.server.Step(w.now); finished {
				w.finished(w.attempts[job])
			}
		case consumerNext:
			w.consumer.step(w)
		case gatesNext:
			if w.steps++; w.steps > stuckAfter {
				return fmt.Errorf("sim: at %v a gate asks again and again to be stepped: its Next does not move on", w.now)
			}
			w.stepGates()
		case eventNext:
			if err := w.handle(ctx, w.events.Pop()); err != nil {
				return err
			}
		}
	}
	if w.requests == 0 && !w.counted {
		return fmt.Errorf("sim: at %v more than %g requests were offered: set requests to end the run sooner, or let clients think or pause longer", w.now, float64(maxRequests))
	}
	w.now = max(w.now, w.end)
	w.stats.finish(w.now)
	return nil
}

// What is due next. At the same instant the backend goes first, then the gates, then the clients.
// So slots are given back before they are asked for.
const (
	serverNext = iota
	consumerNext
	gatesNext
	eventNext
)

func (w *world) soonest() (time.Duration, int) {
	at, what := w.server.Next(), serverNext
	if w.consumer != nil {
		if t := w.consumer.queue.Next(); t < at {
			at, what = t, consumerNext
		}
	}
	for _, f := range w.fronts {
		if t, ok := f.next(); ok && t < at && !w.phase.suspended {
			at, what = t, gatesNext
		}
	}
	if t := w.events.next(); t < at {
		at, what = t, eventNext
	}
	return at, what
}

func (w *world) stepGates() {
	for _, f := range w.fronts {
		if t, ok := f.next(); ok && t <= w.now {
			f.step()
		}
	}
}

func (w *world) begin() {
	w.phase = &w.phases[0]
	for i, p := range w.phases {
		w.events.push(event{at: p.from, kind: eventPhase, subject: int32(i)})
	}
	w.events.push(event{at: w.stats.binWidth, kind: eventBin})
	if w.consumer != nil {
		w.consumer.begin(w)
	}
	for _, c := range w.classes {
		w.await(c)
		w.gather(c)
	}
}

// await schedules the next arrival of a class.
func (w *world) await(c *class) {
	if at := c.arrivals.next(); at < w.end {
		w.events.push(event{at: at, kind: eventArrival, subject: c.index})
	}
}

func (w *world) handle(ctx context.Context, e event) error {
	switch e.kind {
	case eventArrival:
		w.arrival(w.classes[e.subject])
	case eventTimeout:
		if a := w.attempts[e.subject]; a.generation == e.generation {
			w.leave(a)
		}
	case eventRetry:
		w.launch(w.attempts[e.subject])
	case eventClient:
		w.requestNext(&w.clients[e.subject])
	case eventInner:
		w.innerOver(w.attempts[e.subject])
	case eventError:
		w.failing--
		w.finished(w.attempts[e.subject])
	case eventPhase:
		w.enterPhase(&w.phases[e.subject])
	case eventConsumer:
		w.consumer.enterPhase(w, e.subject)
	case eventReading:
		w.consumer.read(w)
	case eventBin:
		w.stats.closeBin(w.now)
		w.events.push(event{at: e.at + w.stats.binWidth, kind: eventBin})
		if w.progress != nil {
			w.progress(w.now)
		}
		return ctx.Err()
	}
	return nil
}

func (w *world) enterPhase(p *span) {
	w.phase = p
	w.server.setCapacity(w.now, p.capacity)
	w.stats.setCapacity(w.now, p.capacity, p.work)
	if !p.suspended {
		w.resume()
	}
}

// arrival is a new request.
func (w *world) arrival(c *class) {
	if !w.offers() {
		return
	}
	w.await(c)
	if c.cache != nil && c.cache.lookup(w.now) {
		w.stats.hit(w.now)
		return
	}
	w.request(c, c.pickTenant(), 0)
}

// offers reports whether there is another request to offer. Without one the run ends. Clients in a loop
// ask at once, so with them it goes on until all that was offered is over.
func (w *world) offers() bool {
	if w.requests == 0 {
		if len(w.clients) == 0 || w.underway == 0 {
			w.end = min(w.end, w.now)
		}
		return false
	}
	w.requests--
	return true
}

// request sends a new request. client is the number of who sends it, 0 for
// nobody in particular.
func (w *world) request(c *class, tenant, client int32) {
	a := w.newAttempt()
	a.class, a.tries, a.call, a.client, a.born = c, 1, 1, client, w.now
	if c.cache != nil {
		a.key = c.cache.key
	}
	a.work = w.phase.work * c.draw(c.service)
	a.tenant = tenant
	a.front = 0
	if len(w.fronts) > 1 {
		a.front = w.spread.IntN(len(w.fronts))
	}
	w.underway++
	w.stats.offered(w.now)
	if w.ledger != nil {
		w.ledger.offered(w.now, a)
	}
	w.beginCall(a)
	w.launch(a)
}

// never is later than everything.
const never = station.Never

// eventKind says what an event does.
type eventKind uint8

const (
	eventArrival  eventKind = iota // subject: the class with its next request due
	eventTimeout                   // subject: the attempt; its client loses patience
	eventRetry                     // subject: the attempt that is made again
	eventPhase                     // subject: the phase that begins
	eventBin                       // a bin of the time series closes
	eventError                     // subject: the attempt that the backend fails
	eventClient                    // subject: the client with its next request due
	eventInner                     // subject: the attempt; its nested calls are over
	eventConsumer                  // subject: the phase of the consumer that begins
	eventReading                   // the consumer's backlog is read
)

// event is one thing that is due. generation shows if the subject's number in its pool now belongs
// to another subject.
type event struct {
	at         time.Duration
	order      uint32 // ties: first come, first served
	generation uint32
	subject    int32
	kind       eventKind
}

// Before puts events in order of time. At the same time, the one that was pushed first is first.
func (e event) Before(f event) bool {
	return e.at < f.at || e.at == f.at && int32(e.order-f.order) < 0
}

// eventQueue is what is due, in order. It keeps its memory, so a steady state allocates nothing.
type eventQueue struct {
	station.Heap[event]
	order uint32
}

func (q *eventQueue) push(e event) {
	e.order = q.order
	q.order++
	q.Push(e)
}

// next returns when the first event is due.
func (q *eventQueue) next() time.Duration {
	if q.Len() == 0 {
		return never
	}
	return q.First().at
}
