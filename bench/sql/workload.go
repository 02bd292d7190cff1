package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/weirpgx"
)

// workload is what clients do, over and over.
type workload struct {
	name, about string
	tables      []string       // made before it runs
	isolation   pgx.TxIsoLevel // of pgbench's transaction, whose tables pgbench makes; "" for other work
	work        func(ctx context.Context, db *weirpgx.Pool) error
}

// The table of reads has this many rows. A read finds some of them by their keys: so many that it costs the server far more
// than the clients. Reads of one row cost both the same, and clients with one core could not send twice what the server gets done.
const (
	rows  = 100_000
	many  = 1500
	few   = 300  // of the workload heavy
	times = 1000 // as many reads in a heavy one, which takes more than a tenth of a second
)

var (
	readTables = []string{
		`drop table if exists items`,
		fmt.Sprintf(`create unlogged table items as select id, id * 7 %% 1000 as v from generate_series(1, %d) id`, rows),
		`alter table items add primary key (id)`, `vacuum analyze items`,
	}
)

var workloads = []*workload{
	{"point", "Reads of fifteen hundred rows by their keys", readTables, "", func(ctx context.Context, db *weirpgx.Pool) error {
		return read(ctx, db, many, 1)
	}},
	{"pgbench", "The transaction of pgbench at scale 1: all of them update one row", nil, pgx.ReadCommitted, func(ctx context.Context, db *weirpgx.Pool) error {
		return bank(ctx, db, pgx.TxOptions{})
	}},
	{"serializable", "The same, serializable: transactions that meet fail", nil, pgx.Serializable, func(ctx context.Context, db *weirpgx.Pool) error {
		return bank(ctx, db, pgx.TxOptions{IsoLevel: pgx.Serializable})
	}},
	{"heavy", "Reads of three hundred rows by their keys; 3 of 100 do it a thousand times", readTables, "", func(ctx context.Context, db *weirpgx.Pool) error {
		if heavy.drawn() {
			return read(ctx, db, few, times)
		}
		return read(ctx, db, few, 1)
	}},
	{"locks", "Statements that wait for one of eight advisory locks, and hold it for 10 ms", nil, "", func(ctx context.Context, db *weirpgx.Pool) error {
		var done bool
		return db.QueryRow(ctx, `select pg_sleep(0.010) is not null from (select pg_advisory_xact_lock($1) offset 0) locked`, rand.IntN(8)).Scan(&done)
	}},
}

// deck draws without putting back: of each thousand reads exactly thirty are heavy. If each read were drawn for itself, half a minute
// would hold some 160 heavy ones, give or take a tenth. They are nearly all of the work, so each figure would scatter as much.
type deck struct {
	mu           sync.Mutex
	reads, heavy int // left of this thousand
}

var heavy deck

func (d *deck) drawn() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reads == 0 {
		d.reads, d.heavy = 1000, 30
	}
	drawn := rand.IntN(d.reads) < d.heavy
	d.reads--
	if drawn {
		d.heavy--
	}
	return drawn
}

// fill makes the tables, on connections that nothing else has used. A cancel of the load before may come
// after all, and would stop a statement of these.
func (w *workload) fill(ctx context.Context, pool *pgxpool.Pool, own *pgbench) error {
	pool.Reset()
	if w.isolation != "" {
		return own.fill(ctx)
	}
	for _, text := range w.tables {
		if _, err := pool.Exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

// read adds up so many rows with random keys, again and again.
func read(ctx context.Context, db *weirpgx.Pool, n, again int) error {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = 1 + rand.Int32N(rows)
	}
	var sum int64
	return db.QueryRow(ctx, `select sum((select sum(v) from items where id = any($1) and time > 0)) from generate_series(1, $2) time`, ids, again).Scan(&sum)
}

// bank is the transaction of pgbench, on its tables.
func bank(ctx context.Context, db *weirpgx.Pool, opts pgx.TxOptions) error {
	account, teller, delta := 1+rand.IntN(100_000), 1+rand.IntN(10), rand.IntN(10_001)-5000
	return pgx.BeginTxFunc(ctx, db, opts, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update pgbench_accounts set abalance = abalance + $1 where aid = $2`, delta, account); err != nil {
			return err
		}
		var balance int
		if err := tx.QueryRow(ctx, `select abalance from pgbench_accounts where aid = $1`, account).Scan(&balance); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update pgbench_tellers set tbalance = tbalance + $1 where tid = $2`, delta, teller); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update pgbench_branches set bbalance = bbalance + $1 where bid = 1`, delta); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into pgbench_history (tid, bid, aid, delta, mtime) values ($1, 1, $2, $3, current_timestamp)`, teller, account, delta)
		return err
	})
}
