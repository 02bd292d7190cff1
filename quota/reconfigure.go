package quota

import (
	"fmt"
	"slices"

	"github.com/weir-go/weir"
)

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
	was.rules.succeeded(set.rules, func(old, now *Limit) {
		for _, m := range []*Memory{q.memory, local} {
			if m != nil { // no bucket is forgotten as full by a limit that it has no more
				m.classes.replaced(old, now)
			}
		}
	})
	return nil
}

// Rules returns the rules in force, in the order in which they were given. Their
// Limits are shared: do not write to them.
func (q *Quota) Rules() []Rule { return slices.Clone(q.settings.Load().rules.list) }

// Limits returns the limits of the rule that a Rejection or a Decision names, nil if
// it is not in force any more or has none. They are shared: do not write to them.
func (q *Quota) Limits(rule string) []Limit {
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
