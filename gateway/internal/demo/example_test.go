package demo_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/weir-go/weir/gateway/internal/demo"
)

// A short demo that ends with its load.
func ExampleRun() {
	err := demo.Run(context.Background(), demo.Options{
		Capacity: 200,
		Duration: 10 * time.Second,
		Once:     true,
		Out:      os.Stdout,
	})
	if err != nil {
		fmt.Println(err)
	}
}
