package quotas

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// mostAsked bounds how many operations of a change that was not made are told in its
// line of the log. Of one that was made each rule has a line.
const mostAsked = 20

// audit logs and counts who asked for what, and what came of it. Each change has at
// least one line, whatever came of it.
func (b *Book) audit(c *Change, res *Result, err error) {
	outcome := outcomeOf(c, err)
	b.mu.Lock()
	b.tally.change(c.Via, outcome)
	b.mu.Unlock()
	line := b.log.With("by", c.By)
	if c.IfMatch != "" {
		line = line.With("if_match", c.IfMatch)
	}
	asked := func() []any { return []any{"operations", len(c.Ops), "asked", c.asked()} }
	switch outcome {
	case Unsure:
		line.Error("quota change of which it is not known whether it was kept", append(asked(), "because", err.Error())...)
	case Refused, Conflict, Failed:
		line.Warn("quota change refused", append(asked(), "outcome", outcome, "validate_only", c.ValidateOnly, "because", err.Error())...)
	case Validated:
		line.Info("quota change validated", asked()...)
	case Changed:
		if len(res.Steps) == 0 {
			line.Info("quota change that changes nothing", append(asked(), "etag", res.ETag)...)
		}
		for _, s := range res.Steps {
			line.Info("quota changed", "gate", s.Gate, "rule", s.Matches, "before", gives(s.Before), "after", gives(s.After), "file_gives", cmp.Or(s.FileGives, "nothing"), "etag", res.ETag)
		}
	}
}

// auditReset logs and counts who had a bucket filled, or would have liked to.
func (b *Book) auditReset(r *Reset, res *Refilled, err error) {
	var faults Faults
	outcome := Unsure
	if err == nil {
		outcome = Filled
	} else if errors.As(err, &faults) {
		outcome = Refused
	}
	b.mu.Lock()
	b.tally.change(r.Via, outcome)
	b.mu.Unlock()
	line := b.log.With("by", r.By, "gate", fmt.Sprintf("%.60s", r.Gate), "whose", fmt.Sprintf("%.200s", Matches(&r.Whose)))
	switch outcome {
	case Filled:
		line.Info("quota bucket reset", "rule", res.Rule, "bucket", res.Bucket, "held", res.Held, "limits", strings.Join(res.Limits, "; "))
	case Refused:
		line.Warn("quota reset refused", "outcome", outcome, "because", err.Error())
	default:
		line.Error("quota reset failed", "outcome", outcome, "bucket", res.Bucket, "because", err.Error())
	}
}

// Refuse logs and counts a change that was never understood: by says who asked for it,
// via how they are known, and err what is wrong.
func (b *Book) Refuse(by, via string, err error) {
	b.mu.Lock()
	b.tally.change(via, Refused)
	b.mu.Unlock()
	b.log.Warn("quota change refused", "by", by, "outcome", Refused, "because", err.Error())
}

// Deny counts somebody who may not write, and has been logged.
func (b *Book) Deny() {
	b.mu.Lock()
	b.tally.change(Nobody, Denied)
	b.mu.Unlock()
}

func outcomeOf(c *Change, err error) string {
	var faults Faults
	switch {
	case err == nil && c.ValidateOnly:
		return Validated
	case err == nil:
		return Changed
	case errors.As(err, &faults), errors.Is(err, ErrNowhere):
		return Refused
	case errors.Is(err, ErrPrecondition), errors.Is(err, ErrChanged):
		return Conflict
	case errors.Is(err, ErrUnchanged):
		return Failed
	}
	return Unsure
}

// asked says what a change asks for, as in "api: set user=alice 3/h".
func (c *Change) asked() string {
	var words []string
	for i := range c.Ops {
		if i == mostAsked {
			words = append(words, fmt.Sprintf("and %d more", len(c.Ops)-i))
			break
		}
		words = append(words, c.Ops[i].asked())
	}
	return strings.Join(words, "; ")
}

func (op *Op) asked() string {
	var words []string
	if op.Set != nil {
		words = append(words, fmt.Sprintf("set %.200s %.200s", Matches(op.Set), Gives(op.Set)))
	}
	if op.Delete != nil {
		words = append(words, fmt.Sprintf("delete %.200s", Matches(op.Delete)))
	}
	if op.Replace != nil {
		words = append(words, fmt.Sprintf("replace all by %d rules", len(op.Replace)))
	}
	if op.Clear {
		words = append(words, "delete all")
	}
	return fmt.Sprintf("%.60s: %s", op.Gate, strings.Join(words, ", "))
}

func gives(r *Rule) string {
	if r == nil {
		return "as the file says"
	}
	return InFull(&r.QuotaRuleSpec)
}
