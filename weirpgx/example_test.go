package weirpgx_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirpgx"
)

// The database can spare 64 connections for this pool. The limiter finds how many of them to use at a time.
func Example() {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig("postgres://app@db.internal/app?pool_max_conns=64")
	if err != nil {
		fmt.Println(err)
		return
	}
	db, err := weirpgx.Open(ctx, cfg, limit.Config{Name: "db"}, weirpgx.WithWork(func(_ context.Context, sql string, w *weir.Work) {
		if sql == monthly {
			w.Priority = weir.Background
		}
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	fmt.Println(db.Gate().(*limit.Limiter).Snapshot().Limit, "at first")
	// Output: 20 at first
}

const monthly = "select sum(amount) from sales where month = $1"

// A refusal says when to come back. It has used no connection.
func ExamplePool_InTx() {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig("postgres://app@db.internal/app?pool_max_conns=64")
	if err != nil {
		fmt.Println(err)
		return
	}
	db, err := weirpgx.Open(ctx, cfg, limit.Config{Name: "db"})
	if err != nil {
		fmt.Println(err)
		return
	}
	db.Close() // as at the end of the process

	err = db.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update accounts set balance = balance - 1 where id = 7")
		return err
	})
	fmt.Println(err)
	// Output: weirpgx: the Pool or its gate was closed: weir: gate "db" refused: the gate is draining
}
