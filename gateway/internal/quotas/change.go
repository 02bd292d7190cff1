package quotas

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// MaxOps bounds the operations of one change.
const MaxOps = 1000

// Change is a request: all of its operations are carried out, or none.
type Change struct {
	Ops []Op `json:"ops"`
	// ValidateOnly asks what would happen, and changes nothing.
	ValidateOnly bool `json:"validate_only,omitempty"`
	// IfMatch is the entity tag of the rules that the writer has seen. If it is empty, any
	// will do.
	IfMatch string `json:"-"`
	// By says who asks, and Via how they are known: ViaSocket or ViaToken.
	By  string `json:"-"`
	Via string `json:"-"`
}

// Op is one operation on the rules of a gate: one of Set, Delete, Replace and Clear.
type Op struct {
	// Gate names the gate. It may be left out if only one has a quota.
	Gate string `json:"gate,omitempty"`
	// Set sets a rule. It replaces the rule that matches the same.
	Set *policy.QuotaRuleSpec `json:"set,omitempty"`
	// Delete removes the rule that matches the same; the file's rule holds again.
	Delete *policy.QuotaRuleSpec `json:"delete,omitempty"`
	// Replace sets these rules and removes all others of the gate.
	Replace []policy.QuotaRuleSpec `json:"replace,omitempty"`
	// Clear removes all rules of the gate.
	Clear bool `json:"clear,omitempty"`
}

// Result is what came of a change.
type Result struct {
	ETag         string `json:"etag"`
	ValidateOnly bool   `json:"validate_only,omitempty"`
	Steps        []Step `json:"steps"`
}

// Step is what an operation has done to one rule. Before or After is nil if no rule was or
// is set at run time.
type Step struct {
	Gate    string `json:"gate"`
	Matches string `json:"matches"`
	Before  *Rule  `json:"before,omitempty"`
	After   *Rule  `json:"after,omitempty"`
	// Gives is what holds after the step for work that the rule matches, and FileGives
	// what the configuration file gives it, as [FullTerms] says it. They are empty if
	// there is no rule that matches the same.
	Gives     string `json:"gives,omitempty"`
	FileGives string `json:"file_gives,omitempty"`
}

