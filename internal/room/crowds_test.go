package room

import (
	"fmt"
	"testing"
)

// flood has so many users and tenants send three times what a room serves, for a
// second.
func flood(r *Room, user, tenant func(i int) string) {
	for at, i := 0*ms, 0; at < 1000*ms; at += 10 * ms {
		for range 3 {
			i++
			w := &Waiter{Class: 1, User: user(i), Tenant: tenant(i), Units: 1, Expires: Never}
			r.Knock(at, w)
			r.Push(at, w)
		}
		r.Serve(r.Next(at))
	}
}

// A standing queue is cut for those whose flood it is: one tenant's, one user's
// however many tenants it invents, or everybody's if they are many with little each;
// and for no higher priority.
func TestWhoseQueueIsCut(t *testing.T) {
	same := func(name string) func(int) string { return func(int) string { return name } }
	each := func(name string) func(int) string { return func(i int) string { return fmt.Sprint(name, i) } }
	tests := []struct {
		name         string
		user, tenant func(int) string
		flooding     Waiter
		strangersCut bool
	}{
		{"one tenant", same(""), same("f"), Waiter{Tenant: "f"}, false},
		{"one user", same("f"), same(""), Waiter{User: "f"}, false},
		{"a user who invents tenants", same("f"), each("t"), Waiter{User: "f", Tenant: "new"}, false},
		{"tenants without a user", same(""), each("t"), Waiter{Tenant: "new"}, true},
		{"many users", each("u"), same(""), Waiter{User: "new"}, true},
	}
	for _, tt := range tests {
		r := newRoom(50, Adaptive)
		flood(r, tt.user, tt.tenant)
		tt.flooding.Class = 1
		if got := r.placesFor(&tt.flooding); got != r.Kept() || got > 8 {
			t.Errorf("%s: %d may wait, want %d", tt.name, got, r.Kept())
		}
		for _, stranger := range []Waiter{{Class: 1, User: "s"}, {Class: 1, Tenant: "s"}} {
			if cut := r.placesFor(&stranger) < 50; cut != tt.strangersCut {
				t.Errorf("%s: a stranger of user %q is cut: %v", tt.name, stranger.User, cut)
			}
		}
		if r.placesFor(&Waiter{Class: 2}) != 50 {
			t.Errorf("%s: a higher priority is cut", tt.name)
		}
		r.check(t)
	}
}
