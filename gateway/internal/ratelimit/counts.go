package ratelimit

import (
	"strings"
	"sync"
)

// Result is what came of a descriptor.
type Result uint8

// The results.
const (
	OK     Result = iota // within its limit, or without one
	Over                 // refused
	Shadow               // would have been refused: shadow_mode, quota_mode, or a gate that observes
	Spared               // not charged, because another descriptor was refused
	Failed               // nobody could decide
	NumResults
)

var resultNames = [NumResults]string{"ok", "over_limit", "shadow", "spared", "error"}

// String returns the word for a result in metrics.
func (r Result) String() string { return resultNames[r] }

// Count is how often what came of one limit. Rule is the limit as a rule of a quota names it, with
// values where the file asks for that.
type Count struct {
	Domain, Rule string
	Results      [NumResults]uint64
}

// MostCounted bounds the series of metrics with values that clients choose. Further ones of a domain
// count as one, with the rule other. So do limits beyond mostRules, which only files and rules set at run
// time can make.
const (
	MostCounted = 1000
	mostRules   = 10_000
)

type counted struct{ domain, rule string }

type tally struct {
	results [NumResults]uint64
	values  bool // the rule has values
}

// counts are the counters of the service.
type counts struct {
	knows func(domain string) bool

	mu     sync.Mutex // guards what follows
	by     map[counted]*tally
	values int // tallies with values
}

// add counts a result of a rule, which has values or not. The domain is empty, or one that there is.
func (c *counts) add(domain, rule string, values bool, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.by[counted{domain, rule}]
	if n == nil {
		if domain != "" && !c.knows(domain) {
			return // a reload has just removed it
		}
		if c.full(values) {
			rule, values = "other", false
		}
		n = c.findOrAdd(counted{domain, rule}, values)
	}
	n.results[r]++
}

// full reports whether there are as many tallies with values as there may be, or without.
func (c *counts) full(values bool) bool {
	if values {
		return c.values >= MostCounted
	}
	return len(c.by)-c.values >= mostRules
}

func (c *counts) findOrAdd(of counted, values bool) *tally {
	n := c.by[of]
	if n == nil {
		n = &tally{values: values}
		if c.by == nil {
			c.by = map[counted]*tally{}
		}
		c.by[of] = n
		if values {
			c.values++
		}
	}
	return n
}

// DropGone drops the counters of domains that are not found any more.
func (s *Service) DropGone() {
	c := &s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, n := range c.by {
		if of.domain == "" || c.knows(of.domain) {
			continue
		}
		delete(c.by, of)
		if n.values {
			c.values--
		}
	}
}

// Counts returns the counters.
func (s *Service) Counts() []Count {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	all := make([]Count, 0, len(s.counts.by))
	for of, n := range s.counts.by {
		all = append(all, Count{of.domain, of.rule, n.results})
	}
	return all
}

// count counts what came of a decision.
func (d *decision) count(c *counts) {
	if d.Gate == nil { // anybody may have made up the domain
		c.add("", "unknown domain", false, OK)
		return
	}
	for i := range d.matched {
		m, result := &d.matched[i], OK
		if m.charge >= 0 {
			switch ch := &d.charges[m.charge]; {
			case ch.Refused != nil && ch.Alone:
				result = Shadow
			case ch.Refused != nil:
				result = Over
			case d.over && !ch.Answer.Free:
				result = Spared
			}
		}
		rule, values := m.label()
		c.add(d.domain, rule, values, result)
	}
}

// label is the rule in metrics, and whether values are in it. A value that shares a bucket is never in it.
func (m *matched) label() (rule string, values bool) {
	rule = strings.TrimPrefix(m.rule, "descriptor=")
	if !m.limit.detailed && m.limit.byValue == nil {
		return rule, false
	}
	pairs, all := strings.Split(rule, ","), strings.Split(m.work.Descriptor, ",")
	for i := range pairs {
		if i < len(all) && !strings.HasSuffix(pairs[i], "**") && (m.limit.detailed || m.limit.byValue[i]) {
			pairs[i] = all[i]
		}
	}
	return strings.Join(pairs, ","), true
}
