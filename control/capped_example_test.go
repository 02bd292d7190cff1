package control_test

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/control"
)

// The controller inside thinks that 40 is right; but at 40 in flight there is
// 1.6 times as much pressure on memory as is wanted.
func ExampleCapped() {
	capped, err := control.NewCapped(control.Fixed(40), control.CapConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(capped.Start().Limit)
	d := capped.Update(&control.Window{
		Now: 50 * time.Millisecond, Elapsed: 50 * time.Millisecond, Limit: 40, InFlight: 40,
		Readings: []control.Reading{
			{Name: "cpu", Value: 0.7, Known: true},
			{Name: "memory", Value: 1.6, Known: true},
		},
	})
	fmt.Println(d.Limit, d.Signal)
	// Output:
	// 40
	// 25 memory
}

func ExampleResource() {
	r, err := control.NewResource(control.ResourceConfig{Initial: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	d := r.Update(&control.Window{InFlight: 100, Readings: []control.Reading{{Name: "cpu", Value: 1.25, Known: true}}})
	fmt.Println(d.Limit, d.Reason)
	// Output: 80 cpu at 1.25 of what is wanted
}
