package sim

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
)

// ledger tells the classes and tenants of a run apart. It sees what comes to the
// gates and what they answer, and asks them nothing.
type ledger struct {
	accounts []*account
	shares   [weir.Classes]float64

	lines  map[int]*crowd // by gateway
	wanted []wanted       // by class
}

// crowd is who waits before one gateway, by priority, and what has been let in
// while a higher one and a lower one both waited.
type crowd struct {
	waiting [weir.Classes]int
	let     [weir.Classes]float64
}

// wanted is since when none of a class has been let in although some of it came.
type wanted struct {
	since   time.Duration // -1: nothing is wanted
	waiting int
}

// account is what a window keeps of each class.
type account struct {
	from, to   time.Duration
	inversions uint64
	classes    []tally
}

// tally is what is counted of one class.
type tally struct {
	offered, done, attempts, admitted, refused, gaveUp uint64

	behind        uint64
	reasons       [numReasons]uint64
	work          float64
	latency, wait histogram
	starved       time.Duration
	flows         []portion // by tenant
}

// portion is what is counted of one tenant of a class.
type portion struct {
	offered, done uint32
	asked, given  float64 // units
}

func newLedger(s *Scenario) *ledger {
	l := &ledger{lines: map[int]*crowd{}, wanted: make([]wanted, len(s.Traffic))}
	for name, share := range s.Fair.Shares {
		p, _ := weir.ParsePriority(name)
		l.shares[p.Class()] = share
	}
	for i := range l.wanted {
		l.wanted[i].since = -1
	}
	windows := append([]*window{{to: never}}, s.windows()...)
	for _, w := range windows {
		a := &account{from: w.from, to: w.to, classes: make([]tally, len(s.Traffic))}
		for i := range a.classes {
			a.classes[i] = tally{
				latency: newHistogram(7), wait: newHistogram(7),
				flows: make([]portion, max(1, s.Traffic[i].Tenants)),
			}
		}
		l.accounts = append(l.accounts, a)
	}
	return l
}

// tellsApart reports whether anything is said about classes or tenants.
func (s *Scenario) tellsApart() bool {
	for i := range s.Goals {
		g := &s.Goals[i]
		if g.Class != "" || slices.ContainsFunc(between, func(m metric) bool { return m.name == g.Metric }) {
			return true
		}
	}
	return false
}

func (l *ledger) each(now time.Duration, a *attempt, f func(*account, *tally)) {
	for _, acc := range l.accounts {
		if acc.from <= now && now < acc.to {
			f(acc, &acc.classes[a.class.index])
		}
	}
}

func (l *ledger) offered(now time.Duration, a *attempt) {
	l.each(now, a, func(_ *account, t *tally) {
		t.offered++
		t.flows[a.tenant].offered++
	})
}

// done counts a task where it was offered, so that a stretch of time has as many
// tasks as outcomes.
func (l *ledger) done(a *attempt) {
	l.each(a.born, a, func(_ *account, t *tally) {
		t.done++
		t.flows[a.tenant].done++
	})
}

func (l *ledger) attempted(now time.Duration, a *attempt) {
	if w := &l.wanted[a.class.index]; w.since < 0 {
		w.since = now
	}
	l.each(now, a, func(_ *account, t *tally) {
		t.attempts++
		t.flows[a.tenant].asked += a.units()
	})
}

func (l *ledger) line(front int) *crowd {
	if l.lines[front] == nil {
		l.lines[front] = &crowd{}
	}
	return l.lines[front]
}

// queued notes an attempt that the gate lets wait.
func (l *ledger) queued(now time.Duration, a *attempt) {
	l.line(a.front).waiting[a.priority().Class()]++
	l.wanted[a.class.index].waiting++
	if a.outer != nil {
		l.each(now, a, func(_ *account, t *tally) { t.behind++ })
	}
}

// leaves takes an attempt out of its line, if it was in one.
func (l *ledger) leaves(a *attempt) {
	if a.waiter != nil {
		l.line(a.front).waiting[a.priority().Class()]--
		l.wanted[a.class.index].waiting--
	}
}

func (l *ledger) admitted(now time.Duration, a *attempt) {
	inverted := l.inverts(a)
	l.leaves(a)
	w := &l.wanted[a.class.index]
	l.starved(now, a.class.index)
	w.since = -1
	if w.waiting > 0 {
		w.since = now
	}
	l.each(now, a, func(acc *account, t *tally) {
		if inverted {
			acc.inversions++
		}
		t.admitted++
		t.flows[a.tenant].given += a.units()
		t.wait.add(now - a.start)
	})
}

// inverts reports whether somebody of a higher priority waits while a is let in,
// and a's own has had what it is guaranteed. That is counted over what is let in
// while a higher and a lower one wait, and a unit is forgiven.
func (l *ledger) inverts(a *attempt) bool {
	if a.riding || a.class.template.Exempt {
		return false
	}
	ln, mine := l.line(a.front), a.priority().Class()
	above, below := false, false
	for i, n := range ln.waiting {
		above = above || n > 0 && i > mine
		below = below || n > 0 && i < mine
	}
	if !above && !below {
		return false
	}
	var all float64
	for _, n := range ln.let {
		all += n
	}
	units := a.units()
	ln.let[mine] += units
	return above && ln.let[mine] > l.shares[mine]*(all+units)+1 || above && l.shares[mine] == 0
}

func (l *ledger) refused(now time.Duration, a *attempt, r weir.Reason) {
	l.leaves(a)
	l.each(now, a, func(_ *account, t *tally) {
		t.refused++
		t.reasons[min(int(r), numReasons-1)]++
		if a.outer != nil && a.waiter == nil {
			t.behind++
		}
	})
}

func (l *ledger) gaveUp(now time.Duration, a *attempt) {
	l.leaves(a)
	l.each(now, a, func(_ *account, t *tally) { t.gaveUp++ })
}

func (l *ledger) answered(now time.Duration, a *attempt, latency time.Duration, work float64, good bool) {
	l.each(now, a, func(_ *account, t *tally) {
		t.latency.add(latency)
		if good {
			t.work += work
		}
	})
}

// starved notes how long a class has been waiting by now for one of it to be
// let in.
func (l *ledger) starved(now time.Duration, class int32) {
	since := l.wanted[class].since
	if since < 0 {
		return
	}
	for _, acc := range l.accounts {
		t := &acc.classes[class]
		t.starved = max(t.starved, min(now, acc.to)-max(since, acc.from))
	}
}

// units is what the attempt costs, as it turns out if that is only known then.
func (a *attempt) units() float64 {
	if a.class.settled > 0 {
		return float64(a.class.settled)
	}
	return float64(a.class.template.Units())
}
