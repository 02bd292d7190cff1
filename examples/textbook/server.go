package main

import (
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/shed"
	"github.com/weir-go/weir/weirhttp"
)

// newRate is 100 requests a second for each client, and 200 at once. The buckets are bounded.
func newRate(c *clock) *quota.Quota {
	return weir.Must(quota.New(quota.Config{
		Name: "rate", Now: c.time,
		Rules: []quota.Rule{{User: "*", Windows: []quota.Window{{Rate: 100, Burst: 200}}}},
	}))
}

// status is what a client gets.
func status(err error) string {
	if rej := weir.AsRejection(err); rej != nil {
		return fmt.Sprint(weirhttp.Status(rej))
	}
	return "admitted"
}

// toldBy adds when the client of a quota is to come back: in the header, and to be exact in the body.
func toldBy(err error) string {
	rej := weir.AsRejection(err)
	if rej == nil {
		return status(err)
	}
	w := httptest.NewRecorder()
	weirhttp.WriteRejectionTo(w, httptest.NewRequest("GET", "/", nil), rej, nil)
	return fmt.Sprintf("%d, Retry-After: %s, to be exact %v", w.Code, w.Header().Get("Retry-After"), rej.RetryAfter)
}

// rate is a token bucket for each client.
func rate() table {
	t := table{title: "A rate: 100 a second, 200 at once"}
	t.add("", "textbook", "weir")
	c := new(clock)
	q := newRate(c)
	ask := func(user string, cost int64) error {
		_, err := q.TryAdmit(weir.Work{User: user, Cost: cost})
		return err
	}
	for range 200 {
		if ask("alice", 1) != nil {
			return t // the burst is 200
		}
	}
	t.add("request 201 at the same moment", "429, Retry-After: 1", toldBy(ask("alice", 1)))
	t.add("one that costs 50", "costs 1", toldBy(ask("alice", 50)))
	t.add("another client", "admitted", toldBy(ask("bob", 1)))
	c.now = 10 * time.Millisecond
	t.add("the first again, 10 ms later", "told to wait for 1 s", toldBy(ask("alice", 1)))
	c.now = 0
	t.add("after the clock went back by 10 ms", "429, and a token less", toldBy(ask("alice", 1)))
	t.add("buckets at the most", "no bound", fmt.Sprint(quota.DefaultMaxKeys))
	return t
}

// concurrency is 500 slots.
func concurrency() table {
	t := table{title: "Concurrency: 500 at a time"}
	t.add("", "textbook", "weir")
	l := weir.Must(limit.New(limit.Config{Name: "slots", Limit: 500, Queue: limit.Queue{Len: -1}, Now: new(clock).time}))
	defer l.Close()
	for range 500 {
		if _, err := l.TryAdmit(weir.Work{}); err != nil {
			return t
		}
	}
	_, err := l.TryAdmit(weir.Work{})
	t.add("request 501", "503", fmt.Sprintf("%s: %v", status(err), weir.AsRejection(err)))
	_, err = l.TryAdmit(weir.Work{Exempt: true})
	t.add("a health check", "503", status(err))
	return t
}

// levels are the priorities by which all tables ask.
var levels = []weir.Priority{weir.Critical, weir.High, weir.Normal, weir.Background}

// priorities is who is admitted at which load.
func priorities() table {
	t := table{title: "Priorities: who is admitted at which load"}
	head := []string{""}
	loads := []float64{0.60, 0.80, 0.92, 0.97, 1.20}
	for _, load := range loads {
		head = append(head, fmt.Sprintf("%.2f", load))
	}
	t.add(head...)
	// theirs maps each threshold to the classes from which work is admitted, and has no hard cap.
	theirs := func(load float64, p weir.Priority) string {
		switch {
		case load >= 0.95 && p < weir.Critical, load >= 0.90 && p < weir.High, load >= 0.75 && p < weir.Normal:
			return "429"
		}
		return "yes"
	}
	ours := func(load float64, p weir.Priority) string {
		c := new(clock)
		s := newShed(c, func() float64 { return load })
		defer s.Close()
		c.now, _ = s.Next()
		s.Step() // reads the load
		if _, err := s.TryAdmit(weir.Work{Priority: p}); err != nil {
			return status(err)
		}
		return "yes"
	}
	for _, p := range levels {
		row := []string{p.String() + ", textbook"}
		for _, load := range loads {
			row = append(row, theirs(load, p))
		}
		t.add(row...)
		row = []string{p.String() + ", weir"}
		for _, load := range loads {
			row = append(row, ours(load, p))
		}
		t.add(row...)
	}
	return t
}

// newShed refuses classes by a reading of load.
func newShed(c *clock, load func() float64) *shed.Shedder {
	return weir.Must(shed.New(shed.Config{Name: "load", Salt: 1, Now: c.time, Pressure: func() (float64, bool) { return load(), true }}))
}

