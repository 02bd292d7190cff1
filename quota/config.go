package quota

import (
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/gate"
)

// Config configures a [Quota]. Everything but Name, Store and Now can be changed
// later with [Quota.Reconfigure].
type Config struct {
	// Name is the gate's name in rejections, metrics, logs, and in the keys of the
	// store. Gates with different names share no bucket.
	Name string

	// Rules say who gets which quota. Work that no rule matches is not limited; a
	// rule that uses no part matches all work.
	Rules []Rule

	// Debt admits work of any cost if its bucket is not in debt, as Kafka does. Work of
	// any size is admitted, and pays afterwards. Without Debt, work is admitted if
	// there are as many tokens as it costs. It is never admitted if it costs more than
	// a burst.
	Debt bool

	// Mode is Strict (the default) or Permissive. Permissive admits everything and only
	// says how long the debt takes to be paid back: see [Quota.Charge].
	Mode Mode

	// Queue lets work wait for its tokens. By default nothing waits.
	Queue Queue

	// Cost returns how many tokens a piece of work costs. The default is its Cost, at least 1.
	// If the cost is known only afterwards, return an estimate and correct it with
	// [weir.Permit.SetCost].
	Cost func(weir.Work) int64

	// Fixed makes that cost final: [weir.Permit.SetCost] changes it only if it names this
	// gate. It is for a gate that counts requests while other gates count what the
	// same work costs.
	Fixed bool

	// Identify returns the identity that the rules compare. The default is
	// [IdentityOf], which knows no address.
	Identify func(weir.Work) Identity

	// Store keeps the buckets. The default is a [Memory] of the gate's own.
	Store Store
	// OnStoreError says what to do when the store fails. The default is Local.
	OnStoreError OnStoreError

	// Hooks are called when something happens. LimitChanged, Faulty and Leaked are never
	// called.
	Hooks weir.Hooks

	// Now replaces the clock, for virtual time. It returns the time since the gate's
	// epoch, which is [weir.VirtualEpoch] where a Work.Deadline is concerned. With Now set the
	// gate starts no timer; whoever owns the clock calls [Quota.Step] when [Quota.Next]
	// says so. Leave it nil outside simulators.
	Now func() time.Duration
}

// Queue lets work wait for its tokens. Tokens are reserved at once, so each waiter knows
// its time from the start. Work that gives up gets its tokens back: that moves no other
// waiter forward, but later work finds them.
type Queue struct {
	// Len is how many places there are for work that waits. 0 means the default, which is
	// none: work is refused at once. A negative value means none too, as in limit.Queue.
	//
	// If all work shares one bucket, its work may take all places. Otherwise a bucket gets another
	// place only while it has fewer than are left. So a flood of one bucket takes half of the places, and others
	// find some. Double Len when you add the first rule with a bucket of its own.
	//
	// Work that finds no place is refused with [weir.ReasonQuota]. RetryAfter is the wait for its tokens.
	Len int
	// MaxWait bounds the time spent waiting. 0 means [DefaultMaxWait], and [weir.NoWait]
	// that nothing waits. With any other negative value only the work's own bounds count: its
	// deadline, its MaxWait, its context. Work that would have to wait longer is refused at once.
	MaxWait time.Duration
}

// DefaultMaxWait is the longest wait if Queue.MaxWait is 0.
const DefaultMaxWait = 2 * time.Second

// maxPlaces bounds Queue.Len.
const maxPlaces = 1 << 24

// OnStoreError says what a gate does when its store fails.
type OnStoreError uint8

// What to do when the store fails. [Faults] counts each failure.
const (
	// Local decides by buckets in this process, which start full: so each process
	// admits as much as all together should.
	Local OnStoreError = iota
	// Open admits everything. If the store is only busy, it decides as Local does: see
	// [ErrBusy].
	Open
	// Closed refuses everything, with [weir.ReasonStore].
	Closed
)

