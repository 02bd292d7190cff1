//go:build integration

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	gormpg "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/bench/sql/internal/sqlc"
	"github.com/weir-go/weir/bench/sql/internal/sqlc/pgxsql"
	"github.com/weir-go/weir/bench/sql/internal/sqlc/prepared"
	"github.com/weir-go/weir/bench/sql/internal/sqlc/stdsql"
	"github.com/weir-go/weir/internal/testbed/postgres"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirpgx"
	"github.com/weir-go/weir/weirsql"
)

// startPostgres starts a server with settings, such as max_connections=400.
func startPostgres(t *testing.T, settings ...string) (program string, server *postgres.Server) {
	t.Helper()
	program, err := postgres.Find()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	server, err = postgres.Start(t.Context(), postgres.Config{Program: program, Ports: &rig.Ports, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return program, server
}

// openPostgres starts a server with a table, and opens a DB with a limit and without a queue. The Work of what
// asks goes to seen.
func openPostgres(t *testing.T, fixed int64, seen func(weir.Work)) *weirsql.DB {
	t.Helper()
	_, server := startPostgres(t)
	cfg, err := pgx.ParseConfig(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	db, err := weirsql.Open(stdlib.GetConnector(*cfg), 8, limit.Config{Name: "db", Limit: fixed, Queue: limit.Queue{Len: -1}},
		weirsql.WithWork(func(_ context.Context, _ string, w *weir.Work) { seen(*w) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.Exec(sqlc.Schema); err != nil {
		t.Fatal(err)
	}
	return db
}

// asks records what asked the gate.
type asks struct {
	mu  sync.Mutex
	all []string
}

func (a *asks) add(w weir.Work) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := "read"
	if w.Write {
		kind = "write"
	}
	a.all = append(a.all, w.Op+" "+kind)
}

// expect holds what has asked since the last call.
func (a *asks) expect(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if fmt.Sprint(a.all) != fmt.Sprint(want) {
		t.Errorf("%q asked the gate, not %q", a.all, want)
	}
	a.all = nil
}

// What sqlc generates takes a DB for a sql.DB: each query asks once, a transaction once in all, and nothing is left.
func TestGeneratedQueries(t *testing.T) {
	t.Parallel()
	var seen asks
	db := openPostgres(t, 1, seen.add)
	seen.expect(t, "exec write")
	ctx, q := t.Context(), stdsql.New(db)
	a, err := q.CreateAuthor(ctx, "Ada")
	if err != nil {
		t.Fatal(err)
	}
	seen.expect(t, "query write")
	if got, err := q.GetAuthor(ctx, a.ID); err != nil || got != a {
		t.Errorf("%v, %v", got, err)
	}
	if all, err := q.ListAuthors(ctx); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	seen.expect(t, "query read", "query read")
	if _, err := q.GetAuthor(ctx, 99); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("no such author: %v", err)
	}
	seen.expect(t, "query read")

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.WithTx(tx).CreateAuthor(ctx, "Bea"); err != nil {
		t.Error(err)
	}
	if _, err := q.ListAuthors(ctx); !errors.Is(err, weir.ErrRejected) {
		t.Errorf("beside the transaction, which has the one slot: %v", err)
	}
	if _, err := q.GetAuthor(ctx, a.ID); !errors.Is(err, weir.ErrRejected) {
		t.Errorf("a row beside the transaction: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	seen.expect(t, "begin write", "query read", "query read")
	err = db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error { return q.WithTx(tx).DeleteAuthor(ctx, a.ID) })
	if err != nil {
		t.Error(err)
	}
	seen.expect(t, "begin write")
	if all, err := q.ListAuthors(ctx); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	seen.expect(t, "query read")
	if n := inFlight(db); n != 0 {
		t.Errorf("%d permits are held", n)
	}
}

// With emit_prepared_queries sqlc keeps bare statements. They ask below the pool and never wait there.
func TestGeneratedPreparedQueries(t *testing.T) {
	t.Parallel()
	db := openPostgres(t, 1, func(weir.Work) {})
	ctx := t.Context()
	q, err := prepared.Prepare(ctx, db)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	a, err := q.CreateAuthor(ctx, "Ada")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.GetAuthor(ctx, a.ID); !errors.Is(err, weir.ErrRejected) {
		t.Errorf("a bare statement is refused and does not wait: %v", err)
	}
	if got, err := q.WithTx(tx).GetAuthor(ctx, a.ID); err != nil || got != a {
		t.Errorf("a prepared statement in the transaction: %v, %v", got, err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if all, err := q.ListAuthors(ctx); err != nil || len(all) != 1 {
		t.Errorf("after the transaction: %v, %v", all, err)
	}
	if n := inFlight(db); n != 0 {
		t.Errorf("%d permits are held", n)
	}
}

// What sqlc generates for pgx takes weirpgx's pool: a batch and a copy are one piece of work.
func TestGeneratedPgxQueries(t *testing.T) {
	t.Parallel()
	_, server := startPostgres(t)
	cfg, err := pgxpool.ParseConfig(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var seen asks
	db, err := weirpgx.Open(t.Context(), cfg, limit.Config{Name: "db", Limit: 1, Queue: limit.Queue{Len: -1}},
		weirpgx.WithWork(func(_ context.Context, _ string, w *weir.Work) { seen.add(*w) }))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, q := t.Context(), pgxsql.New(db)
	if _, err := db.Exec(ctx, sqlc.Schema); err != nil {
		t.Fatal(err)
	}
	if n, err := q.CreateAuthors(ctx, []string{"Ada", "Bea"}); err != nil || n != 2 {
		t.Errorf("a copy: %d, %v", n, err)
	}
	all, err := q.ListAuthors(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	seen.expect(t, "exec write", "copy write", "query read")
	var renames []pgxsql.RenameAuthorParams
	for _, a := range all {
		renames = append(renames, pgxsql.RenameAuthorParams{ID: a.ID, Name: a.Name + " B."})
	}
	q.RenameAuthor(ctx, renames).Exec(func(i int, err error) {
		if err != nil {
			t.Errorf("statement %d of a batch: %v", i, err)
		}
	})
	if a, err := q.GetAuthor(ctx, all[0].ID); err != nil || a.Name != "Ada B." {
		t.Errorf("%v, %v", a, err)
	}
	seen.expect(t, "batch write", "query read")

	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.WithTx(tx).CreateAuthor(ctx, "Eva"); err != nil {
		t.Error(err)
	}
	if _, err := q.GetAuthor(ctx, all[0].ID); !errors.Is(err, weir.ErrRejected) {
		t.Errorf("beside the transaction, which has the one slot: %v", err)
	}
	q.RenameAuthor(ctx, renames).Exec(func(i int, err error) {
		if !errors.Is(err, weir.ErrRejected) {
			t.Errorf("statement %d of a batch beside the transaction: %v", i, err)
		}
	})
	if err := tx.Rollback(ctx); err != nil {
		t.Error(err)
	}
	seen.expect(t, "begin write", "query read", "batch write")
	if n := inFlight(db); n != 0 {
		t.Errorf("%d permits are held", n)
	}
}

// book is a table of the mapper.
type book struct {
	ID     int64
	Title  string `gorm:"uniqueIndex"`
	Pages  int
	Author string
}

// openMapper hands a DB to gorm, which takes it as its pool.
func openMapper(t *testing.T, db *weirsql.DB, cfg gorm.Config) *gorm.DB {
	t.Helper()
	cfg.Logger = logger.Discard
	g, err := gorm.Open(gormpg.New(gormpg.Config{Conn: db}), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// gorm works on a DB as on a sql.DB. Each of its writes is a transaction, so it asks for one.
func TestMapper(t *testing.T) {
	t.Parallel()
	var seen asks
	db := openPostgres(t, 1, seen.add)
	g := openMapper(t, db, gorm.Config{})
	if err := g.AutoMigrate(&book{}); err != nil {
		t.Fatal(err)
	}
	seen.mu.Lock()
	seen.all = nil
	seen.mu.Unlock()

	b := book{Title: "Ways", Pages: 100}
	if err := g.Create(&b).Error; err != nil || b.ID == 0 {
		t.Errorf("%v, %v", b, err)
	}
	seen.expect(t, "begin write")
	var got book
	if err := g.First(&got, "title = ?", "Ways").Error; err != nil || got != b {
		t.Errorf("%v, %v", got, err)
	}
	if err := g.First(&got, "title = ?", "none").Error; !errors.Is(err, gorm.ErrRecordNotFound) {
		t.Error(err)
	}
	seen.expect(t, "query read", "query read")
	if err := g.Create(&book{Title: "Ways"}).Error; err == nil {
		t.Error("a title twice")
	}
	seen.expect(t, "begin write")

	no := errors.New("no")
	err := g.Transaction(func(tx *gorm.DB) error {
		if err := tx.Model(&book{}).Where("id = ?", b.ID).Update("pages", 7).Error; err != nil {
			return err
		}
		if err := tx.Transaction(func(inner *gorm.DB) error { return errors.Join(inner.Create(&book{Title: "In"}).Error, no) }); !errors.Is(err, no) {
			t.Errorf("the inner one, a savepoint: %v", err)
		}
		if err := g.First(&got).Error; !errors.Is(err, weir.ErrRejected) {
			t.Errorf("beside the transaction, which has the one slot: %v", err)
		}
		rows, err := tx.Model(&book{}).Rows()
		if err != nil {
			return err
		}
		return rows.Close()
	})
	if err != nil {
		t.Error(err)
	}
	seen.expect(t, "begin write", "query read")
	if err := g.Transaction(func(tx *gorm.DB) error { return errors.Join(tx.Create(&book{Title: "Gone"}).Error, no) }); !errors.Is(err, no) {
		t.Error(err)
	}
	seen.expect(t, "begin write")
	var all []book
	if err := g.Order("id").Find(&all).Error; err != nil || len(all) != 1 || all[0].Pages != 7 {
		t.Errorf("%v, %v", all, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := g.WithContext(ctx).Exec("SELECT pg_sleep(60)").Error; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ends: %v", err)
	}
	until(t, "no permit is held", func() bool { return inFlight(db) == 0 })
}

// The limits of it that the documentation names.
func TestMapperLimits(t *testing.T) {
	t.Parallel()
	var seen asks
	db := openPostgres(t, 1, seen.add)
	g := openMapper(t, db, gorm.Config{})
	if _, err := g.DB(); err == nil {
		t.Error("gorm's DB() finds a sql.DB; it did not when this was written")
	}
	prepares := gorm.Config{PrepareStmt: true, SkipDefaultTransaction: true, Logger: logger.Discard}
	if _, err := gorm.Open(gormpg.New(gormpg.Config{Conn: db}), &prepares); !errors.Is(err, gorm.ErrInvalidDB) {
		t.Errorf("a gorm that prepares and pings does not find a sql.DB: %v", err)
	}
	ready := openMapper(t, db, gorm.Config{PrepareStmt: true, SkipDefaultTransaction: true, DisableAutomaticPing: true})
	if err := ready.Exec("SELECT 1").Error; err != nil {
		t.Error(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ready.Exec("SELECT 1").Error; !errors.Is(err, weir.ErrRejected) {
		t.Errorf("a statement that gorm has prepared is refused and does not wait: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	if err := ready.Exec("SELECT 1").Error; err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}
