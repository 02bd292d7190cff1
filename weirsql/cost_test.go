package weirsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// idle is a database that does nothing, so that only database/sql and the layers above it are measured.
type idle struct{}

func (idle) Connect(context.Context) (driver.Conn, error) { return idle{}, nil }
func (idle) Driver() driver.Driver                        { return idle{} }
func (idle) Open(string) (driver.Conn, error)             { return idle{}, nil }
func (idle) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not in this test") }
func (idle) Close() error                                 { return nil }
func (idle) Begin() (driver.Tx, error)                    { return idle{}, nil }
func (idle) Commit() error                                { return nil }
func (idle) Rollback() error                              { return nil }
func (idle) ResetSession(context.Context) error           { return nil }
func (idle) IsValid() bool                                { return true }
func (idle) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return idle{}, nil
}
func (idle) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.ResultNoRows, nil
}
func (idle) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noRows{}, nil
}

var connector idle

type noRows struct{}

func (noRows) Columns() []string         { return nil }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

// conversation is what a [sql.DB] and a DB have in common.
type conversation interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}

const text = "SELECT name, count(*) FROM orders WHERE customer = $1 GROUP BY name"

// calls are what is measured, with a context that can end, as that of a request can.
var calls = []struct {
	name string
	run  func(context.Context, conversation) error
}{
	{"exec", func(ctx context.Context, db conversation) error {
		_, err := db.ExecContext(ctx, text)
		return err
	}},
	{"query", func(ctx context.Context, db conversation) error {
		rows, err := db.QueryContext(ctx, text)
		if err != nil {
			return err
		}
		return rows.Close()
	}},
	{"transaction", func(ctx context.Context, db conversation) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return tx.Commit()
	}},
}

// subjects returns a pool by itself and one with a gate that finds its limit.
func subjects(tb testing.TB) (bare *sql.DB, guarded *weirsql.DB) {
	bare = sql.OpenDB(idle{})
	tb.Cleanup(func() { _ = bare.Close() })
	guarded = weir.Must(weirsql.Open(idle{}, 64, limit.Config{Name: "db"}))
	tb.Cleanup(func() { _ = guarded.Close() })
	return bare, guarded
}

// BenchmarkDB measures what a DB costs above database/sql: the difference between guarded and bare.
func BenchmarkDB(b *testing.B) {
	bare, guarded := subjects(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for _, call := range calls {
		for name, db := range map[string]conversation{"bare": bare, "guarded": guarded} {
			b.Run(call.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := call.run(ctx, db); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A call makes at most four allocations more than without the gate. A transaction wraps what it begins.
func TestAllocations(t *testing.T) {
	bare, guarded := subjects(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	allocs := func(run func(context.Context, conversation) error, db conversation) float64 {
		return testing.AllocsPerRun(1000, func() {
			if err := run(ctx, db); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, call := range calls {
		without, with := allocs(call.run, bare), allocs(call.run, guarded)
		if with-without > 4 {
			t.Errorf("%s: %v allocations above the %v of database/sql, want 4 at most", call.name, with-without, without)
		}
		t.Logf("%s: %v and %v above", call.name, without, with-without)
	}
}
