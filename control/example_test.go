package control_test

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/control"
)

// A controller is a function of what was measured. Here a window of slow
// answers, then one of fast ones.
func ExampleAIMD() {
	a, err := control.NewAIMD(control.AIMDConfig{Initial: 50, Threshold: 100 * time.Millisecond, MinSamples: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	slow := control.Window{OK: 3, MaxInFlight: 50, Latencies: []time.Duration{90e6, 110e6, 150e6}}
	d := a.Update(&slow)
	fmt.Println(d.Limit, d.Reason)

	fast := control.Window{OK: 3, MaxInFlight: 45, Latencies: []time.Duration{20e6, 21e6, 25e6}}
	d = a.Update(&fast)
	fmt.Println(d.Limit, d.Reason)
	// Output:
	// 45 p95 150ms over 100ms
	// 46 latency fine, limit in use
}

func ExampleFixed() {
	fmt.Println(control.Fixed(20).Start().Limit)
	// Output: 20
}
