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
	// MayMiss says that a rule to delete need not be there. If it is the file's, that is a fault
	// still.
	MayMiss bool `json:"-"`
	// By says who asks, and Via how they are known: ViaSocket, ViaToken or ViaKafka.
	By  string `json:"-"`
	Via string `json:"-"`
}

// Op is one operation on the rules of a gate: one of Set, Delete, Replace and Clear.
type Op struct {
	// Gate names the gate. It may be left out if only one has a quota.
	Gate string `json:"gate,omitempty"`
	// Set sets a rule. It replaces the rule that matches the same. Asked is the Asked of that rule.
	Set   *policy.QuotaRuleSpec `json:"set,omitempty"`
	Asked float64               `json:"asked,omitempty"`
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

	alone bool // the change has no other operation
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

// Error lists the faults, one a line, and at most twenty. It numbers the operations if the change has several.
func (fs Faults) Error() string {
	var lines []string
	for i, f := range fs {
		if i == mostFaults {
			lines = append(lines, fmt.Sprintf("and %d more", len(fs)-i))
			break
		}
		line := f.Error()
		if f.Op >= 0 && !f.alone {
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

// of says that the faults are those of a change.
func (fs Faults) of(c *Change) Faults {
	for i := range fs {
		fs[i].alone = len(c.Ops) == 1
	}
	return fs
}

// attempts bounds how often a change is tried because others were faster.
const attempts = 10

// Change carries out c, all of it or nothing. If it returns without an error the change is
// kept and in force. Each step is logged, and so is a refusal.
//
// The error is a [Faults] about the change, ErrNowhere, ErrPrecondition, or the
// store's.
func (b *Book) Change(ctx context.Context, c Change) (Result, error) {
	a := b.Each(ctx, []Change{c})[0]
	return a.Result, a.Err
}

// Answer is what came of one of several changes.
type Answer struct {
	Result
	Err error // as of [Book.Change]
}

// Each carries out several changes in their order, each of them as [Book.Change] does. A fault of one undoes
// no other. They are written together, so where the store fails, none is kept.
func (b *Book) Each(ctx context.Context, all []Change) []Answer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.changing.Lock()
	defer b.changing.Unlock()
	all, answers := slices.Clone(all), make([]Answer, len(all))
	b.each(ctx, all, answers)
	for i := range all {
		b.audit(&all[i], &answers[i].Result, answers[i].Err)
	}
	return answers
}

func (b *Book) each(ctx context.Context, all []Change, answers []Answer) {
	open := make([]int, 0, len(all)) // the changes that have no answer yet
	for i := range all {
		if b.saved.store == nil {
			answers[i].Err = b.nowhere(&all[i])
		} else if answers[i].Err = b.fillGates(&all[i]); answers[i].Err == nil {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return
	}
	fail := func(err error) {
		for _, i := range open {
			answers[i].Err = err
		}
	}
	for range attempts {
		if err := b.refresh(ctx); errors.Is(err, ErrChanged) {
			continue
		} else if err != nil {
			b.logTrouble(err)
			fail(fmt.Errorf("the rules cannot be read, so %w: %w", ErrUnchanged, err))
			return
		}
		if !b.attempt(ctx, all, open, answers) {
			return
		}
	}
	fail(fmt.Errorf("%w, %d times while this change was tried; repeat it", ErrChanged, attempts))
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
		return faults.of(c)
	}
	return nil
}

// nowhere is what comes of a change where nothing is kept: what need not be there can be deleted, if it is not the file's.
func (b *Book) nowhere(c *Change) error {
	b.mu.Lock()
	plan := b.plan
	b.mu.Unlock()
	if !c.MayMiss || plan == nil || len(c.Ops) == 0 || slices.ContainsFunc(c.Ops, func(op Op) bool { return op.Delete == nil }) {
		return ErrNowhere
	}
	if _, _, faults := c.checkAgainst(plan, plan.doc); len(faults) > 0 {
		return faults
	}
	return nil
}

// attempt makes the open changes to the known rules. It returns true if others were faster, and nothing has come of it.
func (b *Book) attempt(ctx context.Context, all []Change, open []int, answers []Answer) (again bool) {
	b.mu.Lock()
	saved, plan := b.saved, b.plan
	b.mu.Unlock()
	d := draft{doc: saved.doc, largest: saved.doc}
	for _, i := range open {
		d.add(i, &all[i], &answers[i], &saved, plan)
	}
	if len(d.made) == 0 {
		return false
	}
	data, err := b.write(ctx, &saved, &d)
	for _, i := range d.made {
		idle := all[i].MayMiss && len(answers[i].Steps) == 0 // there is nothing to write
		if err != nil && !idle {
			answers[i] = Answer{Result{ETag: saved.tag}, err}
		} else if err == nil && d.changed {
			answers[i].ETag = tag(data)
		}
	}
	if err == nil && d.changed {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.saved.read = time.Now()
		b.setDocumentLocked(d.doc, tag(data))
	}
	return errors.Is(err, ErrChanged)
}

// draft is a document with changes that is not written yet.
type draft struct {
	doc     *document // with all but those that are only validated
	largest *document // what has to fit: the last with any change
	made    []int     // which changes fit the rules
	changed bool      // doc is to be written
}

// add makes a change to the draft, or sets its answer to what is wrong with it.
func (d *draft) add(i int, c *Change, a *Answer, saved *Saved, plan *Plan) {
	*a = Answer{Result: Result{ETag: saved.tag, ValidateOnly: c.ValidateOnly}}
	if c.IfMatch != "" && c.IfMatch != "*" && c.IfMatch != saved.tag {
		a.Err = ErrPrecondition
		return
	}
	next, steps, faults := c.checkAgainst(plan, d.doc)
	if len(faults) > 0 {
		a.Err = faults
		return
	}
	plan.describe(steps)
	a.Steps = append([]Step{}, steps...)
	d.made, d.largest = append(d.made, i), next
	if !c.ValidateOnly {
		d.doc, d.changed = next, d.changed || !c.MayMiss || len(steps) > 0
	}
}

// write writes a draft, if it has a change that is to be kept. It returns what is kept then.
func (b *Book) write(ctx context.Context, saved *Saved, d *draft) (data []byte, err error) {
	doc := d.largest
	if d.changed {
		doc = d.doc
	}
	if data, err = doc.encode(); err != nil {
		return nil, Faults{faultf("", "%v", err)}
	}
	if len(data) > saved.store.Most() {
		return nil, Faults{faultf("delete some, or keep the rules of one gateway in a file", "the rules would take %d bytes, and %s can keep %d", len(data), saved.where(), saved.store.Most())}
	}
	if !d.changed {
		return data, nil
	}
	if err = saved.store.Write(ctx, saved.tag, data); err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.tally.failed(&unwritten{err})
	}
	return data, err
}

// checkAgainst returns the document after the change, and everything that is wrong with it under a plan.
func (c *Change) checkAgainst(plan *Plan, doc *document) (next *document, steps []Step, faults Faults) {
	next, steps, faults = c.carryOut(doc, time.Now())
	faults = append(faults, unknownGates(plan, doc, c)...)
	for _, s := range steps {
		if s.After == nil {
			continue
		}
		for _, f := range misfits(&plan.spec, s.After) {
			faults.add(s.op, f)
		}
	}
	for i := range c.Ops {
		if op := &c.Ops[i]; c.MayMiss && op.Delete != nil && doc.find(identity{op.Gate, op.Delete.Pattern()}) == nil {
			if at, ok := plan.inFile(op.Gate, op.Delete.Pattern()); ok {
				faults.add(i, faultf("change it there, or set another in its place", "the rule for %.100s of gate %.60s is that of %s", op.Delete.Pattern(), op.Gate, at))
			}
		}
	}
	return next, steps, faults.of(c)
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
		ids, err := c.Ops[i].carryOut(next, c, now)
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
func (op *Op) carryOut(d *document, c *Change, now time.Time) (touched []identity, err error) {
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
		return op.remove(d, c.MayMiss)
	case op.Set == nil:
		return op.replace(d, c.By, now)
	case op.Set.Name != "":
		return nil, errNamed
	}
	r := op.rule(op.Set, c.By, now)
	r.Asked = op.Asked
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

func (op *Op) remove(d *document, mayMiss bool) (touched []identity, err error) {
	id := identity{op.Gate, op.Delete.Pattern()}
	if op.Delete.Exempt || op.Delete.Blocked || op.Delete.Name != "" {
		return nil, faultf("a rule is deleted by what it matches alone", "says what the rule gives")
	}
	if was := d.remove(id); !was && mayMiss {
		return nil, nil
	} else if !was {
		f := faultf("weir quota list shows those, and rules of the file are changed there",
			"gate %.60s has no rule for %.100s that was set at run time", op.Gate, id.Pattern)
		f.Missing = true
		return nil, f
	}
	return []identity{id}, nil
}
