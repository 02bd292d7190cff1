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

// MostCounted bounds the series of metrics by rules and values. Further ones count as one, with
// the rule other.
const MostCounted = 1000

type counted struct{ domain, rule string }

// counts are the counters of the service.
type counts struct {
	mu sync.Mutex // guards what follows
	by map[counted]*[NumResults]uint64
}

func (c *counts) add(domain, rule string, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[counted]*[NumResults]uint64{}
	}
	n := c.by[counted{domain, rule}]
	if n == nil {
		if len(c.by) >= MostCounted {
			domain, rule = "", "other"
		}
		if n = c.by[counted{domain, rule}]; n == nil {
			n = new([NumResults]uint64)
			c.by[counted{domain, rule}] = n
		}
	}
	n[r]++
}

// Counts returns the counters.
func (s *Service) Counts() []Count {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	all := make([]Count, 0, len(s.counts.by))
	for of, n := range s.counts.by {
		all = append(all, Count{of.domain, of.rule, *n})
	}
	return all
}

// count counts what came of a decision.
func (d *decision) count(c *counts) {
	if d.Gate == nil { // anybody may have made up the domain
		c.add("", "unknown domain", OK)
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
		c.add(d.domain, m.label(), result)
	}
}

// label is the rule in metrics. A value that shares a bucket is never in it.
func (m *matched) label() string {
	rule := strings.TrimPrefix(m.rule, "descriptor=")
	if !m.limit.detailed && m.limit.byValue == nil {
		return rule
	}
	pairs, values := strings.Split(rule, ","), strings.Split(m.work.Descriptor, ",")
	for i := range pairs {
		if i < len(values) && !strings.HasSuffix(pairs[i], "**") && (m.limit.detailed || m.limit.byValue[i]) {
			pairs[i] = values[i]
		}
	}
	return strings.Join(pairs, ",")
}
