package loadgen_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

func Example() {
	load := loadgen.Load{
		Phases:   []loadgen.Phase{{Rate: 500, For: 100 * time.Millisecond}},
		Patience: time.Second,
		// GET makes a Send for a URL; any function will do.
		Send: func(context.Context) loadgen.Answer { return loadgen.OK },
	}
	meter, err := load.Start(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	<-meter.Done()
	sum := meter.Second(0)
	fmt.Println("offered some:", sum.Offered > 0)
	fmt.Println("answered all:", sum.OK == sum.Offered)
	// Output:
	// offered some: true
	// answered all: true
}
