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
	// By says who asks, and Via how they are known: ViaSocket or ViaToken.
	By  string `json:"-"`
	Via string `json:"-"`
}

// Step is what an operation has done to one rule. Before or After is nil where there
// was or is none that was set at run time.
type Step struct {
	Gate    string `json:"gate"`
	Matches string `json:"matches"`
	Before  *Rule  `json:"before,omitempty"`
	After   *Rule  `json:"after,omitempty"`
	// Gives is what whom the rule matches has after the step, FileGives what the
	// configuration file gives them, each as [InFull] says it; empty where that has no
	// rule that matches the same.
	Gives     string `json:"gives,omitempty"`
	FileGives string `json:"file_gives,omitempty"`
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

// mostTold bounds the lines of a text about faults: who sets ten thousand rules with
// the same mistake wants to hear of it once.
const mostTold = 20

// Error lists the faults, one a line; the first ones, if there are many.
func (fs Faults) Error() string {
	var lines []string
	for i, f := range fs {
		if i == mostTold {
			lines = append(lines, fmt.Sprintf("and %d more", len(fs)-i))
			break
		}
		line := f.Error()
		if len(fs) > 1 && f.Op >= 0 {
			line = fmt.Sprintf("ops[%d]: %s", f.Op, line)
		}
		lines = append(lines, line)
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
	work := newDraft(d.Rules)
	touched := map[identity]int{}
	for i := range c.Ops {
		op := &c.Ops[i]
		made, missing, err := op.carryOut(work, c.By, now)
		if err != nil {
			faults.add(i, err)
			faults[len(faults)-1].Missing = missing
			continue
		}
		for _, s := range made {
			id := s.identity()
			if first, ok := touched[id]; ok && first != i {
				faults.add(i, fmt.Errorf("ops[%d] is about the same rule, %.100s of gate %.60s; leave one of them out", first, s.Matches, s.Gate))
			}
			touched[id] = i
			steps, by = append(steps, s), append(by, i)
		}
	}
	next = &document{Format: format, Revision: d.Revision + 1, Rules: work.list()}
	if n := len(next.Rules); n > MaxRules && n > len(d.Rules) {
		faults.add(-1, fmt.Errorf("%d rules would be kept, at most %d can be; delete some first", n, MaxRules))
	}
	return next, steps, by, faults
}

// identity is what the rule of a step is known by.
func (s *Step) identity() identity {
	r := s.After
	if r == nil {
		r = s.Before
	}
	return identityOf(s.Gate, &r.QuotaRuleSpec)
}

// carryOut does one operation to d.
func (op *Op) carryOut(d *draft, by string, now time.Time) (steps []Step, missing bool, err error) {
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

func (op *Op) set(d *draft, spec *policy.QuotaRuleSpec, by string, now time.Time) (Step, error) {
	r := Rule{Gate: op.Gate, QuotaRuleSpec: *spec, SetAt: now.UTC().Truncate(time.Second), SetBy: by}
	r.Limits = slices.Clone(spec.Limits)
	if err := r.sound(); err != nil {
		return Step{}, err
	}
	return Step{Gate: op.Gate, Matches: Matches(&r.QuotaRuleSpec), After: &r, Before: d.put(r)}, nil
}

// replace takes back all rules of the gate and sets others. A rule that stays as it
// is keeps when and by whom it was set, and is no step.
func (op *Op) replace(d *draft, by string, now time.Time) (steps []Step, err error) {
	if len(op.Replace) > MaxRules {
		return nil, fmt.Errorf("replace: %d rules, at most %d can be kept; leave some out", len(op.Replace), MaxRules)
	}
	was := map[parts]*Rule{}
	gone := d.clear(op.Gate)
	for _, r := range gone {
		was[partsOf(&r.QuotaRuleSpec)] = r
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
				d.put(*old)
				continue
			}
			step.Before = old
		}
		steps = append(steps, step)
	}
	for _, r := range gone {
		if was[partsOf(&r.QuotaRuleSpec)] != nil {
			steps = append(steps, taken(r))
		}
	}
	return steps, nil
}

func (op *Op) clear(d *draft) (steps []Step) {
	for _, r := range d.clear(op.Gate) {
		steps = append(steps, taken(r))
	}
	return steps
}

// taken is the step of a rule that is taken back.
func taken(r *Rule) Step {
	return Step{Gate: r.Gate, Matches: Matches(&r.QuotaRuleSpec), Before: r}
}

func (op *Op) remove(d *draft) (steps []Step, missing bool, err error) {
	bare := *op.Delete
	if bare.Rate != "" || bare.Burst != 0 || len(bare.Limits) > 0 || bare.Exempt || bare.Blocked || bare.Name != "" {
		return nil, false, fmt.Errorf("says what the rule gives; a rule is deleted by what it matches alone")
	}
	was := d.drop(op.Gate, &bare)
	if was == nil {
		return nil, true, fmt.Errorf("gate %.60s has no rule for %.100s that was set at run time; weir quota list shows those, and rules of the file are changed there", op.Gate, Matches(&bare))
	}
	return []Step{taken(was)}, false, nil
}