// Fault is what is wrong with an operation.
type Fault struct {
	Op      int    `json:"op"`              // from 0; -1: with the change itself
	Field   string `json:"field,omitempty"` // as in "rate"
	Problem string `json:"problem"`
	Instead string `json:"instead,omitempty"`
	// Missing says that the rule to delete does not exist.
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

// faultf returns a Fault. The arguments are those of the problem.
func faultf(instead, problem string, args ...any) Fault {
	return Fault{Op: -1, Problem: fmt.Sprintf(problem, args...), Instead: instead}
}

// Faults is everything that is wrong with a change.
type Faults []Fault

// mostFaults bounds the lines of a text about faults. Ten thousand rules may have the same mistake,
// and it need not be read so often.
const mostFaults = 20

// Error lists the faults, one a line, and at most twenty.
func (fs Faults) Error() string {
	var lines []string
	for i, f := range fs {
		if i == mostFaults {
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

// add adds what is wrong with an operation.
func (fs *Faults) add(op int, err error) {
	var f Fault
	var value fault.Fault
	if errors.As(err, &value) {
		f.Problem, f.Instead = value.Problem, value.Instead
	} else if !errors.As(err, &f) {
		f.Problem = err.Error()
	}
	f.Op = op
	*fs = append(*fs, f)
}

// attempts bounds how often a change is tried because others were faster.
const attempts = 10

// Change carries out c, all of it or nothing. If it returns without an error the change is
// kept and in force. Each step is logged, and so is a refusal.
//
// The error is a [Faults] about the change, ErrNowhere, ErrPrecondition, or the
// store's.
func (b *Book) Change(ctx context.Context, c Change) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.changing.Lock()
	defer b.changing.Unlock()
	res, err := b.change(ctx, &c)
	b.audit(&c, &res, err)
	return res, err
}

func (b *Book) change(ctx context.Context, c *Change) (Result, error) {
	if b.saved.store == nil {
		return Result{}, ErrNowhere
	}
	if err := b.fillGates(c); err != nil {
		return Result{}, err
	}
	for range attempts {
		if err := b.refresh(ctx); errors.Is(err, ErrChanged) {
			continue
		} else if err != nil {
			b.logTrouble(err)
			return Result{}, fmt.Errorf("the rules cannot be read, so %w: %w", ErrUnchanged, err)
		}
		res, err := b.attempt(ctx, c)
		if !errors.Is(err, ErrChanged) {
			return res, err
		}
	}
	return Result{}, fmt.Errorf("%w, %d times while this change was tried; repeat it", ErrChanged, attempts)
}

// fillGates fills in the gate if it can be only one, and checks the number of operations.
func (b *Book) fillGates(c *Change) error {
	if len(c.Ops) == 0 || len(c.Ops) > MaxOps {
		return Faults{faultf(fmt.Sprintf("write from 1 to %d", MaxOps), "has %d operations", len(c.Ops))}
	}
	b.mu.Lock()
	gates := quotaGates(&b.plan.spec)
	b.mu.Unlock()
	c.Ops = slices.Clone(c.Ops)
	var faults Faults
	for i := range c.Ops {
		switch {
		case c.Ops[i].Gate != "":
		case len(gates) == 1:
			c.Ops[i].Gate = gates[0]
		case len(gates) == 0:
			faults = append(faults, Fault{Op: i, Field: "gate", Problem: "no gate has a quota", Instead: "add one to the configuration"})
		default:
			faults = append(faults, Fault{Op: i, Field: "gate", Problem: "is missing", Instead: "write one of " + strings.Join(gates[:min(len(gates), 10)], ", ")})
		}
	}
	if len(faults) > 0 {
		return faults
	}
	return nil
}

// attempt makes the change to the known rules.
func (b *Book) attempt(ctx context.Context, c *Change) (Result, error) {
	b.mu.Lock()
	saved, plan := b.saved, b.plan
	b.mu.Unlock()
	res := Result{ETag: saved.tag, ValidateOnly: c.ValidateOnly}
	if c.IfMatch != "" && c.IfMatch != "*" && c.IfMatch != saved.tag {
		return res, ErrPrecondition
	}
	next, steps, by, faults := c.carryOut(saved.doc, time.Now())
	faults = append(faults, unknownGates(plan, saved.doc, c)...)
	for i, s := range steps {
		if s.After == nil {
			continue
		}
		for _, f := range misfits(&plan.spec, s.After) {
			f.Op = by[i]
			faults = append(faults, f)
		}
	}
	if len(faults) > 0 {
		return res, faults
	}
	data, err := next.encode()
	if err == nil && len(data) > saved.store.Most() {
		err = faultf("delete some, or keep the rules of one gateway in a file", "the rules would take %d bytes, and %s can keep %d", len(data), saved.where(), saved.store.Most())
	}
	if err != nil {
		faults.add(-1, err)
		return res, faults
	}
	plan.describe(steps)
	res.Steps = append([]Step{}, steps...)
	if c.ValidateOnly {
		return res, nil
	}
	if err := saved.store.Write(ctx, saved.tag, data); err != nil {
		b.mu.Lock()
		b.tally.failed(&unwritten{err})
		b.mu.Unlock()
		return Result{ETag: saved.tag}, err
	}
	res.ETag = tag(data)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved.read = time.Now()
	b.adoptLocked(next, res.ETag)
	return res, nil
}

// unknownGates returns a fault for each operation that would remove all rules of an unknown gate
// without rules. Its name is probably misspelt.
func unknownGates(plan *Plan, doc *document, c *Change) (faults Faults) {
	has := gatesOf(doc)
	for i := range c.Ops {
		op := &c.Ops[i]
		g, ok := plan.spec.Gates[op.Gate]
		if has[op.Gate] || ok && g.Quota != nil || !op.Clear && !(op.Replace != nil && len(op.Replace) == 0) {
			continue
		}
		f := noQuota(&plan.spec, op.Gate, ok)
		f.Op, f.Missing = i, true
		faults = append(faults, f)
	}
	return faults
}

// carryOut returns the document after the change, and what is different: steps[i] is
// by operation by[i].
func (c *Change) carryOut(d *document, now time.Time) (next *document, steps []Step, by []int, faults Faults) {
	work := newDraft(d.Rules)
	touched := map[identity]int{}
	for i := range c.Ops {
		made, err := c.Ops[i].carryOut(work, c.By, now)
		if err != nil {
			faults.add(i, err)
			continue
		}
		for _, s := range made {
			id := s.identity()
			if first, ok := touched[id]; ok && first != i {
				faults.add(i, faultf("leave one of them out", "ops[%d] is about the same rule, %.100s of gate %.60s", first, s.Matches, s.Gate))
			}
			touched[id] = i
			steps, by = append(steps, s), append(by, i)
		}
	}
	next = &document{Format: format, Revision: d.Revision + 1, Rules: work.list()}
	if n := len(next.Rules); n > MaxRules && n > len(d.Rules) {
		faults = append(faults, faultf("delete some first", "%d rules would be kept, at most %d can be", n, MaxRules))
	}
	return next, steps, by, faults
}

// identity is what the rule of a step is known by.
func (s *Step) identity() identity {
	if s.After != nil {
		return s.After.identity()
	}
	return s.Before.identity()
}

// carryOut carries out one operation on d.
func (op *Op) carryOut(d *draft, by string, now time.Time) (steps []Step, err error) {
	asked := 0
	for _, is := range []bool{op.Set != nil, op.Delete != nil, op.Replace != nil, op.Clear} {
		if is {
			asked++
		}
	}
	switch {
	case asked != 1:
		return nil, faultf("write one of set, delete, replace and clear", "asks for %d things", asked)
	case op.Clear:
		for _, r := range d.clear(op.Gate) {
			steps = append(steps, removal(r))
		}
		return steps, nil
	case op.Delete != nil:
		return op.remove(d)
	case op.Replace != nil:
		return op.replace(d, by, now)
	}
	step, err := op.set(d, op.Set, by, now)
	return []Step{step}, err
}

func (op *Op) set(d *draft, spec *policy.QuotaRuleSpec, by string, now time.Time) (Step, error) {
	r := Rule{Gate: op.Gate, QuotaRuleSpec: *spec, SetAt: now.UTC().Truncate(time.Second), SetBy: by}
	r.Limits = slices.Clone(spec.Limits)
	if err := r.check(); err != nil {
		return Step{}, err
	}
	return Step{Gate: op.Gate, Matches: Matches(&r.QuotaRuleSpec), After: &r, Before: d.put(r)}, nil
}

// replace removes all rules of the gate and sets others. A rule that does not change is no step. It
// keeps the record of when and by whom it was set.
func (op *Op) replace(d *draft, by string, now time.Time) (steps []Step, err error) {
	if len(op.Replace) > MaxRules {
		return nil, faultf("leave some out", "replace: %d rules, at most %d can be kept", len(op.Replace), MaxRules)
	}
	was := map[quota.Pattern]*Rule{}
	gone := d.clear(op.Gate)
	for _, r := range gone {
		was[r.Pattern()] = r
	}
	for i := range op.Replace {
		step, err := op.set(d, &op.Replace[i], by, now)
		switch {
		case err != nil:
			var faults Faults
			faults.add(-1, err)
			faults[0].Problem = fmt.Sprintf("replace[%d]: %s", i, faults[0].Problem)
			return nil, faults[0]
		case step.Before != nil:
			return nil, faultf("leave one of them out", "replace[%d] is about the same as another, %.100s", i, step.Matches)
		}
		p := op.Replace[i].Pattern()
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
		if was[r.Pattern()] != nil {
			steps = append(steps, removal(r))
		}
	}
	return steps, nil
}

func (op *Op) remove(d *draft) (steps []Step, err error) {
	like := *op.Delete
	if like.Rate != "" || like.Burst != 0 || len(like.Limits) > 0 || like.Exempt || like.Blocked || like.Name != "" {
		return nil, faultf("a rule is deleted by what it matches alone", "says what the rule gives")
	}
	was := d.remove(identity{op.Gate, like.Pattern()})
	if was == nil {
		f := faultf("weir quota list shows those, and rules of the file are changed there",
			"gate %.60s has no rule for %.100s that was set at run time", op.Gate, Matches(&like))
		f.Missing = true
		return nil, f
	}
	return []Step{removal(was)}, nil
}

// removal is the step of a rule that is removed.
func removal(r *Rule) Step {
	return Step{Gate: r.Gate, Matches: Matches(&r.QuotaRuleSpec), Before: r}
}

// identity is what a rule is known by: two with the same are one rule.
type identity struct {
	gate string
	quota.Pattern
}

func (r *Rule) identity() identity { return identity{r.Gate, r.Pattern()} }

// draft is rules that are being changed. To find or remove one takes the same time however
// many there are.
type draft struct {
	rules []Rule // a removed one names no gate
	at    map[identity]int
}

func newDraft(rules []Rule) *draft {
	d := &draft{rules: slices.Clone(rules), at: make(map[identity]int, len(rules))}
	for i := range rules {
		d.at[rules[i].identity()] = i
	}
	return d
}

// put adds r, or replaces the rule that matches the same and returns that.
func (d *draft) put(r Rule) (was *Rule) {
	id := r.identity()
	if i, ok := d.at[id]; ok {
		old := d.rules[i]
		d.rules[i] = r
		return &old
	}
	d.at[id] = len(d.rules)
	d.rules = append(d.rules, r)
	return nil
}

// remove removes a rule and returns it, nil if there is none.
func (d *draft) remove(id identity) *Rule {
	i, ok := d.at[id]
	if !ok {
		return nil
	}
	was := d.rules[i]
	d.rules[i] = Rule{}
	delete(d.at, id)
	return &was
}

// clear removes all rules of a gate and returns them in order.
func (d *draft) clear(gate string) (was []*Rule) {
	for i := range d.rules {
		if r := &d.rules[i]; r.Gate == gate && gate != "" {
			was = append(was, d.remove(r.identity()))
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
		at, ok := there.at[r.identity()]
		if !ok || !reflect.DeepEqual(other.Rules[at].QuotaRuleSpec, r.QuotaRuleSpec) {
			n++
		}
	}
	return n
}
