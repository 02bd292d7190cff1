package sim

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/throttle"
)

// attemptState is where an attempt is.
type attemptState uint8

const (
	stateSpare   attemptState = iota // not in use
	stateResting                     // will be made after a back-off
	stateWaiting                     // in a gate's wait room
	stateInside                      // in the backend
	stateHeld                        // before a process that is suspended
	stateCalling                     // has its answer, and makes nested calls
)

// attempt is one try of a client to get its request answered. Attempts are
// pooled; each keeps its callback, so that waiting allocates nothing here.
type attempt struct {
	index      int32
	generation uint32
	state      attemptState
	left       bool // the client is gone, the backend works on
	released   bool // its slot was given back when the client left
	failed     bool // the backend answers with an error
	idle       bool // it does so without working on it
	overloaded bool // the error says that the backend has too much to do

	class  *class
	front  int
	tenant int32 // its number in the class
	work   float64
	tries  int   // this one included
	key    int32 // what it asks for, of a class with a cache
	call   int32 // of the task, from 1
	client int32 // who sends it, from 1; 0: nobody in particular

	outer  *attempt // its handler makes this nested call
	riding bool     // on the permit of outer
	done   bool     // its client has heard what became of its task

	process *throttle.Call // nil: its client belongs to none
	guard   weir.Permit    // of that process
	begun   time.Duration  // when the first attempt of its call was made

	born   time.Duration // when its request came
	start  time.Duration // when it was meant to be sent
	permit weir.Permit
	waiter weir.Waiter
	wake   func(weir.Permit, error)
}

func (w *world) newAttempt() *attempt {
	if n := len(w.spare); n > 0 {
		a := w.attempts[w.spare[n-1]]
		w.spare = w.spare[:n-1]
		return a
	}
	a := &attempt{index: int32(len(w.attempts))}
	a.wake = func(p weir.Permit, err error) { w.woken(a, p, err) }
	w.attempts = append(w.attempts, a)
	return a
}

func (w *world) recycle(a *attempt) {
	a.generation++
	a.state, a.left, a.released, a.failed = stateSpare, false, false, false
	a.riding, a.done = false, false
	a.permit, a.waiter, a.outer = weir.Permit{}, nil, nil
	a.process, a.guard = nil, weir.Permit{}
	w.spare = append(w.spare, a.index)
}

// launch sends an attempt to its gate.
func (w *world) launch(a *attempt) {
	c := a.class
	a.start = w.now
	if !w.sends(a) {
		return
	}
	w.stats.attempted(w.now)
	if w.ledger != nil {
		w.ledger.attempted(w.now, a)
	}
	if c.timeout > 0 {
		w.events.push(event{
			at: a.leftAt(w.now), kind: eventTimeout,
			subject: a.index, generation: a.generation,
		})
	}
	if w.phase.suspended {
		a.state = stateHeld
		w.delayed = append(w.delayed, delayed{a, false})
		return
	}
	w.arrive(a)
}

// arrive brings an attempt before its gate.
func (w *world) arrive(a *attempt) {
	gate := w.fronts[a.front].gates[a.class.index]
	if p, ok := w.ride(a, gate); ok {
		w.admitted(a, p)
		return
	}
	a.state = stateWaiting
	p, waiter, err := gate.Arrive(w.workOf(a), a.wake)
	switch err {
	case nil:
		w.admitted(a, p)
	case weir.ErrWaiting:
		a.waiter = waiter
		if w.ledger != nil {
			w.ledger.queued(w.now, a)
		}
	default:
		w.refused(a, err)
	}
}

// woken is a gate's late answer to an attempt that waited.
func (w *world) woken(a *attempt, p weir.Permit, err error) {
	switch {
	case a.left: // its client left while the answer was on its way
		p.Cancel()
		w.recycle(a)
	case err != nil:
		w.refused(a, err)
	default:
		w.admitted(a, p)
	}
}

