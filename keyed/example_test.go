package keyed_test

import (
	"context"
	"fmt"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
)

func ExampleNew() {
	g, err := keyed.New(keyed.Config{
		Name:      "databases",
		Limit:     1,
		Queue:     limit.Queue{Len: -1}, // nothing waits
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

// Users of one tenant share its pool by their weights while they wait for it.
func ExampleQueue() {
	g, err := keyed.New(keyed.Config{Name: "databases", Limit: 1, Queue: limit.Queue{
		Order:   limit.FIFO,
		Weights: limit.Weights{Users: map[string]float64{"app": 2}}, // others: 1
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()

	held, _ := g.TryAdmit(weir.Work{Tenant: "orders"})
	for range 4 {
		for _, user := range []string{"report", "app"} {
			g.Arrive(weir.Work{Tenant: "orders", User: user}, func(p weir.Permit, err error) {
				if err == nil {
					fmt.Print(user, " ")
					held = p
				}
			})
		}
	}
	for range 6 {
		held.Done(weir.OK)
	}
	// Output: report app app report app app
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

// Every shard has a limiter that finds its own limit.
func ExampleNewAdaptive() {
	l, err := keyed.NewAdaptive(keyed.AdaptiveConfig{
		Name: "shards",
		Key:  func(w weir.Work) string { return w.Op },
		New: keyed.PerKey(func(string) (limit.Config, error) {
			belief, err := control.NewBelief(control.BeliefConfig{})
			return limit.Config{Controller: belief}, err
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	p, err := l.Admit(context.Background(), weir.Work{Op: "shard-7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Done(weir.NoSample)
	s, _ := l.Limiter("shard-7", "")
	fmt.Println(s.Controller, s.InFlight)
	// Output: belief 1
}

// Each database has a pool for reads and one for writes, sized together.
func ExampleReadWrite() {
	l, err := keyed.NewAdaptive(keyed.AdaptiveConfig{
		Name: "tickets",
		Part: func(w weir.Work) string { return w.Op },
		New:  keyed.ReadWrite(control.ProbeConfig{Initial: 64}, limit.Config{}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	for _, op := range []string{keyed.Reads, keyed.Writes} {
		p, err := l.Admit(context.Background(), weir.Work{Tenant: "orders", Op: op})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer p.Done(weir.NoSample)
		s, _ := l.Limiter("orders", op)
		fmt.Println(op, s.InFlight, "of", s.Limit)
	}
	// Output:
	// read 1 of 32
	// write 1 of 32
}
