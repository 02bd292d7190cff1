package quotas

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

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
	var set []quota.Rule
	for i := range p.doc.Rules {
		if r := &p.doc.Rules[i]; r.Gate == gate && len(p.faults[i]) == 0 {
			if made, err := r.Rule(); err == nil { // an error cannot be: it would have a fault
				set = append(set, made)
			}
		}
	}
	return quota.Override(p.base[gate], set)
}

// From says where a rule in force comes from: a line of the file, or when and by whom it
// was set, and what it took the place of. It is empty for a rule that is not known.
func (p *Plan) From(gate string, r *quota.Rule) string {
	id := identity{gate, r.Pattern()}
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

// misfits returns what is wrong with rules under a configuration, by their index:
// everything that would be wrong with them in the file, too.
func misfits(spec *policy.Spec, rules []Rule) map[int][]Fault {
	found := map[int][]Fault{}
	for i := range rules {
		r := &rules[i]
		g, ok := spec.Gates[r.Gate]
		if !ok || g.Quota == nil {
			found[i] = []Fault{noQuota(spec, r.Gate, ok)}
			continue
		}
		for _, f := range spec.CheckQuotaRule(r.Gate, &r.QuotaRuleSpec) {
			found[i] = append(found[i], Fault{Field: strings.Join(f.Keys, "."), Problem: f.Problem, Instead: f.Instead})
		}
	}
	return found
}

// noQuota is the fault of a rule for a gate that has no quota.
func noQuota(spec *policy.Spec, gate string, exists bool) Fault {
	f := Fault{Field: "gate", Problem: fmt.Sprintf("there is no gate %.60q", gate), Instead: "the configuration has no gate with a quota; add one"}
	if exists {
		f.Problem = fmt.Sprintf("gate %q has no quota", gate)
	}
	if names := quotaGates(spec); len(names) > 0 {
		f.Instead = "gates with a quota are " + strings.Join(names[:min(len(names), 10)], ", ")
	}
	return f
}

// quotaGates are the names of the gates that have a quota.
func quotaGates(spec *policy.Spec) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(spec.Gates)) {
		if spec.Gates[name].Quota != nil {
			names = append(names, name)
		}
	}
	return names
}

// Sources of a rule.
const (
	FromFile    = "file"
	FromDynamic = "dynamic"
)

// View is one rule as it is shown.
type View struct {
	Gate    string               `json:"gate"`
	Matches string               `json:"matches"`
	Gives   string               `json:"gives"`
	Rule    policy.QuotaRuleSpec `json:"rule"`
	// Source is file, for the configuration, or dynamic. Place is the line of the
	// file, as in weir.yaml:12; empty where there is none.
	Source string    `json:"source"`
	Place  string    `json:"place,omitempty"`
	SetAt  time.Time `json:"set_at,omitzero"`
	SetBy  string    `json:"set_by,omitempty"`
	// InForce says whether the gate goes by it, Because why not.
	InForce bool   `json:"in_force"`
	Because string `json:"because,omitempty"`
}

// Origin says where the rule comes from: a line of the file, or when and by whom it was
// set.
func (v *View) Origin() string {
	switch {
	case v.Source == FromFile && v.Place == "":
		return "the command line"
	case v.Source == FromFile:
		return v.Place
	}
	at, by := "-", "-"
	if !v.SetAt.IsZero() {
		at = v.SetAt.UTC().Format(time.RFC3339)
	}
	if v.SetBy != "" {
		by = v.SetBy
	}
	return "set " + at + " by " + by
}

// Look is all rules, and where they are kept.
type Look struct {
	ETag    string `json:"etag"`
	KeptIn  string `json:"kept_in,omitempty"` // empty: nowhere
	Trouble string `json:"trouble,omitempty"` // why the store could not be read
	// Gates are those that have a quota.
	Gates []string `json:"gates"`
	Rules []View   `json:"rules"`
}

// From says where a rule in force comes from; see [Plan.From].
func (b *Book) From(gate string, r *quota.Rule) string {
	b.mu.Lock()
	plan := b.plan
	b.mu.Unlock()
	if plan == nil {
		return ""
	}
	return plan.From(gate, r)
}

// Trouble says why the rules could not be read the last time, empty if they could.
func (b *Book) Trouble() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trouble
}

// Look returns the rules of a gate, of all where the name is empty: those of the file
// in its order, and then those set at run time.
func (b *Book) Look(gate string) Look {
	b.mu.Lock()
	doc, plan := b.doc, b.plan
	l := Look{ETag: b.tag, Trouble: b.trouble, Rules: []View{}}
	if b.store != nil {
		l.KeptIn = b.store.Name()
	}
	b.mu.Unlock()
	if plan == nil {
		return l
	}
	l.Gates = quotaGates(&plan.spec)
	for _, name := range l.Gates {
		if gate == "" || gate == name {
			l.Rules = append(l.Rules, plan.fileViews(name)...)
		}
	}
	for i := range doc.Rules {
		if gate == "" || gate == doc.Rules[i].Gate {
			l.Rules = append(l.Rules, plan.dynamicView(i))
		}
	}
	return l
}

// fileViews are the rules that the file has for a gate.
func (p *Plan) fileViews(gate string) (views []View) {
	over := map[quota.Pattern]bool{}
	for i := range p.doc.Rules {
		if r := &p.doc.Rules[i]; r.Gate == gate && len(p.faults[i]) == 0 {
			over[r.Pattern()] = true
		}
	}
	p.eachOfFile(gate, func(r policy.QuotaRuleSpec, field string) {
		v := View{Gate: gate, Matches: Matches(&r), Gives: Gives(&r), Rule: r, Source: FromFile, InForce: true, Place: p.place(gate, field)}
		if over[r.Pattern()] {
			v.InForce, v.Because = false, "a rule set at run time has its place"
		}
		views = append(views, v)
	})
	return views
}

// eachOfFile calls f with each rule that the file has for a gate, and the field in which it
// stands; with none for a gate without a quota.
func (p *Plan) eachOfFile(gate string, f func(r policy.QuotaRuleSpec, field string)) {
	q := p.spec.Gates[gate].Quota
	if q == nil {
		return
	}
	for i, r := range q.All() {
		switch {
		case i < len(q.Rules):
			f(r, fmt.Sprintf("rules[%d]", i))
		case q.Rate != "":
			f(r, "rate")
		default:
			f(r, "limits")
		}
	}
}

// tellFile fills in what is given after steps, and what the file gives.
func (p *Plan) tellFile(steps []Step) {
	file, known := map[identity]string{}, map[string]bool{}
	for i := range steps {
		s := &steps[i]
		if !known[s.Gate] {
			known[s.Gate] = true
			p.eachOfFile(s.Gate, func(r policy.QuotaRuleSpec, _ string) { file[identityOf(s.Gate, &r)] = InFull(&r) })
		}
		s.FileGives = file[s.identity()]
		s.Gives = s.FileGives
		if s.After != nil {
			s.Gives = InFull(&s.After.QuotaRuleSpec)
		}
	}
}

func (p *Plan) dynamicView(i int) View {
	r := &p.doc.Rules[i]
	v := View{
		Gate: r.Gate, Matches: Matches(&r.QuotaRuleSpec), Gives: Gives(&r.QuotaRuleSpec), Rule: r.QuotaRuleSpec,
		Source: FromDynamic, SetAt: r.SetAt, SetBy: clean(r.SetBy), InForce: true,
	}
	if faults := p.faults[i]; len(faults) > 0 {
		v.InForce, v.Because = false, faults[0].Error()
	}
	return v
}

// clean makes a text fit for a terminal, whatever somebody has written into the file.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
