package quotas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

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
