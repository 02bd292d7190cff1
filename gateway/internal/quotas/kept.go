package quotas

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/weir-go/weir/policy"
)

// Kept is rules as they were read from where they are kept.
type Kept struct {
	store   Store // nil: nowhere
	doc     *document
	tag     string
	trouble error // why they could not be read
	read    time.Time
}

// Read reads the rules in a store, which is from then on in the hands of the Kept; nil
// has none.
//
// A document that is broken is an error, which names its line, unless startBroken is set:
// to begin without a rule that blocks somebody would be worse than not to begin. A store
// that cannot be reached is an error too, for the same reason. After an error the store
// is closed.
func Read(ctx context.Context, store Store, startBroken bool) (*Kept, error) {
	k := &Kept{store: store, doc: &document{}, tag: tag(nil), read: time.Now()}
	if store == nil {
		return k, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	doc, tagged, err := fetch(ctx, store, k.doc, k.tag)
	switch {
	case err == nil:
		k.doc, k.tag = doc, tagged
		return k, nil
	case !startBroken:
		_ = store.Close() // there is an error already
		return nil, fmt.Errorf("quotas set at run time cannot be read: %w; mend it, or begin with the configuration's alone by quotas: {start_broken: true}", err)
	}
	k.trouble, k.read = err, time.Time{}
	return k, nil
}

// ReadFile reads the rules in a file which a gateway may have open: it is never seen half
// written. One that does not exist has none.
func ReadFile(ctx context.Context, name string) (*Kept, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	k := &Kept{doc: &document{}, tag: tag(nil), read: time.Now()}
	k.doc, k.tag, err = fetch(ctx, &File{name: name}, k.doc, k.tag)
	return k, err
}

// fetch reads a store. What has the tag of what is known is not decoded again.
func fetch(ctx context.Context, store Store, known *document, knownAs string) (*document, string, error) {
	data, err := store.Read(ctx)
	if err != nil {
		return nil, "", &unreadable{err}
	}
	tagged := tag(data)
	if tagged == knownAs {
		return known, tagged, nil
	}
	doc, err := decode(store.Name(), data)
	return doc, tagged, err
}

// unreadable is the error of a store that did not hand out its document.
type unreadable struct{ error }

func (u *unreadable) Unwrap() error { return u.error }

// Len returns how many rules there are.
func (k *Kept) Len() int { return len(k.doc.Rules) }

// Close lets go of the store.
func (k *Kept) Close() error {
	if k == nil || k.store == nil {
		return nil
	}
	return k.store.Close()
}

// Plan returns what becomes of the rules under a configuration. place says where in the
// file a field of a gate's quota stands, such as rules[0]. [Book.Adopt] takes them up
// with where they are kept, in the place of those that it has.
func (k *Kept) Plan(spec policy.Spec, place func(gate, field string) string) *Plan {
	p := newPlan(spec, place, k.doc)
	p.kept = k
	return p
}
