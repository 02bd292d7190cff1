package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/throttle"
)

// A call that is refused once and then served.
func ExampleCaller_Do() {
	caller, err := throttle.NewCaller(throttle.CallerConfig{
		Name:   "shop",
		Retry:  throttle.Retry{Backoff: time.Millisecond},
		Random: func() float64 { return 0.5 },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	attempts := 0
	err = caller.Do(context.Background(), "payments", weir.Work{}, false, func(context.Context) error {
		if attempts++; attempts == 1 {
			return &weir.Rejection{Gate: "payments", Reason: weir.ReasonQueueFull, Retryable: true}
		}
		return nil
	})
	fmt.Println(attempts, err)
	// Output: 2 <nil>
}

// A throttle refuses locally once a server accepts less than half of the requests.
func ExampleThrottle() {
	// The random number is fixed here, so that the example prints the same every time.
	gate, err := throttle.New(throttle.Config{Name: "search", Random: func() float64 { return 0.5 }})
	if err != nil {
		fmt.Println(err)
		return
	}
	overloaded := errors.New("the backend is overloaded")
	for range 12 {
		err = weir.Do(context.Background(), gate, weir.Work{}, func(context.Context) error {
			return fmt.Errorf("%w: %w", overloaded, context.DeadlineExceeded)
		})
	}
	fmt.Println(err)
	fmt.Println(gate.Snapshot().LimitReason)
	// Output:
	// weir: gate "search" refused: throttled by the caller's own side, rule "normal" (58 % of such work is refused now)
	// refused here: 60 % of normal work (0 of 12 requests were accepted)
}

// A breaker opens after failures in a row, and closes after good probes.
func ExampleBreaker() {
	var now time.Duration // for the example; leave Now out for the real clock
	gate, err := throttle.NewBreaker(throttle.BreakerConfig{Name: "search", Run: 5, Probes: 1, Now: func() time.Duration { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	call := func(outcome weir.Outcome) {
		if p, err := gate.TryAdmit(weir.Work{}); err == nil {
			p.Done(outcome)
		}
	}
	for range 5 {
		call(weir.Overload)
	}
	fmt.Println(gate.State())
	now = 5 * time.Second
	fmt.Println(gate.State())
	call(weir.OK)
	fmt.Println(gate.State())
	// Output:
	// open
	// half_open
	// closed
}