// Reconfigure changes the settings while the gate runs. Tokens and debts stay. If a
// window has changed, its buckets fill at the new rate, up to the new burst. That counts
// from the time they were last used. If the rule of one user goes,
// the rule for each user takes its bucket over, with its debt. That holds for clients, tenants, routes and
// priorities, too. Without such a rule the bucket fills as before. Work that waits keeps its time. A change of Name,
// Store or Now is ignored, a closed gate refuses, and a faulty configuration changes
// nothing.
func (q *Quota) Reconfigure(cfg Config) error {
	cfg.Name = q.Name()
	set, err := cfg.compile()
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.replaceLocked(set); err != nil {
		return err
	}
	q.front.SetHooks(&cfg.Hooks)
	return nil
}

// SetRules is Reconfigure of the rules alone.
func (q *Quota) SetRules(list []Rule) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	set := *q.settings.Load()
	var f fault.List
	set.rules = compileRules(q.Name(), list, set.debt, &f)
	if err := f.Err(faultsOf(q.Name())); err != nil {
		return err
	}
	return q.replaceLocked(&set)
}

// replaceLocked puts settings in force.
func (q *Quota) replaceLocked(set *settings) error {
	if q.shut {
		return fmt.Errorf("quota: gate %q: %w", q.Name(), weir.ErrClosed)
	}
	was := q.settings.Swap(set)
	by := map[Window][]Window{}
	was.rules.replacedBy(set.rules, func(old, now *Window) {
		if *old != *now {
			by[*old] = append(by[*old], *now)
		}
	})
	for _, m := range []*Memory{q.memory, q.local(false)} {
		if m != nil && len(by) > 0 {
			m.classes.replaced(by, m.moments())
			m.freeNumbers()
		}
	}
	return nil
}

// settings are what decisions read. They are replaced as a whole and never written to.
type settings struct {
	rules    *ruleTable
	debt     bool
	mode     Mode
	places   int64
	longest  time.Duration
	cost     func(weir.Work) int64
	fixed    bool
	identify func(weir.Work) Identity
	onError  OnStoreError
}

// compile turns the configuration into settings, or returns every fault.
func (c *Config) compile() (*settings, error) {
	var f fault.List
	room := fault.Path{"Queue", "Len"}
	f.Check(c.Mode == Strict || c.Mode == Permissive, fault.Path{"Mode"}, c.Mode, "must be Strict or Permissive")
	f.Check(c.Queue.Len <= maxPlaces, room, c.Queue.Len, "must be at most %d", maxPlaces)
	f.Check(c.Queue.Len <= 0 || c.Mode == Strict, room, c.Queue.Len, "nothing waits in a Permissive gate; leave it 0")
	f.Check(c.OnStoreError <= Closed, fault.Path{"OnStoreError"}, c.OnStoreError, "must be Local, Open or Closed")
	s := &settings{
		rules: compileRules(c.Name, c.Rules, c.Debt, &f), debt: c.Debt, mode: c.Mode,
		places: int64(gate.Places(c.Queue.Len, c.Queue.MaxWait, 0)), longest: c.Queue.MaxWait,
		cost: c.Cost, fixed: c.Fixed, identify: c.Identify, onError: c.OnStoreError,
	}
	switch {
	case s.longest == 0:
		s.longest = DefaultMaxWait
	case s.longest < 0:
		s.longest = Never - 1
	}
	if err := f.Err(faultsOf(c.Name)); err != nil {
		return nil, err
	}
	return s, nil
}

// faultsOf says whose faults are listed.
func faultsOf(gate string) string { return fmt.Sprintf("quota: gate %q", gate) }

// identity sets id to the identity of w. Work and identities are large, so they are copied for
// a function of the user's only.
func (s *settings) identity(w *weir.Work, id *Identity) {
	if s.identify != nil {
		*id = s.identify(*w)
	} else {
		id.fill(w)
	}
}

// ruleOf sets id to the identity of w, and returns the rule for it, nil if none matches.
func (s *settings) ruleOf(w *weir.Work, id *Identity) *rule {
	s.identity(w, id)
	return s.rules.find(id)
}

// costOf returns what w costs.
func (s *settings) costOf(w *weir.Work) int64 {
	if s.cost != nil {
		return s.cost(*w)
	}
	return w.CostOrOne()
}