func (w *world) admitted(a *attempt, p weir.Permit) {
	if w.ledger != nil {
		w.ledger.admitted(w.now, a)
	}
	a.permit, a.waiter, a.state = p, nil, stateInside
	w.stats.admitted(w.now, w.now-a.start)
	e := w.phase.errors
	if e != nil && a.class.fate.Float64() < e.odds(w.server.Len()) {
		a.failed, a.overloaded = true, e.As == "overload"
	}
	if a.idle = a.failed && e.Conflict == 0; a.idle {
		w.failing++
		after := cmp.Or(time.Duration(e.After), time.Millisecond)
		w.events.push(event{at: w.now + after, kind: eventError, subject: a.index})
	} else {
		w.server.Enter(w.now, a.index, a.work)
	}
	w.countInside()
	if over := float64(w.inside()) - w.stats.limit.value; over > 0 {
		w.stats.overLimit(w.now, float64(int64(w.inside())-w.limitNow()))
	}
}

// odds is how likely a request fails, with so many others inside.
func (e *Errors) odds(others int) float64 {
	if e.Conflict > 0 {
		return 1 - math.Pow(1-e.Conflict, float64(others))
	}
	return cmp.Or(e.Share, 1)
}

// inside counts what has been admitted and not been answered.
func (w *world) inside() int { return w.server.Len() + w.failing + w.held() }

func (w *world) countInside() { w.stats.setInside(w.now, w.inside()) }

// limitNow is the sum of the gateways' limits. The statistics learn of a change
// a moment after the first work that it let in.
func (w *world) limitNow() int64 {
	var sum int64
	for _, f := range w.fronts {
		sum += f.limit()
	}
	return sum
}

func (w *world) refused(a *attempt, err error) {
	r := weir.AsRejection(err)
	reason, after := weir.ReasonNone, time.Duration(0)
	if r != nil {
		reason, after = r.Reason, r.RetryAfter
	}
	w.stats.refused(w.now, w.now-a.start, reason)
	if w.ledger != nil {
		w.ledger.refused(w.now, a, reason)
	}
	answer := w.answerOf(a, err)
	a.guard.Done(answer.Outcome)
	if !w.retry(a, a.class.retryOnRefusal, after) && !w.recall(a, answer) {
		w.over(a, false)
	}
	w.recycle(a)
}

// leave is the end of a client's patience.
func (w *world) leave(a *attempt) {
	a.guard.Done(weir.Overload)
	switch a.state {
	case stateWaiting:
		w.stats.gaveUp(w.now)
		if w.ledger != nil {
			w.ledger.gaveUp(w.now, a)
		}
		w.abandon(a)
		if a.waiter.Cancel() {
			w.recycle(a)
			return
		}
		a.left = true
	case stateHeld:
		a.left = true
		w.stats.gaveUp(w.now)
		w.abandon(a)
	case stateInside:
		a.left = true
		w.stats.abandoned(w.now)
		w.abandon(a)
		switch {
		case w.phase.suspended:
		case w.leaving == "release":
			a.released = true
			a.permit.Done(weir.Abandoned)
		case w.leaving == "cancel":
			w.cancel(a)
		}
	case stateCalling:
		a.left = true
		w.stats.abandoned(w.now)
		w.abandon(a)
	}
}

// cancel has the backend give up the work of an attempt, if it has begun with it.
func (w *world) cancel(a *attempt) {
	if !w.server.Remove(w.now, a.index) {
		return
	}
	w.countInside()
	outcome, from := weir.Abandoned, a.start
	if a.process != nil {
		from = a.begun
	}
	if told := a.class.told; told > 0 && w.now-from >= told {
		outcome = weir.Overload
	}
	w.conclude(a, outcome, false)
}

// finished is the backend's answer.
func (w *world) finished(a *attempt) {
	if w.consumer != nil && !a.failed && w.consumer.take(w, a) {
		return // its permit is held until its batch was applied
	}
	w.concluded(a)
}

