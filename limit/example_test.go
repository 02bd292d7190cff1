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
