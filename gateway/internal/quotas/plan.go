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

// Plan is the rules of one configuration file, overridden by those set at run time. Make it
// with [Book.Plan], give [Plan.Rules] to the compiler, and the compiled policy to
// [Book.Adopt].
type Plan struct {
	spec   policy.Spec
	place  func(gate, field string) string
	doc    *document
	faults map[int][]Fault // of rules that do not fit, by index
	base   map[string][]quota.Rule
	saved  *Saved // the rules of the plan; nil for the book's own
}

func newPlan(spec policy.Spec, place func(gate, field string) string, doc *document) *Plan {
	p := &Plan{spec: spec, place: place, doc: &document{}, base: map[string][]quota.Rule{}}
	return p.with(doc)
}

// with returns the plan for another document under the same configuration. Rules that
// both have are not checked again.
func (p *Plan) with(doc *document) *Plan {
	next := *p
	next.doc, next.faults = doc, map[int][]Fault{}
	was := newDraft(p.doc.Rules)
	for i := range doc.Rules {
		r := &doc.Rules[i]
		var faults []Fault
		if j, ok := was.at[r.identity()]; ok && reflect.DeepEqual(was.rules[j].QuotaRuleSpec, r.QuotaRuleSpec) {
			faults = p.faults[j]
		} else {
			faults = misfits(&p.spec, r)
		}
		if len(faults) > 0 {
			next.faults[i] = faults
		}
	}
	return &next
}

// misfits returns what is wrong with a rule under a configuration: everything that would be
// wrong with it in the file.
func misfits(spec *policy.Spec, r *Rule) (faults []Fault) {
	g, ok := spec.Gates[r.Gate]
	if !ok || g.Quota == nil {
		return []Fault{noQuota(spec, r.Gate, ok)}
	}
	for _, f := range spec.CheckQuotaRule(r.Gate, &r.QuotaRuleSpec) {
		faults = append(faults, Fault{Field: strings.Join(f.Path, "."), Problem: f.Problem, Instead: f.Instead})
	}
	return faults
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

// Faulty returns how many rules are not in force, because they do not fit.
func (p *Plan) Faulty() int { return len(p.faults) }

// Rules is for policy.Options.QuotaRules: it returns the rules of a gate, given those of
// the file.
func (p *Plan) Rules(gate string, base []quota.Rule) []quota.Rule {
	p.base[gate] = slices.Clone(base)
	return p.rules(gate)
}

// rules returns the rules of a gate.
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

// From says where a rule in force comes from. That is a line of the file, or when and by whom it
// was set, and which line it overrides. It is empty for an unknown rule.
func (p *Plan) From(gate string, r *quota.Rule) string {
	pattern := r.Pattern()
	from := ""
	for i := range p.doc.Rules {
		if d := &p.doc.Rules[i]; d.Gate == gate && len(p.faults[i]) == 0 && d.Pattern() == pattern {
			v := p.setView(i)
			from = v.Origin()
			break
		}
	}
	p.fileRules(gate, func(r policy.QuotaRuleSpec, field string) {
		if r.Pattern() != pattern {
			return
		}
		v := View{Source: FromFile, Place: p.place(gate, field)}
		if from != "" {
			from += ", in the place of "
		}
		from += v.Origin()
	})
	return from
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
	// Source is file, for the configuration, or dynamic, for a rule set at run time. Place
	// is the line of the file, as in weir.yaml:12, or empty.
	Source string    `json:"source"`
	Place  string    `json:"place,omitempty"`
	SetAt  time.Time `json:"set_at,omitzero"`
	SetBy  string    `json:"set_by,omitempty"`
	// InForce says whether the gate uses the rule, and Because why not.
	InForce bool   `json:"in_force"`
	Because string `json:"because,omitempty"`
}

// Origin says where the rule comes from: a line of the file, or when and by whom it was set.
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

// Listing is all rules, and where they are kept.
type Listing struct {
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

// Trouble says why the rules could not be read the last time. It is empty if they could.
func (b *Book) Trouble() string {
	if err := b.snapshot().trouble; err != nil {
		return err.Error()
	}
	return ""
}

// List returns the rules of a gate, or of all gates if the name is empty. The rules of the file
// come first, in its order, then those set at run time.
func (b *Book) List(gate string) Listing {
	b.mu.Lock()
	saved, plan := b.saved, b.plan
	b.mu.Unlock()
	l := Listing{ETag: saved.tag, Rules: []View{}}
	if saved.trouble != nil {
		l.Trouble = saved.trouble.Error()
	}
	if saved.store != nil {
		l.KeptIn = saved.store.Name()
	}
	if plan == nil {
		return l
	}
	l.Gates = quotaGates(&plan.spec)
	for _, name := range l.Gates {
		if gate == "" || gate == name {
			l.Rules = append(l.Rules, plan.fileViews(name)...)
		}
	}
	for i := range plan.doc.Rules {
		if gate == "" || gate == plan.doc.Rules[i].Gate {
			l.Rules = append(l.Rules, plan.setView(i))
		}
	}
	return l
}

// fileViews are the rules that the file has for a gate.
func (p *Plan) fileViews(gate string) (views []View) {
	overridden := map[quota.Pattern]bool{}
	for i := range p.doc.Rules {
		if r := &p.doc.Rules[i]; r.Gate == gate && len(p.faults[i]) == 0 {
			overridden[r.Pattern()] = true
		}
	}
	p.fileRules(gate, func(r policy.QuotaRuleSpec, field string) {
		v := View{Gate: gate, Matches: Matches(&r), Gives: Terms(&r), Rule: r, Source: FromFile, InForce: true, Place: p.place(gate, field)}
		if overridden[r.Pattern()] {
			v.InForce, v.Because = false, "a rule set at run time has its place"
		}
		views = append(views, v)
	})
	return views
}

// fileRules calls f with each rule that the file has for a gate, and with the field where
// it stands.
func (p *Plan) fileRules(gate string, f func(r policy.QuotaRuleSpec, field string)) {
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

// describe fills in what holds after each step, and what the file gives.
func (p *Plan) describe(steps []Step) {
	file, known := map[identity]string{}, map[string]bool{}
	for i := range steps {
		s := &steps[i]
		if !known[s.Gate] {
			known[s.Gate] = true
			p.fileRules(s.Gate, func(r policy.QuotaRuleSpec, _ string) { file[identity{s.Gate, r.Pattern()}] = FullTerms(&r) })
		}
		s.FileGives = file[s.identity()]
		s.Gives = s.FileGives
		if s.After != nil {
			s.Gives = FullTerms(&s.After.QuotaRuleSpec)
		}
	}
}

// setView is a rule that was set at run time.
func (p *Plan) setView(i int) View {
	r := &p.doc.Rules[i]
	v := View{
		Gate: r.Gate, Matches: Matches(&r.QuotaRuleSpec), Gives: Terms(&r.QuotaRuleSpec), Rule: r.QuotaRuleSpec,
		Source: FromDynamic, SetAt: r.SetAt, SetBy: clean(r.SetBy), InForce: true,
	}
	if faults := p.faults[i]; len(faults) > 0 {
		v.InForce, v.Because = false, faults[0].Error()
	}
	return v
}

// clean makes a text safe for a terminal, whatever somebody has written into the file.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
