package quotas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/weir-go/weir/quota"
)

// mostAsked bounds the operations in the log line of a change that was refused, and the rules in one about
// rules that are lost. A change that was made has a line for each rule.
const mostAsked = 20

// audit logs and counts who asked for what, and what came of it. Each change has at least
// one line. A change that was made has one for each thing that its rules match, whatever gates they are of.
func (b *Book) audit(c *Change, res *Result, err error) {
	result := resultOf(c, err)
	b.count(c.Via, result)
	line := b.log.With("by", c.By)
	if c.IfMatch != "" {
		line = line.With("if_match", c.IfMatch)
	}
	asked := func() []any { return []any{"operations", len(c.Ops), "asked", c.asked()} }
	switch result {
	case Unsure:
		line.Error("quota change failed; the change may have been kept, so read the rules before you repeat it", append(asked(), "error", err.Error())...)
	case Failed:
		line.Error("quota change failed; nothing is changed", append(asked(), "validate_only", c.ValidateOnly, "error", err.Error())...)
	case Refused, Conflict:
		line.Warn("quota change refused", append(asked(), "result", result, "validate_only", c.ValidateOnly, "error", err.Error())...)
	case Validated:
		line.Info("quota change validated", asked()...)
	case Changed:
		if len(res.Steps) == 0 {
			line.Info("quota change that changes nothing", append(asked(), "etag", res.ETag)...)
		}
		for _, same := range byMatch(res.Steps) {
			line.Info("quota changed", "gate", joinSteps(same, func(s *Step) string { return s.Gate }), "rule", same[0].Matches,
				"before", joinSteps(same, func(s *Step) string { return gives(s.Before) }), "after", joinSteps(same, func(s *Step) string { return gives(s.After) }),
				"file_gives", joinSteps(same, func(s *Step) string { return cmp.Or(s.FileGives, "nothing") }), "etag", res.ETag)
		}
	}
}

// byMatch returns the steps about rules that match the same, in the order in which the first of each stands.
func byMatch(steps []Step) (all [][]Step) {
	at := map[quota.Pattern]int{}
	for _, s := range steps {
		i, ok := at[s.identity.Pattern]
		if !ok {
			i = len(all)
			at[s.identity.Pattern] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], s)
	}
	return all
}

// joinSteps returns what of says of each step, in their order.
func joinSteps(steps []Step, of func(*Step) string) string {
	words := make([]string, len(steps))
	for i := range steps {
		words[i] = of(&steps[i])
	}
	return strings.Join(words, "; ")
}

// auditReset logs and counts who asked for a reset of a bucket, and what came of it.
func (b *Book) auditReset(r *Reset, res *Refilled, err error) {
	var faults Faults
	result := Unsure
	if err == nil {
		result = Filled
	} else if errors.As(err, &faults) {
		result = Refused
	} else if errors.Is(err, quota.ErrNotFilled) {
		result = Failed
	}
	b.count(r.Via, result)
	line := b.log.With("by", r.By, "gate", fmt.Sprintf("%.60s", r.Gate), "whose", fmt.Sprintf("%.200s", r.Whose.Pattern().String()))
	switch result {
	case Filled:
		line.Info("quota bucket reset", "rule", res.Rule, "bucket", res.Bucket, "held", res.Held, "limits", strings.Join(res.Limits, "; "))
	case Refused:
		line.Warn("quota reset refused", "result", result, "error", err.Error())
	case Failed:
		line.Error("quota reset failed; nothing is changed", "result", result, "bucket", res.Bucket, "error", err.Error())
	default:
		line.Error("quota reset failed; the bucket may have been filled all the same", "result", result, "bucket", res.Bucket, "error", err.Error())
	}
}

// LogRefused logs and counts a change that was refused before it came to the rules: it cannot be decoded, or the broker refuses it. by says who asked for it, via how they
// are known, and err what is wrong.
func (b *Book) LogRefused(by, via string, err error) {
	b.count(via, Refused)
	b.log.Warn("quota change refused", "by", by, "result", Refused, "error", fmt.Sprintf("%.1000s", err.Error()))
}

// CountDenied counts a change by somebody who may not write.
func (b *Book) CountDenied() {
	b.count(Nobody, Denied)
}

// count counts what came of a change. who is how the writer came in.
func (b *Book) count(who, result string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tally.changes[By{who, result}]++
}

func resultOf(c *Change, err error) string {
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
		words = append(words, fmt.Sprintf("set %.200s %.200s", op.Set.Pattern().String(), Terms(op.Set)))
	}
	if op.Delete != nil {
		words = append(words, fmt.Sprintf("delete %.200s", op.Delete.Pattern().String()))
	}
	if op.Replace != nil {
		words = append(words, fmt.Sprintf("replace all by %d rules", len(op.Replace)))
	}
	if op.Clear {
		words = append(words, "delete all")
	}
	return fmt.Sprintf("%.60s: %s", op.Gate, strings.Join(words, ", "))
}

