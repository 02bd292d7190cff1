package quotas

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

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
	over := map[parts]bool{}
	for i := range p.doc.Rules {
		if r := &p.doc.Rules[i]; r.Gate == gate && len(p.faults[i]) == 0 {
			over[partsOf(&r.QuotaRuleSpec)] = true
		}
	}
	p.eachOfFile(gate, func(r policy.QuotaRuleSpec, field string) {
		v := View{Gate: gate, Matches: Matches(&r), Gives: Gives(&r), Rule: r, Source: FromFile, InForce: true, Place: p.place(gate, field)}
		if over[partsOf(&r)] {
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
	for i, r := range q.Rules {
		f(r, fmt.Sprintf("rules[%d]", i))
	}
	if base, field, ok := baseOf(q); ok {
		f(base, field)
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

// baseOf is the rule that a quota's own limits and its by stand for, and where those
// are written.
func baseOf(q *policy.QuotaSpec) (r policy.QuotaRuleSpec, field string, ok bool) {
	r.QuotaLimitSpec = q.QuotaLimitSpec
	for _, word := range q.By {
		switch word {
		case "user":
			r.User = "*"
		case "client":
			r.Client = "*"
		case "tenant":
			r.Tenant = "*"
		case "route":
			r.Route = "*"
		case "priority":
			r.Priority = "*"
		case "address":
			r.Address = "*"
		}
	}
	if q.Rate != "" {
		return r, "rate", true
	}
	return r, "limits", len(q.Limits) > 0
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
