package keyed_test

import (
	"context"
	"fmt"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
)

func ExampleNew() {
	g, err := keyed.New(keyed.Config{
		Name:      "databases",
		Limit:     1,
		Queue:     keyed.Queue{Len: -1}, // nothing waits
		Overrides: map[string]keyed.Override{"orders": {Limit: 2}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()

	for _, db := range []string{"orders", "orders", "users", "users"} {
		if _, err := g.Admit(context.Background(), weir.Work{Tenant: db}); err != nil {
			fmt.Println(err)
		}
	}
	for _, u := range g.Usage(2).Top {
		fmt.Println(u.Key, u.InFlight, "of", u.Limit)
	}
	// Output:
	// weir: gate "databases" refused: every slot is taken (1 of 1); retry after 1s
	// orders 2 of 2
	// users 1 of 1
}

// Every database has a pool, and all pools follow the lag of one queue.
func ExampleNew_lag() {
	lag, err := control.NewLagMap(control.LagMapConfig{Max: 1000, Min: 10, Target: 10_000, Critical: 100_000})
	if err != nil {
		fmt.Println(err)
		return
	}
	var source control.Source // a signal.Poller that reads the consumer's lag
	g, err := keyed.New(keyed.Config{Name: "linearizer", Controller: lag, Signals: source})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()
	fmt.Println(g.Snapshot().Controller, g.Snapshot().Limit)
	// Output: lag 1000
}
