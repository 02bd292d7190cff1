package quotas

import (
	"context"
	"errors"
	"testing"
)

// overtaken is a store in which somebody else is faster at the first writes.
type overtaken struct {
	Store
	first int
}

func (o *overtaken) Write(ctx context.Context, was string, next []byte) error {
	if o.first > 0 {
		o.first--
		return ErrChanged
	}
	return o.Store.Write(ctx, was, next)
}

// A change that somebody else has overtaken is made again, but not for ever.
func TestOvertaken(t *testing.T) {
	store := &overtaken{Store: newFile(t, inTemp(t))}
	d := newDesk(t, store, base())
	store.first = attempts - 1
	d.must(set("api", "bob", "3/h"))
	if got := d.passes("api", "bob", 9); got != 3 {
		t.Errorf("%d passed, want 3", got)
	}
	store.first = attempts
	if _, err := d.Change(t.Context(), set("api", "bob", "5/h")); !errors.Is(err, ErrChanged) {
		t.Errorf("%v, want that others were faster", err)
	}
	store.first = 0
	if got := d.Look("api").Rules; got[len(got)-1].Gives != "3/h" {
		t.Errorf("%+v, want the rule as it was", got)
	}
}
