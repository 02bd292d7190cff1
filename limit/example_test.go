package limit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func ExampleNew() {
	l, err := limit.New(limit.Config{
		Name:  "payments",
		Limit: 2,
		Queue: limit.Queue{Len: 10, MaxWait: 200 * time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	p, err := l.Admit(context.Background(), weir.Work{Op: "charge"})
	if err != nil {
		fmt.Println(err) // says which gate, why, and when to come back
		return
	}
	defer p.Done(weir.NoSample)
	fmt.Println(l.Snapshot().InFlight, "of", l.Snapshot().Limit)
	p.Done(weir.OK)
	// Output: 1 of 2
}

// A limiter that nobody has told anything: it finds its limit.
func ExampleAuto() {
	l := limit.Auto("api")
	defer l.Close()
	err := weir.Do(context.Background(), l, weir.Work{Op: "GET /"}, func(context.Context) error { return nil })
	fmt.Println(err, l.Snapshot().Outcomes[weir.OK])
	// Output: <nil> 1
}

// A limit that moves with what the gate measures.
func ExampleNew_controller() {
	controller, err := control.NewAIMD(control.AIMDConfig{Threshold: 250 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := limit.New(limit.Config{Name: "search", Controller: controller})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	fmt.Println(l.Snapshot().Controller, l.Snapshot().Limit)
	// Output: aimd 20
}

func ExampleLimiter_SetLimit() {
	l := weir.Must(limit.New(limit.Config{Name: "batch", Limit: 3}))
	defer l.Close()
	for range 3 {
		if _, err := l.TryAdmit(weir.Work{}); err != nil {
			fmt.Println(err)
		}
	}
	if err := l.SetLimit(1); err != nil {
		fmt.Println(err)
	}
	s := l.Snapshot()
	fmt.Println(s.InFlight, "in flight, limit", s.Limit)
	// Output: 3 in flight, limit 1
}

// Who goes first among those that wait: the higher priority, and then everybody
// in turn, however many one of them sends.
func ExampleQueue() {
	l := weir.Must(limit.New(limit.Config{Name: "api", Limit: 1, Queue: limit.Queue{
		Weights: limit.Weights{Tenants: map[string]float64{"acme": 2}},
	}}))
	defer l.Close()

	p, err := l.TryAdmit(weir.Work{}) // the only slot: the others wait
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, w := range []weir.Work{
		{Tenant: "bulk"}, {Tenant: "bulk"}, {Tenant: "bulk"}, {Tenant: "bulk"},
		{Tenant: "acme"}, {Tenant: "acme"}, {Tenant: "acme"},
		{Tenant: "acme", Priority: weir.Critical},
	} {
		_, _, err := l.Arrive(w, func(next weir.Permit, err error) {
			if err == nil {
				fmt.Println(w.Tenant, w.Priority)
				p = next
			}
		})
		if err != weir.ErrWaiting {
			fmt.Println(err)
		}
	}
	for range 5 {
		p.Done(weir.OK)
	}
	// Output:
	// acme critical
	// bulk normal
	// acme normal
	// acme normal
	// bulk normal
}