// row is all gates in a row before a server with 50 slots and work of 100 ms. It lasts 10 s each
// at three loads of the machine.
func row() table {
	t := table{title: "All gates in a row: served of asked, and refused by"}
	t.add("", "load 0.60", "load 0.92", "load 0.97")
	c := new(clock)
	load := 0.60
	slots := weir.Must(limit.New(limit.Config{Name: "slots", Limit: 50, Now: c.time, Queue: limit.Queue{Len: 64, MaxWait: 200 * time.Millisecond}}))
	sheds := newShed(c, func() float64 { return load })
	c.gates = []timed{slots, sheds}
	gates := weir.All(newRate(c), sheds, slots).(weir.Arriver)
	const phase = 10 * time.Second
	var users []*user
	for _, u := range []user{
		{name: "checkout", priority: weir.Critical, rate: 50}, {name: "paid", priority: weir.High, rate: 90},
		{name: "free", priority: weir.Normal, rate: 90}, {name: "script", priority: weir.Normal, rate: 400},
		{name: "sync", priority: weir.Background, rate: 90}, {name: "reports", priority: weir.Background, rate: 90},
		{name: "index", priority: weir.Background, rate: 90},
	} {
		users = append(users, &u)
		c.every(time.Second/time.Duration(u.rate), 3*phase, func() {
			u.ask(c, gates, int(c.now/phase))
		})
	}
	c.at(phase, func() { load = 0.92 })
	c.at(2*phase, func() { load = 0.97 })
	c.run()
	for _, u := range users {
		line := []string{fmt.Sprintf("%s, %v", u.name, u.priority)}
		for i := range u.phases {
			line = append(line, u.phases[i].String())
		}
		t.add(line...)
	}
	return t
}

// user asks at a steady rate.
type user struct {
	name     string
	priority weir.Priority
	rate     int
	phases   [3]tally
}

// tally counts answers.
type tally struct {
	asked, served int
	refused       [3]int // by quota, load, slots
}

func (u *user) ask(c *clock, g weir.Arriver, phase int) {
	n := &u.phases[phase]
	n.asked++
	answered := func(p weir.Permit, err error) {
		if err == nil {
			n.served++
			c.at(c.now+100*time.Millisecond, func() { p.Done(weir.OK) })
			return
		}
		switch weir.AsRejection(err).Reason {
		case weir.ReasonQuota:
			n.refused[0]++
		case weir.ReasonShed:
			n.refused[1]++
		default:
			n.refused[2]++
		}
	}
	p, _, err := g.Arrive(weir.Work{User: u.name, Priority: u.priority}, answered)
	if err != weir.ErrWaiting {
		answered(p, err)
	}
}

// String is what was served of what was asked, and which gates refused the rest.
func (n *tally) String() string {
	text := fmt.Sprintf("%d of %d", n.served, n.asked)
	for i, by := range []string{"rate 429", "load 503", "slots 503"} {
		if n.refused[i] > 0 {
			text += fmt.Sprintf(" (%s: %d)", by, n.refused[i])
		}
	}
	return text
}

// queue is twice the load that a server can carry, before a bounded queue. Its clients leave after 2 s.
func queue() table {
	const patience, work, end = 2 * time.Second, 100 * time.Millisecond, time.Minute
	t := table{title: "A bounded queue at twice the load: 10 workers, 100 ms each, clients that leave after 2 s, one minute"}
	t.add("", "served in time", "served too late", "of what was possible")
	show := func(name string, good, late int) {
		t.add(name, fmt.Sprint(good), fmt.Sprint(late), fmt.Sprintf("%.2f", float64(good)/(end.Seconds()*100)))
	}

	// theirs serves in order of arrival, and drops on the way out what has waited for 2 s.
	c := new(clock)
	var waiting []time.Duration
	free, good, late := 10, 0, 0
	var serve func()
	serve = func() {
		for free > 0 && len(waiting) > 0 {
			came := waiting[0]
			waiting = waiting[1:]
			if c.now-came > patience {
				continue
			}
			free--
			c.at(c.now+work, func() {
				if free++; c.now-came <= patience {
					good++
				} else {
					late++
				}
				serve()
			})
		}
	}
	c.every(5*time.Millisecond, end, func() {
		if len(waiting) < 1000 {
			waiting = append(waiting, c.now)
			serve()
		}
	})
	c.run()
	show("textbook: drop what has waited for 2 s", good, late)

	c = new(clock)
	l := weir.Must(limit.New(limit.Config{Limit: 10, Queue: limit.Queue{Len: 1000}, Now: c.time}))
	c.gates = []timed{l}
	good, late = 0, 0
	c.every(5*time.Millisecond, end, func() {
		came := c.now
		start := func(p weir.Permit, err error) {
			if err != nil {
				return
			}
			c.at(c.now+work, func() {
				if p.Done(weir.OK); c.now-came <= patience {
					good++
				} else {
					late++
				}
			})
		}
		p, _, err := l.Arrive(weir.Work{Deadline: weir.VirtualEpoch.Add(came + patience)}, start)
		if err != weir.ErrWaiting {
			start(p, err)
		}
	})
	c.run()
	show("weir: let those wait who have a chance", good, late)
	return t
}