// concluded is the end of all that an attempt has waited for.
func (w *world) concluded(a *attempt) {
	w.countInside()
	if w.phase.suspended {
		w.delayed = append(w.delayed, delayed{a, true})
		return
	}
	w.answered(a)
}

// answered gives the backend's answer to the gate and to the client.
func (w *world) answered(a *attempt) {
	c, latency := a.class, w.now-a.start
	outcome, good := weir.OK, true
	switch {
	case a.left:
		outcome, good = weir.Abandoned, false
	case a.failed && a.overloaded:
		outcome, good = weir.Overload, false
	case a.failed:
		outcome, good = weir.Failed, false
	case c.told > 0 && latency > c.told:
		outcome = weir.Overload // the deadline's timer has fired before the answer
	}
	if c.deadline > 0 && latency > c.deadline {
		good = false
	}
	done := a.work
	if a.idle {
		done = 0
	}
	w.stats.answered(w.now, latency, done, good)
	if w.ledger != nil {
		w.ledger.answered(w.now, a, latency, done, good)
	}
	if good && c.cache != nil {
		c.cache.fill(a.key)
	}
	if good && c.nested && a.call < c.calls && a.outer == nil {
		a.state = stateCalling
		w.nextCall(a)
		return
	}
	w.conclude(a, outcome, good)
}

// conclude is the end of an attempt that was admitted: its slot is free, and its
// client hears of the answer.
func (w *world) conclude(a *attempt, outcome weir.Outcome, good bool) {
	p, released, left, settled := a.permit, a.released, a.left, a.class.settled
	front := w.fronts[a.front]
	if w.untold {
		settled = 0
	}
	a.guard.Done(outcome)
	if !left && (good || !w.recall(a, throttle.Answer{Outcome: outcome})) {
		w.over(a, good)
	}
	w.recycle(a)
	if !released {
		if settled > 0 {
			front.setCost(p.SetCost, settled)
		}
		p.Done(outcome)
	}
}

// abandon is what a client does that has lost patience.
func (w *world) abandon(a *attempt) {
	if !w.retry(a, a.class.retryOnTimeout, 0) {
		w.over(a, false)
	}
}

// retry makes another attempt of the same request, if its client does.
func (w *world) retry(a *attempt, wanted bool, after time.Duration) bool {
	c := a.class
	if !wanted || a.tries > c.retries {
		return false
	}
	w.repeat(a, c.backoff(a.tries, after))
	return true
}

// repeat makes another attempt of the same call after a wait.
func (w *world) repeat(a *attempt, wait time.Duration) {
	b := w.again(a)
	b.work, b.tries, b.call = a.work, a.tries+1, a.call
	b.process, b.begun = a.process, a.begun
	w.events.push(event{at: w.now + wait, kind: eventRetry, subject: b.index})
}

// client is one of a closed loop: it has one request under way at a time.
type client struct {
	class  *class
	tenant int32
	index  int32
}

const defaultPause = 100 * time.Millisecond

// setTask copies what a class says about tasks, clients and exemption.
func (c *class) setTask(spec *Class) {
	c.template.Exempt = spec.Exempt
	c.calls, c.nested = int32(max(1, spec.Calls)), spec.Nested
	c.later, c.raised = weir.ParsePriority(spec.Later)
	c.clients = spec.Clients
	c.think, c.settled = time.Duration(spec.Think), spec.Settled
	c.pause = cmp.Or(time.Duration(spec.Pause), defaultPause)
	if spec.silent {
		c.clients = 0
	}
}

// gather brings in the clients of a closed loop, within the first pause.
func (w *world) gather(c *class) {
	for i := range c.clients {
		tenant := int32(0)
		if n := len(c.tenants); n > 0 {
			tenant = int32(i % n)
		}
		index := int32(len(w.clients))
		w.clients = append(w.clients, client{c, tenant, index})
		w.events.push(event{at: time.Duration(c.jitter.Float64() * float64(c.pause)), kind: eventClient, subject: index})
	}
}

