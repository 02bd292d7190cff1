package quota_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// Each user may make 2 requests a second, alice 5. The example owns the clock, so
// that it is the same in every run; leave Now nil.
func Example() {
	now := time.Duration(0)
	gate := weir.Must(quota.New(quota.Config{
		Name: "api",
		Rules: []quota.Rule{
			{User: quota.Every, Windows: []quota.Window{quota.Per(2, time.Second), quota.PerCalendar(10_000, quota.Day, nil)}},
			{User: "alice", Windows: []quota.Window{quota.Per(5, time.Second)}},
		},
		Now: func() time.Duration { return now },
	}))
	defer gate.Close()

	for range 3 {
		permit, err := gate.Admit(context.Background(), weir.Work{User: "bob"})
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("let through")
		permit.Done(weir.OK)
	}
	// Output:
	// let through
	// let through
	// weir: gate "api" refused: quota used up, rule "user=*", window 1 (2 of 2); retry after 500ms
}

// Allow is for work that may be dropped or skipped.
func ExampleQuota_Allow() {
	gate := weir.Must(quota.New(quota.Config{
		Name:  "mails",
		Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{quota.Per(2, time.Hour)}}},
	}))
	defer gate.Close()

	for range 3 {
		fmt.Println(gate.Allow(weir.Work{User: "alice"}))
	}
	fmt.Println("bob:", gate.Allow(weir.Work{User: "bob"}))
	// Output:
	// true
	// true
	// false
	// bob: true
}

// Wait is for work that is to be slowed down, such as calls to somebody else's API.
func ExampleQuota_Wait() {
	gate := weir.Must(quota.New(quota.Config{
		Name:  "calls",
		Rules: []quota.Rule{{Windows: []quota.Window{{Rate: 1000, Burst: 1}}}},
	}))
	defer gate.Close()

	for i := range 3 {
		if err := gate.Wait(context.Background(), weir.Work{}); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("call", i)
	}
	// Output:
	// call 0
	// call 1
	// call 2
}

// What a call to a language model costs is known when it has answered. It is let in
// by an estimate, settled afterwards, and what was too little is paid back before
// the next call.
func Example_settle() {
	now := time.Duration(0)
	gate := weir.Must(quota.New(quota.Config{
		Name: "tokens", Debt: true,
		Rules: []quota.Rule{{Tenant: quota.Every, Windows: []quota.Window{quota.Per(6000, time.Minute)}}},
		Now:   func() time.Duration { return now },
	}))
	defer gate.Close()

	permit, err := gate.Admit(context.Background(), weir.Work{Tenant: "acme", Cost: 500})
	if err != nil {
		fmt.Println(err)
		return
	}
	permit.SetCost("tokens", 6200)
	permit.Done(weir.OK)

	_, err = gate.Admit(context.Background(), weir.Work{Tenant: "acme", Cost: 500})
	fmt.Println(err)
	// Output:
	// weir: gate "tokens" refused: quota used up, rule "tenant=*" (6200 of 6000); retry after 2s
}

// Work waits for its tokens, each at a time of its own.
func ExampleQueue() {
	now := time.Duration(0)
	gate := weir.Must(quota.New(quota.Config{
		Name:  "mail",
		Rules: []quota.Rule{{Windows: []quota.Window{quota.Per(4, time.Second)}}},
		Queue: quota.Queue{Len: 100, MaxWait: time.Minute},
		Now:   func() time.Duration { return now },
	}))
	defer gate.Close()

	for i := range 6 {
		_, _, err := gate.Arrive(weir.Work{}, func(p weir.Permit, err error) {
			fmt.Println("number", i, "starts at", now)
			p.Done(weir.OK)
		})
		fmt.Println("number", i, err)
	}
	for at, ok := gate.Next(); ok; at, ok = gate.Next() {
		now = at
		gate.Step()
	}
	// Output:
	// number 0 <nil>
	// number 1 <nil>
	// number 2 <nil>
	// number 3 <nil>
	// number 4 weir: waiting
	// number 5 weir: waiting
	// number 4 starts at 250ms
	// number 5 starts at 500ms
}

// Two requests to create topics, as a broker of Kafka answers them: by what the
// client understands it is refused, or let through and held back. The second one
// is only to be validated at first, which takes nothing.
func ExampleQuota_AdmitIn() {
	now := time.Duration(0)
	ctx := context.Background()
	gate := weir.Must(quota.New(quota.Config{
		Name: "mutations", Debt: true,
		Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{quota.Samples(5, 100, time.Second)}}},
		Now:   func() time.Duration { return now },
	}))
	defer gate.Close()

	for range 7 { // topics of 80 partitions each
		_, d, err := gate.AdmitIn(ctx, quota.Strict, weir.Work{User: "alice", Cost: 80})
		fmt.Println(d.Remaining, "left,", err)
	}
	more := weir.Work{User: "alice", Cost: 30}
	d, _ := gate.Peek(ctx, more)
	fmt.Println("validated: it would have to wait", d.Wait)
	_, _, err := gate.AdmitIn(ctx, quota.Strict, more)
	fmt.Println("a new client:", err)
	_, d, _ = gate.AdmitIn(ctx, quota.Permissive, more)
	fmt.Println("an old client: done, and held back for", d.Wait)
	now += d.Wait
	_, _, err = gate.AdmitIn(ctx, quota.Strict, more)
	fmt.Println("after that:", err)
	// Output:
	// 420 left, <nil>
	// 340 left, <nil>
	// 260 left, <nil>
	// 180 left, <nil>
	// 100 left, <nil>
	// 20 left, <nil>
	// -60 left, <nil>
	// validated: it would have to wait 12s
	// a new client: weir: gate "mutations" refused: quota used up, rule "user=*" (560 of 500); retry after 12s
	// an old client: done, and held back for 18s
	// after that: <nil>
}
