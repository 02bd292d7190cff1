package live

import (
	"fmt"
	"math"
	"time"
)

// Law is how a backend serves: how fast each of n requests runs.
type Law struct {
	Name string
	// Kind is one of
	//
	//	burn   really computes, on the processor of its own process
	//	pool   Workers at a time, the rest in order of arrival
	//	usl    all at once, contention Sigma and coherence Kappa
	//	cores  all at once on Workers processors; each one more than that costs
	//	       all of them the share Thrash
	Kind    string
	Service time.Duration // mean work of a request, alone
	Workers int           `json:",omitempty"`
	Sigma   float64       `json:",omitempty"`
	Kappa   float64       `json:",omitempty"`
	Thrash  float64       `json:",omitempty"`
}

// speed is how fast each of n requests in service runs; 1 is alone.
func (l *Law) speed(n int) float64 {
	x := float64(n)
	switch l.Kind {
	case "usl":
		return 1 / (1 + l.Sigma*(x-1) + l.Kappa*x*(x-1))
	case "cores":
		if c := float64(l.Workers); x > c {
			return c / x / (1 + l.Thrash*(x-c))
		}
	}
	return 1
}

// slots is how many are in service at a time, 0 for all.
func (l *Law) slots() int {
	if l.Kind == "pool" {
		return l.Workers
	}
	return 0
}

// best is the least concurrency of the largest throughput, and that throughput
// in requests a second.
func (l *Law) best() (n int, rps float64) {
	for i := 1; i <= 1000; i++ {
		served := i
		if s := l.slots(); s > 0 {
			served = min(i, s)
		}
		if x := float64(served) * l.speed(served) / l.Service.Seconds(); x > rps*(1+1e-9) {
			n, rps = i, x
		}
	}
	return n, rps
}

// loaded is the mean latency at the best concurrency.
func (l *Law) loaded() time.Duration {
	n, rps := l.best()
	return time.Duration(float64(n) / rps * float64(time.Second))
}

// String describes the law in the report.
func (l *Law) String() string {
	n, rps := l.best()
	switch l.Kind {
	case "burn":
		return fmt.Sprintf("computes %v for each request, in the server's process", l.Service)
	case "pool":
		return fmt.Sprintf("%d workers, %v each, the rest queue; %.0f requests/s", l.Workers, l.Service, rps)
	case "usl":
		return fmt.Sprintf("%v alone, contention %g, coherence %g: %.0f requests/s at %d in parallel, fewer beyond", l.Service, l.Sigma, l.Kappa, rps, n)
	}
	return fmt.Sprintf("%d processors, %v each, each request beyond costs all of them %g: %.0f requests/s", l.Workers, l.Service, l.Thrash, math.Round(rps))
}

// The backends of part one.
var (
	lawB1 = Law{Name: "B1", Kind: "burn", Service: 2 * time.Millisecond}
	lawB2 = Law{Name: "B2", Kind: "usl", Service: 10 * time.Millisecond, Sigma: 0.05, Kappa: 0.0005}
	lawB3 = Law{Name: "B3", Kind: "pool", Service: 100 * time.Millisecond, Workers: 100}
)

// The backends behind the proxies of part two.
var (
	lawPool25   = Law{Name: "pool-25", Kind: "pool", Service: 400 * time.Millisecond, Workers: 10}
	lawUSL53    = Law{Name: "contention-53", Kind: "usl", Service: 200 * time.Millisecond, Sigma: 0.05, Kappa: 0.0005}
	lawCores250 = Law{Name: "thrash-250", Kind: "cores", Service: 8 * time.Millisecond, Workers: 2, Thrash: 0.03}
	lawUSL1060  = Law{Name: "contention-1060", Kind: "usl", Service: 10 * time.Millisecond, Sigma: 0.05, Kappa: 0.0005}
	lawPool2000 = Law{Name: "pool-2000", Kind: "pool", Service: 20 * time.Millisecond, Workers: 40}
)
