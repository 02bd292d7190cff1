package room_test

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/room"
)

// A tenant with three waiters and one with a single one take turns; what is critical
// goes before both.
func Example() {
	var r room.Room
	r.Configure(100, room.FIFO)
	come := func(now time.Duration, class int8, tenant string) {
		w := &room.Waiter{Expires: room.Never, Units: 1, Class: class, Tenant: tenant}
		r.CountArrival(now, w)
		r.Push(now, w)
	}
	come(1, 1, "many")
	come(2, 1, "many")
	come(3, 1, "many")
	come(4, 1, "one")
	come(5, 3, "critical")
	for w := r.Next(6); w != nil; w = r.Next(6) {
		r.Dequeue(w)
		fmt.Println(w.Tenant)
	}
	// Output:
	// critical
	// many
	// one
	// many
	// many
}
