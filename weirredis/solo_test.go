package weirredis

import (
	"testing"
	"time"
)

// closing is a connection that only can be closed.
type closing struct {
	ownConn
	closed bool
}

func (c *closing) Close() { c.closed = true }

func newClosing() (*solo, *closing) {
	c := &closing{}
	return &solo{conn: c}, c
}

// A connection is made for who asks often, is one's at a time, is left when it has
// rested, and is not tried again soon after it broke.
func TestSolos(t *testing.T) {
	var a solos
	now := time.Unix(1000, 0)
	borrow := func(after time.Duration, wantConn, wantMake bool) *solo {
		t.Helper()
		now = now.Add(after)
		s, wanted := a.borrow(now)
		if (s != nil) != wantConn || wanted != wantMake {
			t.Fatalf("at %v: connection %v, wanted %v", now.Sub(time.Unix(1000, 0)), s != nil, wanted)
		}
		return s
	}
	borrow(0, false, false)
	borrow(soloWithin, false, false)
	borrow(soloWithin-1, false, true)
	borrow(1, false, false) // it is being made
	first, conn := newClosing()
	a.giveBack(first, now)
	s := borrow(1, true, false)
	borrow(1, false, false) // it is in use
	a.giveBack(s, now)
	borrow(soloRest, false, false)
	if !conn.closed {
		t.Error("it has rested and is not closed")
	}
	borrow(1, false, true)
	second, conn := newClosing()
	a.giveBack(second, now)
	borrow(1, true, false)
	a.giveBack(nil, now)
	if !conn.closed {
		t.Error("it broke and is not closed")
	}
	for range 15 {
		borrow(soloWithin/2, false, false)
	}
	now = now.Add(soloRest)
	borrow(0, false, false)
	borrow(1, false, true)
	a.close()
	third, conn := newClosing()
	a.giveBack(third, now)
	if !conn.closed {
		t.Error("it came after the store was closed, and is not")
	}
	borrow(1, false, false)
}
