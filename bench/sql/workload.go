package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/weirpgx"
)

// workload is what clients do, over and over.
type workload struct {
	name, about string
	tables      []string // made before it runs
	work        func(ctx context.Context, db *weirpgx.Pool) error
}

// rows is how many the table of reads has; heavy is how many a heavy read reads.
const (
	rows  = 100_000
	heavy = 1000
)

var (
	readTables = []string{
		`drop table if exists items`,
		fmt.Sprintf(`create unlogged table items as select id, id * 7 %% 1000 as v from generate_series(1, %d) id`, rows),
		`alter table items add primary key (id)`, `vacuum analyze items`,
	}
	// The tables of pgbench, at scale 1.
	bankTables = []string{
		`drop table if exists branches, tellers, accounts, history`,
		`create unlogged table branches as select id, 0 as balance from generate_series(1, 1) id`,
		`create unlogged table tellers as select id, 0 as balance from generate_series(1, 10) id`,
		`create unlogged table accounts as select id, 0 as balance, repeat(' ', 84) as filler from generate_series(1, 100000) id`,
		`create unlogged table history (teller int, branch int, account int, delta int, at timestamp, filler char(22))`,
		`alter table branches add primary key (id)`, `alter table tellers add primary key (id)`, `alter table accounts add primary key (id)`,
		`vacuum analyze branches, tellers, accounts`,
	}
)

var workloads = []*workload{
	{"point", "Reads of one row by its key", readTables, func(ctx context.Context, db *weirpgx.Pool) error {
		return read(ctx, db, 1)
	}},
	{"pgbench", "The transaction of pgbench at scale 1: all of them update one row", bankTables, func(ctx context.Context, db *weirpgx.Pool) error {
		return bank(ctx, db, pgx.TxOptions{})
	}},
	{"serializable", "The same, serializable: transactions that meet fail", bankTables, func(ctx context.Context, db *weirpgx.Pool) error {
		return bank(ctx, db, pgx.TxOptions{IsoLevel: pgx.Serializable})
	}},
	{"heavy", "Reads of one row; 3 of 100 read a thousand", readTables, func(ctx context.Context, db *weirpgx.Pool) error {
		if rand.IntN(100) < 3 {
			return read(ctx, db, heavy)
		}
		return read(ctx, db, 1)
	}},
	{"locks", "Statements that wait for one of eight advisory locks, and hold it for 2 ms", nil, func(ctx context.Context, db *weirpgx.Pool) error {
		var done bool
		return db.QueryRow(ctx, `select pg_sleep(0.002) is not null from (select pg_advisory_xact_lock($1) offset 0) locked`, rand.IntN(8)).Scan(&done)
	}},
}

// fill makes the tables, on connections that nothing else has used: a cancel of the load before may come
// after all, and would stop a statement of these.
func (w *workload) fill(ctx context.Context, pool *pgxpool.Pool) error {
	pool.Reset()
	for _, text := range w.tables {
		if _, err := pool.Exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

// read adds up so many rows from a random one on.
func read(ctx context.Context, db *weirpgx.Pool, n int) error {
	var sum int64
	return db.QueryRow(ctx, `select coalesce(sum(v), 0) from items where id >= $1 and id < $1 + $2`, 1+rand.IntN(rows-n), n).Scan(&sum)
}

// bank is the transaction of pgbench.
func bank(ctx context.Context, db *weirpgx.Pool, opts pgx.TxOptions) error {
	account, teller, delta := 1+rand.IntN(100_000), 1+rand.IntN(10), rand.IntN(10_001)-5000
	return pgx.BeginTxFunc(ctx, db, opts, func(tx pgx.Tx) error {
		var balance int
		for _, s := range []struct {
			text string
			id   int
		}{
			{`update accounts set balance = balance + $1 where id = $2`, account},
			{`update tellers set balance = balance + $1 where id = $2`, teller},
			{`update branches set balance = balance + $1 where id = $2`, 1},
		} {
			if _, err := tx.Exec(ctx, s.text, delta, s.id); err != nil {
				return err
			}
		}
		if err := tx.QueryRow(ctx, `select balance from accounts where id = $1`, account).Scan(&balance); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into history (teller, branch, account, delta, at) values ($1, 1, $2, $3, current_timestamp)`, teller, account, delta)
		return err
	})
}
