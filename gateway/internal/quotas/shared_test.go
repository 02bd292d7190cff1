package quotas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// shelf is what several gateways share: a document that is replaced only by who has seen
// it.
type shelf struct {
	mu  sync.Mutex
	doc []byte
}

func (s *shelf) Read(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.doc), nil
}

func (s *shelf) Write(_ context.Context, was string, next []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tag(s.doc) != was {
		return ErrChanged
	}
	s.doc = bytes.Clone(next)
	return nil
}

func (s *shelf) Most() int    { return maxBytes }
func (s *shelf) Name() string { return "shelf" }
func (s *shelf) Close() error { return nil }

// What is set at several gateways at once is all kept, and in force at all of them once
// they have looked.
func TestGatewaysAtOnce(t *testing.T) {
	store := new(shelf)
	const gateways, each = 3, 8
	var desks []*desk
	for range gateways {
		desks = append(desks, newDesk(t, store, base()))
	}
	var all sync.WaitGroup
	for g, d := range desks {
		all.Go(func() {
			for i := range each {
				if _, err := d.Change(context.Background(), set("api", fmt.Sprintf("g%d-%d", g, i), "3/h")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for g, d := range desks {
		d.Follow(t.Context())
		if n := len(d.Look("api").Rules); n != 2+gateways*each {
			t.Errorf("gateway %d knows %d rules, want %d", g, n, 2+gateways*each)
		}
		if got := d.passes("api", fmt.Sprintf("g%d-%d", (g+1)%gateways, each-1), 9); got != 3 {
			t.Errorf("gateway %d lets through %d, want 3", g, got)
		}
		if l := d.Look(""); l.ETag != desks[0].Look("").ETag {
			t.Errorf("gateway %d has ETag %s", g, l.ETag)
		}
	}
	if rev := desks[0].doc.Revision; rev != gateways*each {
		t.Errorf("revision %d after %d changes", rev, gateways*each)
	}
}

// narrow is a store for small documents.
type narrow struct{ shelf }

func (s *narrow) Most() int { return 3000 }

// What a store cannot take is refused before it is sent there, with how much it can.
func TestStoreTooSmall(t *testing.T) {
	d := newDesk(t, new(narrow), base())
	d.must(set("api", "carol", "3/h"))
	before := d.Look("").ETag
	_, err := d.Change(t.Context(), Change{Ops: []Op{{Gate: "api", Replace: many(100, "1/h")}}, Via: ViaToken})
	var faults Faults
	if !errors.As(err, &faults) || !strings.Contains(err.Error(), "shelf can keep 3000; delete some") {
		t.Errorf("%v", err)
	}
	if l := d.Look(""); l.ETag != before || d.Stats().Changes[By{ViaToken, Refused}] != 1 {
		t.Errorf("%+v", l)
	}
	d.must(Change{Ops: []Op{{Gate: "api", Replace: many(10, "1/h")}}})
}
