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

// The first window sets the latency without a queue; the next ones are judged
// by it.
func ExampleVegas() {
	v, err := control.NewVegas(control.VegasConfig{Initial: 50, MinSamples: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, mean := range []time.Duration{10e6, 10e6, 14e6} {
		d := v.Update(&control.Window{OK: 100, MaxInFlight: 50, Timed: 100, LatencySum: 100 * mean})
		fmt.Println(d.Limit, d.Reason)
	}
	// Output:
	// 50 a new shortest latency: mean 10ms, shortest 10ms
	// 56 no queue: mean 10ms, shortest 10ms
	// 55 a long queue: mean 14ms, shortest 10ms
}

func ExampleGradient2() {
	g, err := control.NewGradient2(control.Gradient2Config{Initial: 50})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, mean := range []time.Duration{10e6, 10e6, 40e6} {
		d := g.Update(&control.Window{OK: 100, MaxInFlight: 50, Timed: 100, LatencySum: 100 * mean})
		fmt.Println(d.Limit, d.Reason)
	}
	// Output:
	// 50 latency fine, limit in use: mean 10ms, baseline 10ms
	// 51 latency fine, limit in use: mean 10ms, baseline 10ms
	// 47 slower than the baseline: mean 40ms, baseline 12ms
}

// All slots were in use, so it tries a step up; that helped, so a part of the
// step is kept.
func ExampleProbe() {
	p, err := control.NewProbe(control.ProbeConfig{Initial: 64})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, finished := range []int64{0, 500, 540} {
		d := p.Update(&control.Window{Elapsed: 100 * time.Millisecond, OK: finished, MaxInFlight: 64})
		fmt.Println(d.Limit, d.Reason)
	}
	// Output:
	// 64 stable at 64.0 slots
	// 70 probing up from 64.0 slots
	// 65 stable at 65.2 slots
}

// Two gates, one for reads and one for writes, sized together.
func ExampleProbePair() {
	p, err := control.NewProbePair(control.ProbeConfig{Initial: 64, ReadRatio: 0.75})
	if err != nil {
		fmt.Println(err)
		return
	}
	read, write := p.Read(), p.Write() // a limit.Config takes each
	fmt.Println(read.Start().Limit, read.Start().Next)
	fmt.Println(write.Start().Limit, write.Start().Next)
	// Output:
	// 48 100ms
	// 16 10ms
}

func ExampleLagMap() {
	l, err := control.NewLagMap(control.LagMapConfig{Signal: "indexer", Hold: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range []control.Reading{
		{Name: "indexer", Value: 8000, Known: true},
		{Name: "indexer", Value: 55_000, Known: true},
		{Name: "indexer"},
		{Name: "indexer"},
	} {
		d := l.Update(&control.Window{Readings: []control.Reading{r}})
		fmt.Println(d.Limit, d.Reason)
	}
	// Output:
	// 1000 lag 8000
	// 505 lag 55000
	// 505 lag unknown for 1 of 1 intervals: limit kept
	// 10 lag unknown for more than 1 intervals: safe limit 10
}

// In 5 s, 4000 pieces of work were drained that each held a slot for half a
// second: that keeps 400 slots busy.
func ExampleDrain() {
	c, err := control.NewDrain(control.DrainConfig{Target: 10_000})
	if err != nil {
		fmt.Println(err)
		return
	}
	w := control.Window{
		Elapsed: 5 * time.Second, OK: 4000, LatencySum: 4000 * 500 * time.Millisecond, MaxInFlight: 400,
		Readings: []control.Reading{{Name: "indexer", Value: 5000, Known: true}},
	}
	d := c.Update(&w)
	fmt.Println(d.Limit, d.Reason)
	w.Readings[0].Value = 4000
	d = c.Update(&w)
	fmt.Println(d.Limit, d.Reason)
	// Output:
	// 380 lag 5000, the drain kept 400 slots busy
	// 409 lag 4000 below 5000
}

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
	// Output: 80 signal cpu at 1.25
}
