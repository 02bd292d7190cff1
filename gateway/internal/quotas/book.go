// Package quotas keeps rules of quotas that are changed while the gateway runs. The
// configuration file gives the base; a rule kept here wins over the one in the file
// that matches the same, and adds to the others where there is none.
//
// A [Book] has the rules, brings them into the gates, and writes every change to its
// [Store] before it is in force: what has been answered with success survives a
// restart. A change is one request of several operations, of which all are carried
// out or none; two that write at once lose nothing, because a store takes a document
// only in the place of the one that the writer has seen.
//
// What is kept may stop to fit the configuration: its gate is taken out of the file,
// or its rate is too small once the file no longer allows debts. Such a rule is kept,
// is not in force, and says why in [Book.Look].
package quotas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/policy"
)

// Options of a [Book].
type Options struct {
	// Store keeps the rules. nil keeps none: all changes are refused.
	Store Store
	// Logger is told of changes and of trouble. Required.
	Logger *slog.Logger
	// StartBroken begins without rules where those that are kept cannot be read,
	// rather than not at all; nothing is written over them.
	StartBroken bool
}

// Book has the rules that are set at run time. It is safe for concurrent use.
type Book struct {
	log *slog.Logger

	changing sync.Mutex // one who reads or writes the store, or replaces it, at a time

	mu      sync.Mutex // guards what follows; held for no I/O, locked after changing
	store   Store      // written with changing held too; nil if there is none
	doc     *document
	tag     string
	read    time.Time      // when the store was last read; zero: never yet
	plan    *Plan          // in force; nil before the first policy
	policy  *policy.Policy // in force
	trouble string         // why the store could not be read, empty if it could
	tally   tally
}

// Errors of [Book.Change].
var (
	// ErrNowhere is the error of a change where no store is configured.
	ErrNowhere = errors.New("there is nowhere to keep rules that are set at run time; add quotas: {file: /var/lib/weir/quotas.json} to the configuration")
	// ErrPrecondition is the error of a change whose IfMatch is not the tag of the
	// rules any more.
	ErrPrecondition = errors.New("the rules have been changed since; look at them again and repeat with their new ETag")
)

// patience bounds one look at the store, and one write.
const patience = 5 * time.Second

// Open reads the rules; see [Read].
func Open(ctx context.Context, o Options) (*Book, error) {
	k, err := Read(ctx, o.Store, o.StartBroken)
	if err != nil {
		return nil, err
	}
	b := &Book{log: o.Logger, store: k.store, doc: k.doc, tag: k.tag, read: k.read}
	if k.trouble != nil {
		b.noted(k.trouble)
	}
	return b, nil
}

// Close lets go of the store.
func (b *Book) Close() error {
	b.changing.Lock()
	defer b.changing.Unlock()
	if b.store == nil {
		return nil
	}
	return b.store.Close()
}

// Plan returns what becomes of the rules under a configuration. place says where in
// the file a field of a gate's quota stands, such as rules[0].
func (b *Book) Plan(spec policy.Spec, place func(gate, field string) string) *Plan {
	b.mu.Lock()
	doc := b.doc
	b.mu.Unlock()
	return newPlan(spec, place, doc)
}

