package shed_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/shed"
)

// Background work goes first when the database is three quarters busy. The
// example owns the clock, so that it is the same in every run; leave Now nil and
// the gate reads the pressure by itself.
func Example() {
	database := weir.Must(limit.New(limit.Config{Name: "database", Limit: 4, Queue: limit.Queue{Len: -1}}))
	now := time.Duration(0)
	front := weir.Must(shed.New(shed.Config{
		Name: "front", Pressure: shed.LoadOf(database),
		Now: func() time.Duration { return now },
	}))
	defer front.Close()
	gate := weir.All(front, database)

	for range 3 { // of four slots
		weir.Must(gate.Admit(context.Background(), weir.Work{}))
	}
	front.Step()

	for _, p := range []weir.Priority{weir.Background, weir.Normal} {
		permit, err := gate.Admit(context.Background(), weir.Work{Priority: p})
		if err != nil {
			fmt.Println(p, "is refused:", err)
			continue
		}
		fmt.Println(p, "is let through")
		permit.Done(weir.OK)
	}
	// Output:
	// background is refused: weir: gate "front" refused: shed by priority, rule "below normal/0" (0.75 of 0.75); retry after 1s
	// normal is let through
}

// A caller that has been told the level of a server refuses by itself what the
// server would.
func ExampleShedder_LevelOf() {
	still := func() time.Duration { return 0 }
	unknown := func() (float64, bool) { return 0, false }
	caller := weir.Must(shed.New(shed.Config{Name: "to the server", Pressure: unknown, Salt: 42, Now: still}))
	defer caller.Close()

	told := shed.Level(1*shed.Levels/weir.Classes + 64) // by the server: the upper half of normal
	for _, user := range []string{"ann", "max"} {
		w := weir.Work{User: user}
		fmt.Println(user, caller.LevelOf(w), caller.LevelOf(w) >= told)
	}
	fmt.Println(caller.LevelOf(weir.Work{User: "bob", Priority: weir.High}) >= told)
	// Output:
	// ann normal/88 true
	// max normal/10 false
	// true
}
