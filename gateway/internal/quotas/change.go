package quotas

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/policy"
)

// MaxOps bounds the operations of one change.
const MaxOps = 1000

// Op is one operation on the rules of a gate: one of Set, Delete, Replace and Clear.
type Op struct {
	// Gate names the gate. It may be left out where only one has a quota.
	Gate string `json:"gate,omitempty"`
	// Set puts a rule in force, in the place of one that matches the same.
	Set *policy.QuotaRuleSpec `json:"set,omitempty"`
	// Delete takes back the rule that matches what is named; what the file says is in
	// force again.
	Delete *policy.QuotaRuleSpec `json:"delete,omitempty"`
	// Replace puts these rules in force and takes back all others of the gate.
	Replace []policy.QuotaRuleSpec `json:"replace,omitempty"`
	// Clear takes back all rules of the gate.
	Clear bool `json:"clear,omitempty"`
}

// Change is a request: all of its operations are carried out, or none.
type Change struct {
	Ops []Op `json:"ops"`
	// ValidateOnly asks what would happen, and changes nothing.
	ValidateOnly bool `json:"validate_only,omitempty"`
	// IfMatch is the entity tag of the rules that the writer has seen; empty where any
	// will do.
	IfMatch string `json:"-"`
	// By says who asks.
	By string `json:"-"`
}

// Step is what an operation has done to one rule. Before or After is nil where there
// was or is none.
type Step struct {
	Gate    string `json:"gate"`
	Matches string `json:"matches"`
	Before  *Rule  `json:"before,omitempty"`
	After   *Rule  `json:"after,omitempty"`
}

// Fault is what is wrong with an operation.
type Fault struct {
	Op      int    `json:"op"`              // from 0; -1: with the change itself
	Field   string `json:"field,omitempty"` // as in "rate"
	Problem string `json:"problem"`
	Instead string `json:"instead,omitempty"`
	// Missing says that there is no such rule to delete.
	Missing bool `json:"-"`
}

// Error says what is wrong, and what to write instead.
func (f Fault) Error() string {
	text := f.Problem
	if f.Field != "" {
		text = f.Field + ": " + text
	}
	if f.Instead != "" {
		text += "; " + f.Instead
	}
	return text
}

// Faults is everything that is wrong with a change.
type Faults []Fault

// Error lists the faults, one a line.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.Error()
		if len(fs) > 1 && f.Op >= 0 {
			lines[i] = fmt.Sprintf("ops[%d]: %s", f.Op, lines[i])
		}
	}
	return strings.Join(lines, "\n")
}

func (fs *Faults) add(op int, err error) {
	problem, instead, _ := strings.Cut(err.Error(), "; ")
	*fs = append(*fs, Fault{Op: op, Problem: problem, Instead: instead})
}

// carryOut returns the document after the change, and what is different: steps[i] is
// by operation by[i].
func (c *Change) carryOut(d *document, now time.Time) (next *document, steps []Step, by []int, faults Faults) {
	next = &document{Format: format, Revision: d.Revision + 1, Rules: slices.Clone(d.Rules)}
	touched := map[string]int{}
	for i := range c.Ops {
		op := &c.Ops[i]
		made, missing, err := op.carryOut(next, c.By, now)
		if err != nil {
			faults.add(i, err)
			faults[len(faults)-1].Missing = missing
			continue
		}
		for _, s := range made {
			if first, ok := touched[s.Gate+"\x00"+s.Matches]; ok && first != i {
				faults.add(i, fmt.Errorf("ops[%d] is about the same rule, %.100s of gate %.60s; leave one of them out", first, s.Matches, s.Gate))
			}
			touched[s.Gate+"\x00"+s.Matches] = i
			steps, by = append(steps, s), append(by, i)
		}
	}
	if len(next.Rules) > MaxRules {
		faults.add(-1, fmt.Errorf("%d rules are more than %d; delete some first", len(next.Rules), MaxRules))
	}
	return next, steps, by, faults
}

