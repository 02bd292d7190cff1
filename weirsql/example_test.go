package weirsql_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// The connector is the driver's, such as that of pgx's stdlib.GetConnector. 64 is what the database
// allows this process.
func Example() {
	db, err := weirsql.Open(connector, 64, limit.Config{Name: "db"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()

	ctx := context.Background()
	rows, err := db.QueryContext(ctx, "SELECT name FROM orders")
	if r := weir.AsRejection(err); r != nil {
		fmt.Println("come back after", r.RetryAfter)
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rows.Close()
	for rows.Next() {
	}
	fmt.Println(rows.Err(), db.Gate().(*limit.Limiter).Snapshot().InFlight)
	// Output: <nil> 0
}

// A transaction takes one slot, and calls with its context take no more.
func ExampleDB_InTx() {
	db := weirsql.New(connector, weir.Must(limit.New(limit.Config{Name: "db", Limit: 1})))
	defer db.Close()

	pay := func(ctx context.Context) error { // knows nothing of the transaction
		_, err := db.ExecContext(ctx, "INSERT INTO log VALUES ('paid')")
		return err
	}
	err := db.InTx(context.Background(), nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 42"); err != nil {
			return err
		}
		return pay(ctx)
	})
	fmt.Println(err)
	// Output: <nil>
}

// Code that wants a *sql.DB can have one that refuses. It never waits, because it has a connection.
func ExampleConnector() {
	gate := weir.Must(limit.New(limit.Config{Name: "db", Limit: 1}))
	defer gate.Close()
	db := sql.OpenDB(weirsql.Connector(connector, gate))
	db.SetMaxOpenConns(2) // above the limit, so that who is refused waits for no connection
	db.SetMaxIdleConns(2)
	defer db.Close()

	tx, err := db.Begin()
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = db.Exec("DELETE FROM log")
	fmt.Println(weir.AsRejection(err).Reason)
	fmt.Println(tx.Rollback())
	// Output:
	// limit
	// <nil>
}

// For a permit that is held by hand, Classify gives the outcome of the work.
func ExampleClassify() {
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(weirsql.Classify(ctx, nil))
	fmt.Println(weirsql.Classify(ctx, sql.ErrNoRows))
	cancel()
	fmt.Println(weirsql.Classify(ctx, context.Canceled))
	// Output:
	// ok
	// ok
	// abandoned
}
