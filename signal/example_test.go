package signal_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// Scheduler latency on a limiter: the controller finds the limit of what is
// behind the gate, and the cap lowers it while goroutines wait for a processor.
func Example() {
	latency, err := signal.NewSchedLatency(signal.SchedLatencyConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	poller, err := signal.NewPoller(signal.Config{
		Watches: []signal.Watch{{Signal: latency}},
		Hooks: signal.Hooks{Trouble: func(name string, err error) {
			slog.Warn("a signal is of no use", "signal", name, "error", err)
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer poller.Close()

	belief, err := control.NewBelief(control.BeliefConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	capped, err := control.NewCapped(belief, control.CapConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := limit.New(limit.Config{Name: "api", Controller: capped, Signals: poller})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	fmt.Println(l.Snapshot().Controller, len(poller.Readings(nil)))
	// Output: belief 1
}

// Anything that can be measured is a signal: here the depth of a queue, of
// which 200 is the most that is wanted.
func ExampleFunc() {
	queue := make(chan int, 1000)
	for i := range 50 {
		queue <- i
	}
	depth := signal.Func("queue_depth", func(context.Context) (float64, error) {
		return float64(len(queue)) / 200, nil
	})
	v, err := depth.Read(context.Background())
	fmt.Println(depth.Name(), v, err)
	// Output: queue_depth 0.25 <nil>
}

// What happens when a signal stops answering is a setting of each.
func ExampleWatch() {
	memory, err := signal.NewMemory(signal.MemoryConfig{Threshold: 0.85})
	if err != nil {
		fmt.Println(err)
		return
	}
	poller, err := signal.NewPoller(signal.Config{Watches: []signal.Watch{{
		Signal:   memory,
		Interval: 250 * time.Millisecond,
		Hold:     5 * time.Second, // how long the last good value is used
		Fallback: 0.9,             // then this one: not too much, but little room to grow
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer poller.Close()
	fmt.Println(poller.Snapshot()[0].Name)
	// Output: memory
}
