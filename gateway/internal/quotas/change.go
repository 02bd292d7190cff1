package quotas

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
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

// Result is what came of a change.
type Result struct {
	ETag         string `json:"etag"`
	ValidateOnly bool   `json:"validate_only,omitempty"`
	Steps        []Step `json:"steps"`
}

// attempts bounds how often a change is made again because somebody else was faster.
const attempts = 10

// Change carries out c, all of it or nothing. When it returns without an error the
// change is kept and in force. Each step is logged, and so is what was refused.
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
	if b.store == nil {
		return Result{}, ErrNowhere
	}
	if err := b.name(c); err != nil {
		return Result{}, err
	}
	for range attempts {
		if err := b.refresh(ctx); errors.Is(err, ErrChanged) {
			continue
		} else if err != nil {
			b.noted(err)
			return Result{}, fmt.Errorf("the rules cannot be read, so %w: %w", ErrUnchanged, err)
		}
		res, err := b.attempt(ctx, c)
		if !errors.Is(err, ErrChanged) {
			return res, err
		}
	}
	return Result{}, fmt.Errorf("%w, %d times while this change was made; repeat it", ErrChanged, attempts)
}

// name fills in the gate where it can be only one, and checks the number of ops.
func (b *Book) name(c *Change) error {
	if len(c.Ops) == 0 || len(c.Ops) > MaxOps {
		return Faults{{Op: -1, Problem: fmt.Sprintf("has %d operations", len(c.Ops)), Instead: fmt.Sprintf("write from 1 to %d", MaxOps)}}
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

// attempt makes the change to the rules as they are known.
func (b *Book) attempt(ctx context.Context, c *Change) (Result, error) {
	b.mu.Lock()
	doc, was, plan := b.doc, b.tag, b.plan
	b.mu.Unlock()
	if c.IfMatch != "" && c.IfMatch != "*" && c.IfMatch != was {
		return Result{ETag: was}, ErrPrecondition
	}
	next, steps, by, faults := c.carryOut(doc, time.Now())
	faults = append(faults, strangers(plan, doc, c)...)
	if faults = append(faults, unfit(plan, next, steps, by)...); len(faults) > 0 {
		return Result{ETag: was}, faults
	}
	data, err := next.encode()
	if err == nil {
		err = tooLarge(b.store, data)
	}
	if err != nil {
		faults.add(-1, err)
		return Result{ETag: was}, faults
	}
	plan.tellFile(steps)
	res := Result{ETag: was, ValidateOnly: c.ValidateOnly, Steps: append([]Step{}, steps...)}
	if c.ValidateOnly {
		return res, nil
	}
	if err := b.store.Write(ctx, was, data); err != nil {
		b.mu.Lock()
		b.tally.failed(&unwritten{err})
		b.mu.Unlock()
		return Result{ETag: was}, err
	}
	res.ETag = tag(data)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = time.Now()
	b.takeLocked(next, res.ETag)
	return res, nil
}

// tooLarge is the error of a document that a store cannot take.
func tooLarge(s Store, data []byte) error {
	if most := s.Most(); len(data) > most {
		return fmt.Errorf("the rules would take %d bytes, and %s can keep %d; delete some, or keep the rules of one gateway in a file", len(data), s.Name(), most)
	}
	return nil
}

// strangers returns the operations that would take back all rules of a gate which there
// is not, and never was: likely a name that is written wrong.
func strangers(plan *Plan, doc *document, c *Change) (faults Faults) {
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

// unfit returns what is wrong with the rules that steps have set. Those that were set
// before may not fit either; that is no fault of this change.
func unfit(plan *Plan, next *document, steps []Step, by []int) (faults Faults) {
	set := &document{}
	var ops []int
	for i, s := range steps {
		if s.After != nil {
			set.Rules = append(set.Rules, *s.After)
			ops = append(ops, by[i])
		}
	}
	found := misfits(&plan.spec, set.Rules)
	for i := range set.Rules {
		for _, f := range found[i] {
			f.Op = ops[i]
			faults = append(faults, f)
		}
	}
	return faults
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
	was := map[quota.Pattern]*Rule{}
	gone := d.clear(op.Gate)
	for _, r := range gone {
		was[r.Pattern()] = r
	}
	for i := range op.Replace {
		step, err := op.set(d, &op.Replace[i], by, now)
		switch {
		case err != nil:
			return nil, fmt.Errorf("replace[%d]: %w", i, err)
		case step.Before != nil:
			return nil, fmt.Errorf("replace[%d] is about the same as another, %.100s; leave one of them out", i, step.Matches)
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

// identity is what a rule is known by: two with the same are one rule.
type identity struct {
	gate string
	quota.Pattern
}

func identityOf(gate string, r *policy.QuotaRuleSpec) identity { return identity{gate, r.Pattern()} }

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
