package admin

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// refusals is what is counted of the refusals of a gate with a quota, by bucket: so that
// whoever operates the gateway sees who it is that comes too often.
type refusals struct {
	gate *policy.Gate
	by   *top[uint64]
}

// refusalsOf returns the refusals of a gate, those that it had if it had any; nil if it
// has no quota.
func refusalsOf(g *policy.Gate, old *refusals, most int) *refusals {
	switch {
	case g.Quota() == nil:
		return nil
	case old == nil:
		return &refusals{g, newTop[uint64](most)}
	}
	return &refusals{g, old.by}
}

// add counts a refusal under the key of its bucket, as weir explain shows it. A rule
// that blocks has none, and counts as itself.
func (s *refusals) add(w weir.Work, r *weir.Rejection) {
	switch r.Reason {
	case weir.ReasonQuota, weir.ReasonTooLarge, weir.ReasonBlocked, weir.ReasonQueueFull:
	default:
		return // nobody has come too often
	}
	rule, key := s.gate.Quota().Key(w)
	if key == "" {
		key = r.Gate + "/" + cmp.Or(rule, r.Rule)
	}
	s.by.add(key, func(n *uint64) { *n++ })
}

// Refused is how often a quota has refused for one of its buckets.
type Refused struct {
	Bucket string `json:"bucket"` // Rest for all that have no series
	Times  uint64 `json:"times"`
}

// MostRefused returns the buckets of a gate's quota that have series, those refused most
// often first, and the rest at last if there is any; nil if nothing was refused.
func (m *Metrics) MostRefused(gate string) []Refused {
	s := (*m.gates.Load())[gate].refusals
	if s == nil {
		return nil
	}
	var all []Refused
	s.by.each(func(name string, n uint64) {
		if n > 0 {
			all = append(all, Refused{name, n})
		}
	})
	slices.SortFunc(all, func(a, b Refused) int {
		if rest := a.Bucket == Rest; rest != (b.Bucket == Rest) {
			return map[bool]int{true: 1, false: -1}[rest]
		}
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Bucket, b.Bucket))
	})
	return all
}

var quotaRefused = describe("gate", "weir_quota_refused_total", "Refusals of a quota by bucket: those refused most. The rest are one, other.", "bucket")

// collect sends what is refused most.
func (s *refusals) collect(ch chan<- prometheus.Metric, gate string) {
	seen := make(names)
	s.by.each(func(name string, n uint64) {
		if label, first := seen.first(name); first {
			counter(ch, quotaRefused, n, gate, label)
		}
	})
}