// carryOut does one operation to d.
func (op *Op) carryOut(d *document, by string, now time.Time) (steps []Step, missing bool, err error) {
	asked := 0
	for _, is := range []bool{op.Set != nil, op.Delete != nil, op.Replace != nil, op.Clear} {
		if is {
			asked++
		}
	}
	switch {
	case asked != 1:
		return nil, false, fmt.Errorf("asks for %d things; write one of set, delete, replace and clear", asked)
	case op.Clear:
		return op.clear(d), false, nil
	case op.Delete != nil:
		return op.remove(d)
	case op.Replace != nil:
		steps, err = op.replace(d, by, now)
		return steps, false, err
	}
	step, err := op.set(d, op.Set, by, now)
	return []Step{step}, false, err
}

func (op *Op) set(d *document, spec *policy.QuotaRuleSpec, by string, now time.Time) (Step, error) {
	r := Rule{Gate: op.Gate, QuotaRuleSpec: *spec, SetAt: now.UTC().Truncate(time.Second), SetBy: by}
	r.Limits = slices.Clone(spec.Limits)
	if err := r.sound(); err != nil {
		return Step{}, err
	}
	step := Step{Gate: op.Gate, Matches: Matches(&r.QuotaRuleSpec), After: &r}
	if i := d.find(op.Gate, &r.QuotaRuleSpec); i >= 0 {
		was := d.Rules[i]
		step.Before, d.Rules[i] = &was, r
	} else {
		d.Rules = append(d.Rules, r)
	}
	return step, nil
}

// replace takes back all rules of the gate and sets others. A rule that stays as it
// is keeps when and by whom it was set, and is no step.
func (op *Op) replace(d *document, by string, now time.Time) (steps []Step, err error) {
	gone := op.clear(d)
	was := map[parts]*Rule{}
	for i := range gone {
		was[partsOf(&gone[i].Before.QuotaRuleSpec)] = gone[i].Before
	}
	for i := range op.Replace {
		step, err := op.set(d, &op.Replace[i], by, now)
		switch {
		case err != nil:
			return nil, fmt.Errorf("replace[%d]: %w", i, err)
		case step.Before != nil:
			return nil, fmt.Errorf("replace[%d] is about the same as another, %.100s; leave one of them out", i, step.Matches)
		}
		p := partsOf(&op.Replace[i])
		if old, ok := was[p]; ok {
			delete(was, p)
			if reflect.DeepEqual(old.QuotaRuleSpec, step.After.QuotaRuleSpec) {
				d.Rules[len(d.Rules)-1] = *old
				continue
			}
			step.Before = old
		}
		steps = append(steps, step)
	}
	for _, s := range gone {
		if was[partsOf(&s.Before.QuotaRuleSpec)] != nil {
			steps = append(steps, s)
		}
	}
	return steps, nil
}

func (op *Op) clear(d *document) (steps []Step) {
	d.Rules = slices.DeleteFunc(d.Rules, func(r Rule) bool {
		if r.Gate == op.Gate {
			steps = append(steps, Step{Gate: op.Gate, Matches: Matches(&r.QuotaRuleSpec), Before: &r})
		}
		return r.Gate == op.Gate
	})
	return steps
}

func (op *Op) remove(d *document) (steps []Step, missing bool, err error) {
	bare := *op.Delete
	if bare.Rate != "" || bare.Burst != 0 || len(bare.Limits) > 0 || bare.Exempt || bare.Blocked || bare.Name != "" {
		return nil, false, fmt.Errorf("says what the rule gives; a rule is deleted by what it matches alone")
	}
	i := d.find(op.Gate, &bare)
	if i < 0 {
		return nil, true, fmt.Errorf("gate %.60s has no rule for %.100s that was set at run time; weir quota list shows those, and rules of the file are changed there", op.Gate, Matches(&bare))
	}
	was := d.Rules[i]
	d.Rules = slices.Delete(d.Rules, i, i+1)
	return []Step{{Gate: op.Gate, Matches: Matches(&bare), Before: &was}}, false, nil
}

// find returns the place of the rule of a gate that matches the same, -1 if there is
// none.
func (d *document) find(gate string, like *policy.QuotaRuleSpec) int {
	p := partsOf(like)
	return slices.IndexFunc(d.Rules, func(r Rule) bool { return r.Gate == gate && partsOf(&r.QuotaRuleSpec) == p })
}
