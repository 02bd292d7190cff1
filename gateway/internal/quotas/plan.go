package quotas

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Plan is the rules of one configuration file, overridden by those set at run time. Make it
// with [Book.Plan], give [Plan.Rules] to the compiler, and the compiled policy to
// [Book.SetPolicy].
type Plan struct {
	spec   policy.Spec
	place  func(gate, field string) string
	doc    *document
	faults map[int][]fault.Fault // of rules that do not fit, by index
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
	next.doc, next.faults = doc, map[int][]fault.Fault{}
	for i := range doc.Rules {
		r := &doc.Rules[i]
		var faults []fault.Fault
		if j, ok := p.doc.at[r.identity()]; ok && r.same(&p.doc.Rules[j]) {
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
func misfits(spec *policy.Spec, r *Rule) []fault.Fault {
	if g, ok := spec.Gates[r.Gate]; !ok || g.Quota == nil {
		return []fault.Fault{noQuota(spec, r.Gate, ok)}
	}
	return spec.CheckQuotaRule(r.Gate, &r.QuotaRuleSpec)
}

// noQuota is the fault of a rule for a gate that has no quota.
func noQuota(spec *policy.Spec, gate string, exists bool) fault.Fault {
	f := fault.Fault{Path: fault.Path{"gate"}, Problem: fmt.Sprintf("there is no gate %.60q", gate), Instead: "the configuration has no gate with a quota; add one"}
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
			if made, err := r.Compiled(); err == nil { // an error cannot be: it would have a fault
				set = append(set, made)
			}
		}
	}
	return quota.Override(p.base[gate], set)
}

// inForce returns the place of the rule that is set at run time for a pattern. It returns
// false if there is none, or if it does not fit.
func (p *Plan) inForce(gate string, pattern quota.Pattern) (i int, ok bool) {
	i, ok = p.doc.at[identity{gate, pattern}]
	return i, ok && len(p.faults[i]) == 0
}

// From says where a rule in force comes from. That is a line of the file, or when and by whom it
// was set, and which line it overrides. It is empty for an unknown rule.
func (p *Plan) From(gate string, r *quota.Rule) string {
	var from []string
	pattern := r.Pattern()
	if i, ok := p.inForce(gate, pattern); ok {
		v := p.setView(i)
		from = append(from, v.Origin())
	}
	for _, v := range p.fileViews(gate) {
		if v.Rule.Pattern() == pattern {
			from = append(from, v.Origin())
		}
	}
	return strings.Join(from, ", in the place of ")
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
	Asked  float64   `json:"asked,omitempty"` // as of the [Rule]
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
	// NeverRead says that it never could be, so that none of its rules is in force.
	NeverRead bool `json:"never_read,omitempty"`
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

// Trouble says why the rules could not be read the last time, and what holds meanwhile. The reason is
// empty if they could.
func (b *Book) Trouble() (why, holds string) {
	saved := b.snapshot()
	if saved.trouble == nil {
		return "", ""
	}
	return saved.trouble.Error(), Holds(saved.read.IsZero())
}

// Size returns how many rules there are, and how many bytes what they match has.
func (b *Book) Size() (rules, bytes int) {
	b.mu.Lock()
	plan := b.plan
	b.mu.Unlock()
	if plan == nil {
		return 0, 0
	}
	add := func(r *quota.Rule) {
		rules++
		for _, part := range quota.Parts() {
			bytes += len(*r.Part(part))
		}
	}
	for _, name := range quotaGates(&plan.spec) {
		all := plan.spec.Gates[name].Quota.All()
		for i := range all {
			add(&all[i].Rule)
		}
	}
	for i := range plan.doc.Rules {
		add(&plan.doc.Rules[i].Rule)
	}
	return rules, bytes
}

// List returns the rules of a gate, or of all gates if the name is empty. The rules of the file
// come first, in its order, then those set at run time.
func (b *Book) List(gate string) Listing {
	b.mu.Lock()
	saved, plan := b.saved, b.plan
	b.mu.Unlock()
	l := Listing{ETag: saved.tag, Rules: []View{}}
	if saved.trouble != nil {
		l.Trouble, l.NeverRead = saved.trouble.Error(), saved.read.IsZero()
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

// fileViews are the rules that the file has for a gate, in its order.
func (p *Plan) fileViews(gate string) (views []View) {
	q := p.spec.Gates[gate].Quota
	if q == nil {
		return nil
	}
	for i, r := range q.All() {
		field := "limits"
		if i < len(q.Rules) {
			field = fmt.Sprintf("rules[%d]", i)
		} else if q.Rate != "" {
			field = "rate"
		}
		v := View{Gate: gate, Matches: r.Pattern().String(), Gives: Terms(&r), Rule: r, Source: FromFile, InForce: true, Place: p.place(gate, field)}
		if _, ok := p.inForce(gate, r.Pattern()); ok {
			v.InForce, v.Because = false, "a rule set at run time has its place"
		}
		views = append(views, v)
	}
	return views
}

// inFile says where the file has a rule, and whether it has one.
func (p *Plan) inFile(gate string, pattern quota.Pattern) (origin string, ok bool) {
	for _, v := range p.fileViews(gate) {
		if v.Rule.Pattern() == pattern {
			return v.Origin(), true
		}
	}
	return "", false
}

// describe fills in what holds after each step, and what the file gives.
func (p *Plan) describe(steps []Step) {
	file, known := map[identity]string{}, map[string]bool{}
	for i := range steps {
		s := &steps[i]
		if !known[s.Gate] {
			known[s.Gate] = true
			for _, v := range p.fileViews(s.Gate) {
				file[identity{s.Gate, v.Rule.Pattern()}] = FullTerms(&v.Rule)
			}
		}
		s.FileGives = file[s.identity]
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
		Gate: r.Gate, Matches: r.Pattern().String(), Gives: Terms(&r.QuotaRuleSpec), Rule: r.QuotaRuleSpec,
		Source: FromDynamic, Asked: r.Asked, SetAt: r.SetAt, SetBy: Clean(r.SetBy), InForce: true,
	}
	if faults := p.faults[i]; len(faults) > 0 {
		v.InForce, v.Because = false, faults[0].Error()
	}
	return v
}

// Clean makes a text safe for a terminal, whatever somebody has written into the file.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
