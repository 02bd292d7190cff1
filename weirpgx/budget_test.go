//go:build integration

package weirpgx

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// Outside of a transaction a statement ends with its budget, long before the deadline. Its slot is free then, and it counts
// as overload.
func TestBudgetOutside(t *testing.T) {
	table(t, "budgets")
	var got weir.Outcome
	p := open(t, config(t, 4), limit.Config{Name: "db", Limit: 1, Queue: limit.Queue{Len: -1}, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { got = o },
	}}, WithBudget(1e-5, weirsql.LocalTimeout)) // 36 ms of an hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	locks, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(context.WithoutCancel(t.Context()))
	if _, err := locks.Exec(t.Context(), "begin; lock table budgets"); err != nil {
		t.Fatal(err)
	}
	const endless = "select pg_sleep(600)"
	batch := func(begin bool) error {
		b := &pgx.Batch{}
		if begin {
			b.BeginTx(pgx.TxOptions{})
		}
		b.Queue(endless)
		r := p.SendBatch(ctx, b)
		err := r.Close()
		if begin {
			_ = r.Tx().Rollback(ctx)
		}
		return err
	}
	for name, statement := range map[string]func() error{
		"exec": func() error { _, err := p.Exec(ctx, endless); return err },
		"query": func() error {
			rows, err := p.Query(ctx, endless)
			for rows.Next() {
			}
			return errors.Join(err, rows.Err())
		},
		"row":                    func() error { return p.QueryRow(ctx, endless).Scan(nil) },
		"batch":                  func() error { return batch(false) },
		"batch in a transaction": func() error { return batch(true) },
		"copy": func() error { // waits for the lock
			_, err := p.CopyFrom(ctx, pgx.Identifier{"budgets"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
			return err
		},
	} {
		if err := statement(); err == nil || ctx.Err() != nil || got != weir.Overload {
			t.Errorf("%s: %v, counted as %v", name, err, got)
		}
		if n := inFlight(p); n != 0 {
			t.Fatalf("%s: %d slots are left", name, n)
		}
	}
}

// The server knows the budget of a statement in a transaction, also after a savepoint and in a batch. It ends a
// statement that takes longer.
func TestBudgetOnServerInTransaction(t *testing.T) {
	p := open(t, config(t, 2), limit.Config{Name: "db"}, WithBudget(0.5, weirsql.LocalTimeout))
	const timeout = "select setting::bigint from pg_settings where name = 'statement_timeout'"
	known := func(what string, row pgx.Row, least, most time.Duration) {
		t.Helper()
		var ms int64
		if err := row.Scan(&ms); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := time.Duration(ms) * time.Millisecond; got < least || got > most {
			t.Errorf("%s: %v, want %v to %v", what, got, least, most)
		}
	}
	err := p.InTx(t.Context(), pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		known("without a deadline", tx.QueryRow(ctx, timeout), 0, 0)
		late, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		known("with an hour left", tx.QueryRow(late, timeout), 20*time.Minute, 30*time.Minute)
		known("without a deadline again", tx.QueryRow(ctx, timeout), 0, 0)

		save, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := save.Exec(late, "select 1 / 0"); err == nil {
			t.Error("one over nothing")
		}
		if _, err := save.Exec(late, "select 1"); err == nil {
			t.Error("a statement after a failure")
		}
		if err := save.Rollback(late); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(timeout)
		results := tx.SendBatch(late, b)
		known("in a batch", results.QueryRow(), 20*time.Minute, 30*time.Minute)
		return results.Close()
	})
	if err != nil {
		t.Error(err)
	}
	p = open(t, config(t, 2), limit.Config{Name: "db"}, WithBudget(1e-5, weirsql.LocalTimeout)) // 36 ms of an hour
	err = p.InTx(t.Context(), pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err := tx.Exec(ctx, "select pg_sleep(600)")
		return err
	})
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != "57014" {
		t.Errorf("%v, want a statement that was cancelled", err)
	}
}
