package quotas

import (
	"reflect"
	"slices"

	"github.com/weir-go/weir/policy"
)

// identity is what a rule is known by: two with the same are one rule.
type identity struct {
	gate string
	parts
}

func identityOf(gate string, r *policy.QuotaRuleSpec) identity { return identity{gate, partsOf(r)} }

// draft is rules that are being changed. A rule is found and taken out in the same time
// however many there are.
type draft struct {
	rules []Rule // one that has been taken out names no gate
	at    map[identity]int
}

func newDraft(rules []Rule) *draft {
	d := &draft{rules: slices.Clone(rules), at: make(map[identity]int, len(rules))}
	for i := range rules {
		d.at[identityOf(rules[i].Gate, &rules[i].QuotaRuleSpec)] = i
	}
	return d
}

// put adds r, or puts it in the place of the one that matches the same and returns that.
func (d *draft) put(r Rule) (was *Rule) {
	id := identityOf(r.Gate, &r.QuotaRuleSpec)
	if i, ok := d.at[id]; ok {
		old := d.rules[i]
		d.rules[i] = r
		return &old
	}
	d.at[id] = len(d.rules)
	d.rules = append(d.rules, r)
	return nil
}

// drop takes out the rule that matches the same and returns it, nil if there is none.
func (d *draft) drop(gate string, like *policy.QuotaRuleSpec) *Rule {
	id := identityOf(gate, like)
	i, ok := d.at[id]
	if !ok {
		return nil
	}
	was := d.rules[i]
	d.rules[i] = Rule{}
	delete(d.at, id)
	return &was
}

// clear takes out all rules of a gate and returns them in order.
func (d *draft) clear(gate string) (was []*Rule) {
	for i := range d.rules {
		if r := d.rules[i]; r.Gate == gate && gate != "" {
			was = append(was, &r)
			delete(d.at, identityOf(gate, &r.QuotaRuleSpec))
			d.rules[i] = Rule{}
		}
	}
	return was
}

// list returns the rules that are left.
func (d *draft) list() []Rule {
	return slices.DeleteFunc(slices.Clone(d.rules), func(r Rule) bool { return r.Gate == "" })
}

// without counts the rules that another document does not have as they are here.
func (d *document) without(other *document) (n int) {
	there := newDraft(other.Rules)
	for i := range d.Rules {
		r := &d.Rules[i]
		at, ok := there.at[identityOf(r.Gate, &r.QuotaRuleSpec)]
		if !ok || !reflect.DeepEqual(other.Rules[at].QuotaRuleSpec, r.QuotaRuleSpec) {
			n++
		}
	}
	return n
}
