package quota

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir"
)

// Config configures a [Quota]. Everything but Name, Store and Now can be changed
// later with [Quota.Reconfigure].
type Config struct {
	// Name is the gate's name in rejections, metrics, logs, and in the keys of the
	// store: gates with different names share no bucket.
	Name string

	// Rules say who gets which quota. Whoever no rule matches is not limited; a
	// rule that looks at nothing matches everybody.
	Rules []Rule

	// Debt lets work through iff its bucket is not in debt, whatever it costs, as
	// Kafka does: work of any size comes through, and pays afterwards. Without it,
	// work is let through iff there are as many tokens as it costs, and what costs
	// more than a burst never is.
	Debt bool

	// Mode is Strict, or Permissive, which lets everything through and only tells
	// how long the debt takes ([Quota.Charge] returns it). Default Strict.
	Mode Mode

	// Queue lets work wait for its tokens. By default nothing waits.
	Queue Queue

	// Cost says how many tokens a piece of work takes. Default: its Units. Where
	// that is known only afterwards, take an estimate and settle it with
	// [weir.Permit.SetCost].
	Cost func(weir.Work) int64

	// Fixed makes that final: [weir.Permit.SetCost] changes nothing, unless it names this
	// gate. It is for a gate that counts requests where others that the work passes count
	// what it costs.
	Fixed bool

	// Identify says whom work is from. Default: [IdentityOf], which knows no address.
	Identify func(weir.Work) Identity

	// Store keeps the buckets. Default: a [Memory] of its own with its defaults.
	Store Store
	// OnStoreError says what to do when the store cannot tell. Default Local.
	OnStoreError OnStoreError

	// Hooks are told what happens. LimitChanged, Faulty and Leaked are never
	// called.
	Hooks weir.Hooks

	// Now replaces the clock, for virtual time: it returns the time since the
	// gate's epoch, which stands for [VirtualEpoch] where a Work.Deadline is
	// concerned. With it set the gate starts no timer; whoever owns the clock calls
	// [Quota.Step] when [Quota.Next] says so. Leave it nil outside simulators.
	Now func() time.Duration
}

// Queue lets work wait for its tokens: it takes them in advance, so each waiter has
// a time of its own from the start. Who gives up gives them back; that moves nobody
// forward, but those who come later find them.
type Queue struct {
	// Len is how many may wait at a time. 0 means that nothing waits.
	Len int
	// MaxWait bounds the time spent waiting. 0 means [DefaultMaxWait]; a negative
	// value leaves only the work's own bounds: its deadline, its MaxWait, its
	// context. What would have to wait longer is refused at once.
	MaxWait time.Duration
}

// DefaultMaxWait is the longest wait where Queue.MaxWait is 0.
const DefaultMaxWait = 2 * time.Second

// maxPlaces bounds Queue.Len.
const maxPlaces = 1 << 24

// OnStoreError says what a gate does when its store cannot tell.
type OnStoreError uint8

// What to do without the store. Each is counted in [Faults].
const (
	// Local decides by buckets in this process, which start full: so each process
	// lets through as much as all together should.
	Local OnStoreError = iota
	// Open lets everything through, but decides as Local does where the store is only
	// busy: see [ErrBusy].
	Open
	// Closed refuses everything, with [weir.ReasonStore].
	Closed
)

// settings are what decisions read: replaced as a whole, never written to.
type settings struct {
	rules    *rules
	debt     bool
	mode     Mode
	places   int64
	longest  time.Duration
	cost     func(weir.Work) int64
	fixed    bool
	identify func(weir.Work) Identity
	onError  OnStoreError
	hooks    weir.Hooks
}

