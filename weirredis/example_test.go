package weirredis_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// A server that is not there is no error of New. Decisions fail at once, and
// whoever asks goes by a bucket of its own meanwhile.
func Example() {
	store, err := weirredis.New(weirredis.Config{URL: "redis://127.0.0.1:1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	local, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}

	take := &quota.Request{
		Key:     "user=alice",
		Windows: []quota.Window{quota.Per(10, time.Second), quota.Per(1000, time.Hour)},
		Cost:    1,
	}
	r, err := store.Decide(context.Background(), take)
	var e *weirredis.Error
	if errors.As(err, &e) {
		fmt.Printf("the server is %v; perhaps charged: %v\n", e.Reason, e.Charged())
		r, err = local.Decide(context.Background(), take)
	}
	fmt.Println(r.OK, r.Remaining, err)
	// Output:
	// the server is down; perhaps charged: false
	// true 9 <nil>
}
