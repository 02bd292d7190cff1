package weir_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

func Example() {
	db, err := limit.New(limit.Config{Name: "db", Limit: 1, Queue: limit.Queue{Len: -1}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()

	p, err := db.Admit(context.Background(), weir.Work{Op: "SELECT"})
	fmt.Println("first:", err)

	_, err = db.Admit(context.Background(), weir.Work{Op: "SELECT"})
	if r := weir.AsRejection(err); r != nil {
		fmt.Println("second:", r.Reason, "at gate", r.Gate, "retryable:", r.Retryable)
	}

	p.Done(weir.OK)
	_, err = db.Admit(context.Background(), weir.Work{Op: "SELECT"})
	fmt.Println("third:", err)
	// Output:
	// first: <nil>
	// second: limit at gate db retryable: true
	// third: <nil>
}

func ExampleDo() {
	gate := weir.Must(limit.New(limit.Config{Name: "reports", Limit: 4}))
	defer gate.Close()

	work := weir.Work{Op: "monthly", Priority: weir.Background, MaxWait: 50 * time.Millisecond}
	err := weir.Do(context.Background(), gate, work, func(ctx context.Context) error {
		fmt.Println("working")
		return nil
	})
	switch {
	case errors.Is(err, weir.ErrRejected):
		fmt.Println("come back later")
	case err != nil:
		fmt.Println("failed:", err)
	}
	// Output: working
}

func ExampleAll() {
	perUser := weir.Must(limit.New(limit.Config{Name: "alice", Limit: 1}))
	server := weir.Must(limit.New(limit.Config{Name: "server", Limit: 100}))
	defer perUser.Close()
	defer server.Close()
	gate := weir.All(perUser, server)

	p, _ := gate.Admit(context.Background(), weir.Work{})
	_, err := gate.Admit(context.Background(), weir.Work{})
	fmt.Println("refused by", weir.AsRejection(err).Gate)
	fmt.Println("in flight at the server:", server.Snapshot().InFlight)
	p.Done(weir.OK)
	// Output:
	// refused by alice
	// in flight at the server: 1
}

func ExampleWithPermit() {
	gate := weir.Must(limit.New(limit.Config{Name: "api", Limit: 1}))
	defer gate.Close()

	p, _ := gate.Admit(context.Background(), weir.Work{})
	defer p.Done(weir.OK)
	ctx := weir.WithPermit(context.Background(), gate, p)

	// The only slot is taken, by this very work: a nested call rides on it.
	nested, err := gate.Admit(ctx, weir.Work{})
	fmt.Println(err)
	nested.Done(weir.OK)
	// Output: <nil>
}

// A scan that gives its slot back between batches goes on, but after those that
// need one only once.
func ExampleOperation() {
	gate := weir.Must(limit.New(limit.Config{Name: "reads", Limit: 1}))
	defer gate.Close()

	scan := weir.Operation{DemoteAfter: 2}
	for range 3 {
		w := weir.Work{Op: "scan"}
		fmt.Println(scan.Demote(w).Priority)
		p, err := scan.Admit(context.Background(), gate, w)
		if err != nil {
			fmt.Println(err)
			return
		}
		p.Done(weir.OK)
	}
	// Output:
	// normal
	// normal
	// background
}

// Health checks get through when everything is taken, and are counted apart.
func ExampleWork_exempt() {
	gate := weir.Must(limit.New(limit.Config{Name: "api", Limit: 1}))
	defer gate.Close()

	for _, w := range []weir.Work{{Op: "GET /"}, {Op: "GET /"}, {Op: "GET /healthz", Exempt: true}} {
		w.MaxWait = weir.NoWait
		_, err := gate.Admit(context.Background(), w)
		fmt.Println(w.Op, err == nil)
	}
	s := gate.Snapshot()
	fmt.Println(s.InFlight, "of", s.Limit, "in flight, and", s.Exempt, "exempt")
	// Output:
	// GET / true
	// GET / false
	// GET /healthz true
	// 1 of 1 in flight, and 1 exempt
}