// requestNext sends a client's next request.
func (w *world) requestNext(c *client) {
	if w.now < w.end && w.offers() {
		w.request(c.class, c.tenant, c.index+1)
	}
}

// over is the end of a call that is not tried again: of its task, unless there
// is another call to make.
func (w *world) over(a *attempt, good bool) {
	switch {
	case a.outer != nil && good && a.call < a.class.calls:
		w.nextCall(a)
		return
	case a.outer != nil:
		outer := a.outer
		if !outer.left {
			w.taskOver(outer, good)
			outer.done = true
		}
		w.events.push(event{at: w.now, kind: eventInner, subject: outer.index})
		return
	case good && a.call < a.class.calls && !a.class.nested:
		w.nextCall(a)
		return
	case !a.done:
		w.taskOver(a, good)
	}
}

// taskOver ends a task for its client, who may ask again.
func (w *world) taskOver(a *attempt, good bool) {
	if good && w.ledger != nil {
		w.ledger.done(a)
	}
	w.underway--
	if w.requests == 0 && w.underway == 0 && len(w.clients) > 0 {
		w.end = min(w.end, w.now)
	}
	if a.client == 0 {
		return
	}
	at := w.now + a.class.think
	if !good {
		at += time.Duration(2 * a.class.jitter.Float64() * float64(a.class.pause))
	}
	w.events.push(event{at: at, kind: eventClient, subject: a.client - 1})
}

// nextCall makes the next call of a task: by its client, or by the handler of
// the first one.
func (w *world) nextCall(a *attempt) {
	b := w.again(a)
	if a.state == stateCalling {
		b.outer = a
	}
	b.tries, b.call = 1, a.call+1
	b.work = w.phase.work * a.class.draw(a.class.service)
	w.beginCall(b)
	w.events.push(event{at: w.now, kind: eventRetry, subject: b.index})
}

// again returns an attempt of the same task.
func (w *world) again(a *attempt) *attempt {
	b := w.newAttempt()
	b.class, b.front, b.tenant, b.client, b.outer, b.born = a.class, a.front, a.tenant, a.client, a.outer, a.born
	b.key, b.state = a.key, stateResting
	return b
}

// innerOver lets the first call of a nested task answer, after its last.
func (w *world) innerOver(a *attempt) {
	outcome := weir.OK
	if a.left {
		outcome = weir.Abandoned
	}
	w.conclude(a, outcome, true)
}

// ride asks for a nested call with the context that its handler has, and reports
// whether the gate knew the permit in it.
func (w *world) ride(a *attempt, gate weir.Arriver) (weir.Permit, bool) {
	g, ok := gate.(weir.Gate)
	if !ok || a.outer == nil || w.untold {
		return weir.Permit{}, false
	}
	work := w.workOf(a)
	work.MaxWait = weir.NoWait
	p, err := g.Admit(weir.WithPermit(context.Background(), g, a.outer.permit), work)
	a.riding = err == nil
	return p, a.riding
}

// workOf returns the work as the gate sees it.
func (w *world) workOf(a *attempt) weir.Work {
	c := a.class
	work := c.template
	work.Tenant = c.tenantName(a.tenant)
	work.Priority = a.priority()
	if c.told > 0 {
		work.Deadline = epoch.Add(a.start + c.told)
	}
	if a.process != nil {
		work.Attempt = a.process.Attempt()
		if c.told > 0 {
			work.Deadline = epoch.Add(a.begun + c.told)
		}
	}
	if w.untold {
		work.Tenant, work.User, work.Client = "", "", ""
		work.Priority, work.Cost, work.Exempt = weir.Normal, 0, false
	}
	return work
}

// priority is that of the call.
func (a *attempt) priority() weir.Priority {
	if a.call > 1 && a.class.raised {
		return a.class.later
	}
	return a.class.template.Priority
}