// compile makes settings of the configuration, or reports every fault.
func (c *Config) compile() (*settings, error) {
	var f faults
	f.check(c.Mode == Strict || c.Mode == Permissive, "Mode %v: must be Strict or Permissive", c.Mode)
	f.check(c.Queue.Len >= 0 && c.Queue.Len <= maxPlaces, "Queue.Len %d: must be from 0 to %d", c.Queue.Len, maxPlaces)
	f.check(c.Queue.Len == 0 || c.Mode == Strict, "Queue.Len %d: nothing waits in a Permissive gate; leave it 0", c.Queue.Len)
	f.check(c.OnStoreError <= Closed, "OnStoreError %d: must be Local, Open or Closed", c.OnStoreError)
	s := &settings{
		rules: compile(c.Rules, c.Debt, &f), debt: c.Debt, mode: c.Mode,
		places: int64(c.Queue.Len), longest: c.Queue.MaxWait,
		cost: c.Cost, fixed: c.Fixed, identify: c.Identify, onError: c.OnStoreError, hooks: c.Hooks,
	}
	switch {
	case s.longest == 0:
		s.longest = DefaultMaxWait
	case s.longest < 0:
		s.longest = Never - 1
	}
	if s.cost == nil {
		s.cost = func(w weir.Work) int64 { return w.CostOrOne() }
	}
	if s.identify == nil {
		s.identify = IdentityOf
	}
	if err := f.of(c.Name); err != nil {
		return nil, err
	}
	return s, nil
}

// Reconfigure takes up new settings while the gate runs. Tokens and debts stay: a
// limit that has changed fills the bucket at its new rate since the bucket was last
// touched, clipped to its new burst, and debts are paid back at it. What waits keeps
// its time. A change of Name, Store or Now is ignored, a closed gate refuses, and a
// faulty configuration changes nothing.
func (q *Quota) Reconfigure(cfg Config) error {
	cfg.Name = q.name
	set, err := cfg.compile()
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.change(set)
}

// SetRules is Reconfigure of the rules alone.
func (q *Quota) SetRules(list []Rule) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	set := *q.settings.Load()
	var f faults
	set.rules = compile(list, set.debt, &f)
	if err := f.of(q.name); err != nil {
		return err
	}
	return q.change(&set)
}

// change puts settings in force, with the lock held.
func (q *Quota) change(set *settings) error {
	if q.shut {
		return fmt.Errorf("quota: gate %q: %w", q.name, ErrClosed)
	}
	was := q.settings.Swap(set)
	local := q.locally(false)
	was.rules.succeeded(set.rules, func(old, now *Window) {
		for _, m := range []*Memory{q.memory, local} {
			if m != nil { // no bucket is forgotten as full by a limit that it has no more
				m.classes.replaced(old, now)
			}
		}
	})
	return nil
}

// Rules returns the rules in force, in the order in which they were given. Their
// Windows are shared: do not write to them.
func (q *Quota) Rules() []Rule { return slices.Clone(q.settings.Load().rules.list) }

// Windows returns the limits of the rule that a Rejection or a Decision names, nil if
// it is not in force any more or has none. They are shared: do not write to them.
func (q *Quota) Windows(rule string) []Window {
	if r := q.settings.Load().rules.titles[rule]; r != nil {
		return r.limits
	}
	return nil
}

// Key returns which rule w would go by and the key of the bucket it would be charged
// to, without asking the store: no key if the rule is exempt or blocks, and nothing
// at all if no rule matches.
func (q *Quota) Key(w weir.Work) (rule, key string) {
	set := q.settings.Load()
	id := set.identify(w)
	r := set.rules.find(&id)
	if r == nil {
		return "", ""
	}
	if r.exempt || r.blocked {
		return r.title, ""
	}
	return r.title, string(appendKey(nil, q.name, r, &id))
}

// faults collects what is wrong with a configuration.
type faults []error

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// err joins the faults, and says whose they are.
func (f faults) err(whose string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("quota: %s%w", whose, errors.Join(f...))
}

// of is err for the configuration of a gate.
func (f faults) of(gate string) error { return f.err(fmt.Sprintf("gate %q: ", gate)) }
