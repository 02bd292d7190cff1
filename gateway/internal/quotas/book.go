// Package quotas keeps rules of quotas that are set while the gateway runs. The
// configuration file gives the base. A rule kept here overrides the rule of the file that
// matches the same; if there is none it is added.
//
// A [Book] has the rules and puts them into the gates. It writes every change to its [Store] before
// it is in force, so a change that was answered with success survives a restart. A change is one
// request of several operations: all are carried out, or none. Two writers at once lose nothing: a
// store replaces a document only if the writer has read the latest one.
//
// A rule may no longer fit the configuration. For example, its gate is taken out of the file, or
// its rate is too small once the file no longer allows debts. The book then keeps the rule, but it
// is not in force, and [Book.List] says why.
package quotas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/policy"
)

// Options of a [Book].
type Options struct {
	// Store keeps the rules. With nil all changes are refused.
	Store Store
	// Logger logs changes and trouble. Required.
	Logger *slog.Logger
	// StartBroken starts without rules if they cannot be read, rather than not at all.
	// The store is not overwritten.
	StartBroken bool
}

// Book has the rules that are set at run time. It is safe for concurrent use.
type Book struct {
	log *slog.Logger

	changing sync.Mutex // held by whoever reads, writes or replaces the store

	mu     sync.Mutex     // guards what follows; held for no I/O; locked after changing
	saved  Saved          // its store is written with changing held too
	plan   *Plan          // in force; nil before the first policy
	policy *policy.Policy // in force
	tally  tally
}

// Saved is the rules set at run time, as they were read from a store.
type Saved struct {
	store   Store // nil: there is none
	doc     *document
	tag     string
	opened  time.Time // when that was tried first
	read    time.Time // when; zero if they never could be
	trouble error     // why they cannot be read
}

// Errors of [Book.Change].
var (
	// ErrNowhere is the error of a change without a store.
	ErrNowhere = errors.New("no place is configured for rules that are set at run time; add runtime_quotas: {file: /var/lib/weir/quotas.json} to the configuration")
	// ErrPrecondition is the error of a change if its IfMatch is no longer the tag of the rules.
	ErrPrecondition = errors.New("the rules have been changed since; read them again and repeat with their new ETag")
)

// patience bounds one read of the store, and one change.
const patience = 5 * time.Second

// Open reads the rules; see [Read].
func Open(ctx context.Context, o Options) (*Book, error) {
	saved, err := Read(ctx, o.Store, o.StartBroken)
	if err != nil {
		return nil, err
	}
	b := &Book{log: o.Logger, saved: *saved, tally: newTally()}
	if err := b.saved.trouble; err != nil {
		b.saved.trouble = nil
		b.logTrouble(err)
	}
	return b, nil
}