// named says what rules are, as in "api: user=alice 3/h", and "none" without any.
func named(rules []*Rule) string {
	var words []string
	for i, r := range rules {
		if i == mostAsked {
			words = append(words, fmt.Sprintf("and %d more", len(rules)-i))
			break
		}
		words = append(words, fmt.Sprintf("%.60s: %.200s %.200s", r.Gate, r.Pattern().String(), Terms(&r.QuotaRuleSpec)))
	}
	return cmp.Or(strings.Join(words, "; "), "none")
}

func gives(r *Rule) string {
	if r == nil {
		return "as the file says"
	}
	return FullTerms(&r.QuotaRuleSpec)
}

// Who asks for a change.
const (
	ViaSocket = "socket"
	ViaToken  = "token"
	ViaKafka  = "kafka"  // by Kafka's protocol, as a principal of the cluster
	Nobody    = "nobody" // who may not
)

// What comes of a change, or a reset.
const (
	Changed   = "changed"
	Validated = "validated" // was only to be looked at
	Refused   = "refused"   // is wrong, or nothing is kept anywhere
	Conflict  = "conflict"  // the rules are others than the writer has seen
	Failed    = "failed"    // the store failed, and nothing is changed
	Unsure    = "unsure"    // the store failed, and may have kept it
	Denied    = "denied"    // who asks may not write
	Filled    = "reset"     // a bucket is full again; no rule has changed
)

// Kinds of failures of a store.
const (
	FailedRead   = "read"
	FailedBroken = "broken" // what is there is no document
	FailedWrite  = "write"
)

// By is how a writer came in, by socket, token or Kafka, and the result of the change.
type By struct{ Via, Result string }

// tally counts what becomes of changes, and the failures of the store.
type tally struct {
	changes  map[By]uint64
	failures map[string]uint64
}

// newTally counts each known word from 0.
func newTally() tally {
	t := tally{map[By]uint64{{Nobody, Denied}: 0}, map[string]uint64{FailedRead: 0, FailedBroken: 0, FailedWrite: 0}}
	for _, who := range []string{ViaSocket, ViaToken, ViaKafka} {
		for _, result := range []string{Changed, Validated, Refused, Conflict, Failed, Unsure, Filled} {
			t.changes[By{who, result}] = 0
		}
	}
	return t
}

// failed counts an error of the store, if it is one.
func (t *tally) failed(err error) {
	if err == nil || errors.Is(err, ErrChanged) || errors.Is(err, context.Canceled) {
		return
	}
	var read *unreadable
	var write *unwritten
	switch {
	case errors.As(err, &write):
		t.failures[FailedWrite]++
	case errors.As(err, &read):
		t.failures[FailedRead]++
	default:
		t.failures[FailedBroken]++
	}
}

// unwritten is the error of a store that did not take its document.
type unwritten struct{ error }

func (u *unwritten) Unwrap() error { return u.error }

// Stats is what there is to count.
type Stats struct {
	// Kept is file or store, empty where nothing is kept; In says which.
	Kept, In string
	// InForce and Idle count the rules set at run time, by gate. Rules in force are used by the
	// gates. Idle ones do not fit the configuration. Each gate with a quota has both counts. The
	// empty name counts the rules of gates that no longer exist.
	InForce, Idle map[string]int
	// Age is the time since the store was last read. If it never was, it is the time since that was first tried.
	Age time.Duration
	// Failures are those of the store by kind, Changes those made or not.
	Failures map[string]uint64
	Changes  map[By]uint64
}

// Stats returns what there is to count.
func (b *Book) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{InForce: map[string]int{}, Idle: map[string]int{}, Failures: maps.Clone(b.tally.failures), Changes: maps.Clone(b.tally.changes)}
	if b.saved.store != nil {
		s.In, s.Kept = b.saved.where(), "store"
		if _, ok := b.saved.store.(*File); ok {
			s.Kept = "file"
		}
		since := b.saved.read
		if since.IsZero() {
			since = b.saved.opened
		}
		s.Age = time.Since(since)
	}
	if b.plan != nil {
		b.plan.count(&s)
	}
	return s
}

// count counts the rules of a plan.
func (p *Plan) count(s *Stats) {
	for _, gate := range quotaGates(&p.spec) {
		s.InForce[gate], s.Idle[gate] = 0, 0
	}
	for i := range p.doc.Rules {
		gate := p.doc.Rules[i].Gate
		if _, ok := s.InForce[gate]; !ok {
			gate = ""
		}
		if len(p.faults[i]) > 0 {
			s.Idle[gate]++
		} else {
			s.InForce[gate]++
		}
	}
}