// Adopt says that p, made by plan, is in force. With a plan of a [Kept] its store is in
// the place of the one before, which is closed.
func (b *Book) Adopt(plan *Plan, p *policy.Policy) {
	if k := plan.kept; k != nil {
		b.changing.Lock()
		defer b.changing.Unlock()
		defer b.moveTo(k)()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy = p
	stale := plan.doc != b.doc
	if stale { // changed while the policy was compiled
		plan = plan.with(b.doc)
	}
	if plan.kept != nil { // a change before the move may have brought its rules into gates of p
		stale, plan.kept = true, nil
	}
	b.plan = plan
	for i, faults := range plan.faults {
		r := &plan.doc.Rules[i]
		b.log.Warn("a quota set at run time does not fit the configuration; it is kept, but not in force",
			"gate", r.Gate, "rule", Matches(&r.QuotaRuleSpec), "because", faults[0].Error())
	}
	if stale {
		for gate := range plan.base {
			b.applyLocked(gate)
		}
	}
}

// moveTo goes over to another store and what is in it, and returns what closes the one
// before. The caller holds changing. What is in force does not change by it: that is for
// a policy which was compiled with these rules.
func (b *Book) moveTo(k *Kept) (closeOld func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, left := b.store, b.doc.without(k.doc)
	b.store, b.doc, b.tag, b.read, b.trouble = k.store, k.doc, k.tag, k.read, ""
	if k.trouble != nil {
		b.trouble = k.trouble.Error()
		b.log.Error("quotas set at run time cannot be read; none of them is in force", "from", nameOf(k.store), "error", k.trouble)
	}
	b.log.Info("quotas set at run time are kept elsewhere now", "before", nameOf(old), "now", nameOf(k.store), "rules", len(k.doc.Rules))
	if left > 0 {
		b.log.Warn("rules that were set at run time are not where they are kept now, and not in force any more",
			"rules", left, "still_in", nameOf(old))
	}
	return func() {
		if old == nil {
			return
		}
		if err := old.Close(); err != nil {
			b.log.Warn("where quotas set at run time were kept was not closed", "store", old.Name(), "error", err)
		}
	}
}

// nameOf is the name of a store, for messages.
func nameOf(s Store) string {
	if s == nil {
		return "nowhere"
	}
	return s.Name()
}

// applyLocked brings the rules of a gate into it.
func (b *Book) applyLocked(gate string) {
	g := b.policy.Gate(gate)
	if g == nil || g.Quota() == nil {
		return
	}
	if err := g.Quota().SetRules(b.plan.rules(gate)); err != nil {
		b.log.Error("quotas set at run time are not in force", "gate", gate, "error", err)
	}
}

// takeLocked puts another document in force.
func (b *Book) takeLocked(doc *document, tagged string) {
	changed := gatesOf(b.doc, doc)
	b.doc, b.tag, b.trouble = doc, tagged, ""
	if b.plan == nil {
		return
	}
	b.plan = b.plan.with(doc)
	for gate := range changed {
		b.applyLocked(gate)
	}
}

// gatesOf are the gates that either document has rules for.
func gatesOf(docs ...*document) map[string]bool {
	gates := map[string]bool{}
	for _, d := range docs {
		for i := range d.Rules {
			gates[d.Rules[i].Gate] = true
		}
	}
	return gates
}

// Every is how often [Book.Follow] is to be called: what others write to the store is
// in force after it, at most, and the time for reading.
const Every = time.Second

// Follow takes up what others have written to the store, such as other gateways. What
// cannot be read changes nothing: the rules that are known stay in force.
func (b *Book) Follow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.changing.Lock()
	defer b.changing.Unlock()
	if b.store == nil {
		return
	}
	if err := b.refresh(ctx); err != nil && !errors.Is(err, ErrChanged) {
		b.noted(err)
	}
}

// refresh reads the store and takes up what is new there. The caller holds changing.
func (b *Book) refresh(ctx context.Context) error {
	b.mu.Lock()
	doc, tagged := b.doc, b.tag
	b.mu.Unlock()
	doc, tagged, err := fetch(ctx, b.store, doc, tagged)
	if err == nil && tagged == tag(nil) {
		doc, tagged, err = b.restore(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tally.failed(err)
	if err != nil {
		return err
	}
	b.read = time.Now()
	if tagged != b.tag {
		b.takeLocked(doc, tagged)
		b.log.Info("quotas set at run time taken up", "from", b.store.Name(), "rules", len(doc.Rules), "etag", tagged)
	} else if b.trouble != "" {
		b.trouble = ""
		b.log.Info("quotas set at run time can be read again", "from", b.store.Name())
	}
	return nil
}

// restore writes the rules that are known to a store that has none any more: one that
// kept them in memory alone has been restarted, or somebody has removed the file.
// Taken for the wish to have no rules it would let in who was blocked. Where none were
// ever there it does nothing.
func (b *Book) restore(ctx context.Context) (*document, string, error) {
	b.mu.Lock()
	doc, known := b.doc, b.tag
	b.mu.Unlock()
	if known == tag(nil) {
		return doc, known, nil
	}
	data, err := doc.encode()
	if err != nil {
		return nil, "", err
	}
	if err := b.store.Write(ctx, tag(nil), data); err != nil {
		return nil, "", fmt.Errorf("the rules are gone, and those that are known cannot be written again: %w", &unwritten{err})
	}
	b.log.Warn("quotas set at run time were gone from where they are kept, and have been written again", "to", b.store.Name(), "rules", len(doc.Rules))
	return doc, tag(data), nil
}

// noted logs trouble with the store, the same once.
func (b *Book) noted(err error) {
	b.mu.Lock()
	same := b.trouble == err.Error()
	b.trouble = err.Error()
	b.mu.Unlock()
	if !same {
		b.log.Error("quotas set at run time cannot be read; those that are known stay in force", "from", b.store.Name(), "error", err)
	}
}