// Read reads the rules in a store, which belongs to the Saved from then on; with nil there
// are none.
//
// A broken document is an error, which names its line. So is a store that cannot be
// reached. To start without a rule that blocks somebody would be worse than not to start.
// With startBroken neither is an error. After an error the store is closed.
func Read(ctx context.Context, store Store, startBroken bool) (*Saved, error) {
	now := time.Now()
	s := &Saved{store: store, doc: &document{}, tag: tag(nil), opened: now, read: now}
	if store == nil {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	doc, tagged, err := s.fetch(ctx, store)
	switch {
	case err == nil:
		s.doc, s.tag = doc, tagged
		return s, nil
	case !startBroken:
		_ = store.Close() // there is an error already
		mend := "mend the document"
		if down := new(unreadable); errors.As(err, &down) {
			mend = "mend or start what keeps them"
		}
		return nil, fmt.Errorf("quota rules set at run time cannot be read: %w; %s, or start with the rules of the configuration alone by runtime_quotas: {start_broken: true}", err, mend)
	}
	s.trouble, s.read = err, time.Time{}
	return s, nil
}

// ReadFile reads the rules in a file. A gateway may have it open: it is never half written.
// A file that does not exist has no rules.
func ReadFile(ctx context.Context, name string) (*Saved, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	s := &Saved{doc: &document{}, tag: tag(nil), read: time.Now()}
	s.doc, s.tag, err = s.fetch(ctx, &File{name: name})
	return s, err
}

// fetch reads a store. A document that is still the same is not decoded again.
func (s *Saved) fetch(ctx context.Context, store Store) (*document, string, error) {
	data, err := store.Read(ctx)
	if err != nil {
		return nil, "", &unreadable{err}
	}
	tagged := tag(data)
	if tagged == s.tag {
		return s.doc, tagged, nil
	}
	doc, err := decode(store.Name(), data)
	return doc, tagged, err
}

// unreadable is the error of a store that could not be read.
type unreadable struct{ error }

func (u *unreadable) Unwrap() error { return u.error }

// Len returns how many rules there are.
func (s *Saved) Len() int { return len(s.doc.Rules) }

// Close closes the store.
func (s *Saved) Close() error {
	if s == nil || s.store == nil {
		return nil
	}
	return s.store.Close()
}

// where names the store, for messages.
func (s *Saved) where() string {
	if s.store == nil {
		return "nowhere"
	}
	return s.store.Name()
}

// Plan returns the plan of the rules for a configuration; see [Book.Plan]. [Book.SetPolicy]
// puts them, and their store, in place of those of the book.
func (s *Saved) Plan(spec policy.Spec, place func(gate, field string) string) *Plan {
	p := newPlan(spec, place, s.doc)
	p.saved = s
	return p
}

// Close closes the store.
func (b *Book) Close() error {
	b.changing.Lock()
	defer b.changing.Unlock()
	return b.saved.Close()
}

// Plan returns the plan of the book's rules for a configuration. If moved is not nil, its rules
// count instead: they are kept in another store from then on. place returns where in the file a
// field of a gate's quota stands, such as rules[0].
func (b *Book) Plan(spec policy.Spec, place func(gate, field string) string, moved *Saved) *Plan {
	if moved != nil {
		return moved.Plan(spec, place)
	}
	return newPlan(spec, place, b.snapshot().doc)
}

func (b *Book) snapshot() Saved {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.saved
}

// SetPolicy says that p is in force, which was compiled with plan. If the plan is that of a
// [Saved], its store replaces the book's, which is closed.
func (b *Book) SetPolicy(plan *Plan, p *policy.Policy) {
	if plan.saved != nil {
		b.changing.Lock()
		defer b.changing.Unlock()
		defer b.replaceStore(plan.saved)()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy = p
	stale := plan.doc != b.saved.doc
	if stale { // changed while the policy was compiled
		plan = plan.with(b.saved.doc)
	}
	if plan.saved != nil { // a change before may have put its rules into gates of p
		stale, plan.saved = true, nil
	}
	b.plan = plan
	for i, faults := range plan.faults {
		r := &plan.doc.Rules[i]
		b.log.Warn("a quota rule set at run time does not fit the configuration; it is kept, but not in force",
			"gate", r.Gate, "rule", r.Pattern().String(), "error", faults[0].Error())
	}
	if stale {
		for gate := range plan.base {
			b.applyLocked(gate)
		}
	}
}

// replaceStore goes over to another store and its rules. It returns a function that closes
// the old store. What is in force does not change: a policy that was compiled with these
// rules does that.
func (b *Book) replaceStore(next *Saved) (closeOld func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.saved
	b.saved = *next
	if next.trouble != nil {
		b.log.Error("quota rules set at run time cannot be read; "+Holds(true), "from", next.where(), "error", next.trouble)
	}
	b.log.Info("quota rules set at run time are now kept in another place", "before", old.where(), "now", next.where(), "rules", next.Len())
	if left := len(old.doc.lost(next.doc)); left > 0 {
		b.log.Warn("quota rules are not in force any more: they were left in the old place", "rules", left, "still_in", old.where())
	}
	return func() {
		if err := old.Close(); err != nil {
			b.log.Warn("the old place of quota rules could not be closed", "store", old.where(), "error", err)
		}
	}
}

// Holds says what holds while rules set at run time cannot be read. It depends on whether they ever were.
func Holds(neverRead bool) string {
	if neverRead {
		return "none of them is in force"
	}
	return "the known ones stay in force"
}

// setDocumentLocked puts another document in force.
func (b *Book) setDocumentLocked(doc *document, tagged string) {
	changed := gatesOf(b.saved.doc, doc)
	b.saved.doc, b.saved.tag, b.saved.trouble = doc, tagged, nil
	if b.plan == nil {
		return
	}
	b.plan = b.plan.with(doc)
	for gate := range changed {
		b.applyLocked(gate)
	}
}

// applyLocked puts the rules of a gate into it.
func (b *Book) applyLocked(gate string) {
	g := b.policy.Gate(gate)
	if g == nil || g.Quota() == nil {
		return
	}
	if err := g.Quota().SetRules(b.plan.rules(gate)); err != nil {
		b.log.Error("quota rules set at run time are not in force at a gate", "gate", gate, "error", err)
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

// PollInterval is how often to call [Book.Follow].
const PollInterval = time.Second

// Follow reads the store and puts changes by other writers, such as other gateways, in force. If
// the store cannot be read, the rules stay as they are.
func (b *Book) Follow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.changing.Lock()
	defer b.changing.Unlock()
	if b.saved.store == nil {
		return
	}
	if err := b.refresh(ctx); err != nil && !errors.Is(err, ErrChanged) {
		b.logTrouble(err)
	}
}

// refresh reads the store and puts in force what is new there. The caller holds changing.
func (b *Book) refresh(ctx context.Context) error {
	known := b.snapshot()
	doc, tagged, err := known.fetch(ctx, known.store)
	if err == nil && known.lostBy(doc, tagged) {
		doc, tagged, err = b.restore(ctx, &known, doc, tagged)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tally.failed(err)
	if err != nil {
		return err
	}
	b.saved.read = time.Now()
	if tagged != known.tag {
		b.setDocumentLocked(doc, tagged)
		gone := known.doc.lost(doc)
		line := b.log.With("from", known.where(), "rules", len(doc.Rules), "etag", tagged, "gone", named(gone))
		if len(gone) > 0 && known.besides(doc) {
			line.Warn("quota rules were changed in their store by a gateway that did not know all of them; set again what is gone")
		} else {
			line.Info("quota rules were changed in their store, and are in force")
		}
	} else if b.saved.trouble != nil {
		b.saved.trouble = nil
		b.log.Info("quota rules set at run time can be read again", "from", known.where())
	}
	return nil
}

// lostBy reports whether a store with a document has lost known rules. A store in memory may have
// restarted, or somebody has removed the file. That is no wish to have no rules: it would admit users
// that are blocked. An older document is the same in a store where people put none. It is what a
// gateway wrote that had missed the last change when the store came back empty, or what a replica had.
func (s *Saved) lostBy(doc *document, tagged string) bool {
	if tagged == tag(nil) {
		return s.tag != tagged
	}
	return doc.Revision < s.doc.Revision && !s.store.ByHand()
}

// besides reports whether a document was made beside the known one, by a gateway that had not seen that. Neither is
// newer then, and the store's holds. A revision grows with each change, but not by the hand of people.
func (s *Saved) besides(doc *document) bool {
	return doc.Revision == s.doc.Revision && !s.store.ByHand()
}

// restore writes the known rules to a store that has lost them, in place of what it has. It names what it drops,
// which may be new: a gateway that had missed the last change may have made another since.
func (b *Book) restore(ctx context.Context, known *Saved, lost *document, tagged string) (*document, string, error) {
	data, err := known.doc.encode()
	if err != nil {
		return nil, "", err
	}
	if err := known.store.Write(ctx, tagged, data); err != nil {
		return nil, "", fmt.Errorf("the rules are gone, and writing the known ones again failed: %w", &unwritten{err})
	}
	b.log.Warn("quota rules were gone from their store; wrote the known ones again", "to", known.where(), "rules", known.Len(),
		"revision", known.doc.Revision, "found_revision", lost.Revision, "dropped", named(lost.lost(known.doc)))
	return known.doc, tag(data), nil
}

// logTrouble logs trouble with the store, the same trouble once.
func (b *Book) logTrouble(err error) {
	b.mu.Lock()
	same := eventlog.SameTrouble(b.saved.trouble, err)
	b.saved.trouble = err
	where, force := b.saved.where(), Holds(b.saved.read.IsZero())
	b.mu.Unlock()
	if !same {
		b.log.Error("quota rules set at run time cannot be read; "+force, "from", where, "error", err)
	}
}
