package sim

import (
	"cmp"
	"context"
	"time"

	"github.com/weir-go/weir"
)

// client is one of a closed loop: it has one request under way at a time.
type client struct {
	class  *class
	tenant int32
	index  int32
}

const defaultPause = 100 * time.Millisecond

// setTask takes over what a class says about tasks, clients and exemption.
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

// ask sends a client's next request.
func (w *world) ask(c *client) {
	if w.now < w.end {
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

// taskOver tells the client.
func (w *world) taskOver(a *attempt, good bool) {
	if good && w.ledger != nil {
		w.ledger.done(a)
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
	w.events.push(event{at: w.now, kind: eventRetry, subject: b.index})
}

// again returns an attempt of the same task.
func (w *world) again(a *attempt) *attempt {
	b := w.take()
	b.class, b.front, b.tenant, b.client, b.outer, b.born = a.class, a.front, a.tenant, a.client, a.outer, a.born
	b.state = stateResting
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

// workOf is what the gate is told of an attempt.
func (w *world) workOf(a *attempt) weir.Work {
	c := a.class
	work := c.template
	work.Tenant = c.tenantName(a.tenant)
	work.Priority = a.priority()
	if c.told > 0 {
		work.Deadline = epoch.Add(a.start + c.told)
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
