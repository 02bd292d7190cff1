package quotas

import (
	"reflect"
	"slices"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Plan is what becomes of the rules under one configuration. Make it with [Book.Plan],
// give [Plan.Rules] to the compiler, and the policy that comes of it to [Book.Adopt].
type Plan struct {
	spec   policy.Spec
	place  func(gate, field string) string
	doc    *document
	faults map[int][]Fault // of rules that do not fit, by index
	base   map[string][]quota.Rule
	kept   *Kept // whose plan it is; nil for one of the book's own
}

func newPlan(spec policy.Spec, place func(gate, field string) string, doc *document) *Plan {
	return &Plan{spec: spec, place: place, doc: doc, faults: misfits(&spec, doc.Rules), base: map[string][]quota.Rule{}}
}

// Faulty returns how many rules are not in force, because they do not fit.
func (p *Plan) Faulty() int { return len(p.faults) }

// with returns the plan for another document under the same configuration. Rules that
// both have are not checked again: whether one fits has nothing to do with others.
func (p *Plan) with(doc *document) *Plan {
	next := &Plan{spec: p.spec, place: p.place, doc: doc, faults: map[int][]Fault{}, base: p.base}
	was := newDraft(p.doc.Rules)
	var fresh []Rule
	var at []int
	for i := range doc.Rules {
		r := &doc.Rules[i]
		j, ok := was.at[identityOf(r.Gate, &r.QuotaRuleSpec)]
		switch {
		case !ok || !reflect.DeepEqual(was.rules[j].QuotaRuleSpec, r.QuotaRuleSpec):
			fresh, at = append(fresh, *r), append(at, i)
		case len(p.faults[j]) > 0:
			next.faults[i] = p.faults[j]
		}
	}
	for i, faults := range misfits(&p.spec, fresh) {
		next.faults[at[i]] = faults
	}
	return next
}

// Rules is for policy.Options.QuotaRules: the rules of a gate, given those of the
// file.
func (p *Plan) Rules(gate string, base []quota.Rule) []quota.Rule {
	p.base[gate] = slices.Clone(base)
	return p.rules(gate)
}

// rules returns the rules that a gate goes by.
func (p *Plan) rules(gate string) []quota.Rule {
	all := slices.Clone(p.base[gate])
	places := make(map[parts]int, len(all))
	for i := range all {
		places[partsOfRule(&all[i])] = i
	}
	for i := range p.doc.Rules {
		r := &p.doc.Rules[i]
		if r.Gate != gate || len(p.faults[i]) > 0 {
			continue
		}
		made, err := r.Rule()
		if err != nil { // cannot be: it would have a fault
			continue
		}
		if at, ok := places[partsOf(&r.QuotaRuleSpec)]; ok {
			made.Name = all[at].Name
			all[at] = made
			continue
		}
		all = append(all, made)
	}
	return all
}

// From says where a rule in force comes from: a line of the file, or when and by whom it
// was set, and what it took the place of. It is empty for a rule that is not known.
func (p *Plan) From(gate string, r *quota.Rule) string {
	id := identity{gate, partsOfRule(r)}
	from := ""
	for i := range p.doc.Rules {
		if d := &p.doc.Rules[i]; d.Gate == gate && len(p.faults[i]) == 0 && identityOf(gate, &d.QuotaRuleSpec) == id {
			v := p.dynamicView(i)
			from = v.Origin()
			break
		}
	}
	if g := p.spec.Gates[gate]; g.Quota == nil {
		return from
	}
	for _, v := range p.fileViews(gate) {
		switch {
		case identityOf(gate, &v.Rule) != id:
		case from != "":
			return from + ", in the place of " + v.Origin()
		default:
			return v.Origin()
		}
	}
	return from
}

// partsOfRule returns the parts of a rule as the compiler has made it.
func partsOfRule(r *quota.Rule) parts {
	word := func(m quota.Match) string {
		if m == quota.Every {
			return "*"
		}
		name, _ := m.Value()
		return name
	}
	return partsOf(&policy.QuotaRuleSpec{
		User: word(r.User), Client: word(r.Client), Tenant: word(r.Tenant),
		Route: word(r.Route), Priority: word(r.Priority), Address: word(r.Address),
	})
}
