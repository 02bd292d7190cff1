package quotas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	Delete *quota.Rule `json:"delete,omitempty"`
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

	identity identity
	op       int // which operation
}

// Fault is what is wrong with an operation.
type Fault struct {
	Op int // from 0; -1: with the change itself
	fault.Fault
	// Missing says that the rule to delete does not exist.
	Missing bool
}

// MarshalJSON writes the setting at fault as one text.
func (f Fault) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Op      int    `json:"op"`
		Field   string `json:"field,omitempty"`
		Problem string `json:"problem"`
		Instead string `json:"instead,omitempty"`
	}{f.Op, f.Path.String(), f.Problem, f.Instead})
}

// faultAt returns the fault of an operation's field; an empty one is the operation itself.
func faultAt(op int, field, problem, instead string) Fault {
	f := Fault{Op: op, Fault: fault.Fault{Problem: problem, Instead: instead}}
	if field != "" {
		f.Path = fault.Path{field}
	}
	return f
}

// faultf returns a fault. The arguments are those of the problem.
func faultf(instead, problem string, args ...any) Fault {
	return faultAt(-1, "", fmt.Sprintf(problem, args...), instead)
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

// add adds a fault of an operation: a Fault, or one of package fault.
func (fs *Faults) add(op int, err error) {
	var f Fault
	if !errors.As(err, &f) {
		errors.As(err, &f.Fault)
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
			faults = append(faults, faultAt(i, "gate", "no gate has a quota", "add one to the configuration"))
		default:
			faults = append(faults, faultAt(i, "gate", "is missing", "write one of "+strings.Join(gates[:min(len(gates), 10)], ", ")))
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
	next, steps, faults := c.carryOut(saved.doc, time.Now())
	faults = append(faults, unknownGates(plan, saved.doc, c)...)
	for _, s := range steps {
		if s.After == nil {
			continue
		}
		for _, f := range misfits(&plan.spec, s.After) {
			faults.add(s.op, f)
		}
	}
	if len(faults) > 0 {
		return res, faults
	}
	data, err := next.encode()
	if err != nil {
		return res, Faults{faultf("", "%v", err)}
	}
	if len(data) > saved.store.Most() {
		return res, Faults{faultf("delete some, or keep the rules of one gateway in a file", "the rules would take %d bytes, and %s can keep %d", len(data), saved.where(), saved.store.Most())}
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
		faults = append(faults, Fault{Op: i, Fault: noQuota(&plan.spec, op.Gate, ok), Missing: true})
	}
	return faults
}

// carryOut returns the document after the change, and what is different.
func (c *Change) carryOut(d *document, now time.Time) (next *document, steps []Step, faults Faults) {
	next = newDocument(d.Revision+1, d.Rules)
	var touched []identity
	by := map[identity]int{} // the operation
	for i := range c.Ops {
		ids, err := c.Ops[i].carryOut(next, c.By, now)
		if err != nil {
			faults.add(i, err)
		}
		for _, id := range ids {
			first, ok := by[id]
			if !ok {
				touched = append(touched, id)
			} else if first != i {
				faults.add(i, faultf("leave one of them out", "ops[%d] is about the same rule, %.100s of gate %.60s", first, id.Pattern, id.gate))
			}
			by[id] = i
		}
	}
	next = newDocument(next.Revision, next.Rules)
	for _, id := range touched {
		steps = append(steps, Step{Gate: id.gate, Matches: id.Pattern.String(), Before: d.find(id), After: next.find(id), identity: id, op: by[id]})
	}
	if n := len(next.Rules); n > MaxRules && n > len(d.Rules) {
		faults = append(faults, faultf("delete some first", "%d rules would be kept, at most %d can be", n, MaxRules))
	}
	return next, steps, faults
}

// carryOut carries out one operation on d. It returns which rules it has touched.
func (op *Op) carryOut(d *document, by string, now time.Time) (touched []identity, err error) {
	asked := 0
	for _, is := range []bool{op.Set != nil, op.Delete != nil, op.Replace != nil, op.Clear} {
		if is {
			asked++
		}
	}
	switch {
	case asked != 1:
		return nil, faultf("write one of set, delete, replace and clear", "asks for %d things", asked)
	case op.Delete != nil:
		return op.remove(d)
	case op.Set == nil:
		return op.replace(d, by, now)
	case op.Set.Name != "":
		return nil, errNamed
	}
	r := op.rule(op.Set, by, now)
	d.put(r)
	return []identity{r.identity()}, nil
}

// rule is a rule of the gate that is set now.
func (op *Op) rule(spec *policy.QuotaRuleSpec, by string, now time.Time) Rule {
	r := Rule{Gate: op.Gate, QuotaRuleSpec: *spec, SetAt: now.UTC().Truncate(time.Second), SetBy: by}
	r.Limits = slices.Clone(spec.Limits)
	return r
}

// replace removes all rules of the gate and sets others, if there are any. A rule that does not
// change is not touched. It keeps the record of when and by whom it was set.
func (op *Op) replace(d *document, by string, now time.Time) (touched []identity, err error) {
	if len(op.Replace) > MaxRules {
		return nil, faultf("leave some out", "replace: %d rules, at most %d can be kept", len(op.Replace), MaxRules)
	}
	gone := d.clear(op.Gate)
	was := newDocument(0, gone)
	for i := range op.Replace {
		r := op.rule(&op.Replace[i], by, now)
		id := r.identity()
		old := was.find(id)
		if unchanged := r.same(old); unchanged {
			r = *old
		} else {
			touched = append(touched, id)
		}
		twice := d.put(r)
		switch {
		case r.Name != "":
			return nil, faultf(errNamed.Instead, "replace[%d]: %s", i, errNamed.Problem)
		case twice:
			return nil, faultf("leave one of them out", "replace[%d] is about the same as another, %.100s", i, id.Pattern)
		}
	}
	for i := range gone {
		if id := gone[i].identity(); d.find(id) == nil {
			touched = append(touched, id)
		}
	}
	return touched, nil
}

func (op *Op) remove(d *document) (touched []identity, err error) {
	id := identity{op.Gate, op.Delete.Pattern()}
	if op.Delete.Exempt || op.Delete.Blocked || op.Delete.Name != "" {
		return nil, faultf("a rule is deleted by what it matches alone", "says what the rule gives")
	}
	if !d.remove(id) {
		f := faultf("weir quota list shows those, and rules of the file are changed there",
			"gate %.60s has no rule for %.100s that was set at run time", op.Gate, id.Pattern)
		f.Missing = true
		return nil, f
	}
	return []identity{id}, nil
}
