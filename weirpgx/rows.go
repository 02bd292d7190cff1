package weirpgx

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// account learns how a statement ends. It is a use, or the transaction that the statement is in.
type account interface {
	sample()                  // the first row has arrived
	end(err error)            // the statement has ended, and its connection is free; later calls do nothing
	context() context.Context // of the statement
	endUnsampled()            // the statement panicked; after end, a call does nothing
}

// rows tells an account when the first row arrives, and when the connection is back.
type rows struct {
	pgx.Rows
	account      account
	begun, ended bool
}

// Next implements [pgx.Rows].
func (r *rows) Next() bool {
	if !r.Rows.Next() {
		r.end()
		return false
	}
	if !r.begun {
		r.begun = true
		r.account.sample()
	}
	return true
}

// Err implements [pgx.Rows].
func (r *rows) Err() error { return stoppedBy(r.account.context(), r.Rows.Err()) }

// Scan implements [pgx.Rows]. The rows are closed if it fails.
func (r *rows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.end()
	}
	return err
}

// Values implements [pgx.Rows]. The rows are closed if it fails.
func (r *rows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.end()
	}
	return values, err
}

// Close implements [pgx.Rows].
func (r *rows) Close() {
	defer r.account.endUnsampled()
	r.Rows.Close()
	r.end()
}

func (r *rows) end() {
	if !r.ended {
		r.ended = true
		r.account.end(r.Rows.Err())
	}
}

// row is a query that returns one row. Its connection is back when Scan returns.
type row struct {
	pgx.Row
	account account
}

// Scan implements [pgx.Row].
func (r *row) Scan(dest ...any) error {
	defer r.account.endUnsampled()
	err := r.Row.Scan(dest...)
	r.account.end(err)
	return stoppedBy(r.account.context(), err)
}

// failedRows are the rows of a query that was refused.
type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (r failedRows) Err() error                                 { return r.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                          { return r.err }
func (r failedRows) Values() ([]any, error)                     { return nil, r.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }

// failedRow is the row of a query that was refused.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// batchResults ends the use of a batch that has a connection. If the batch has begun a transaction, tx is that
// transaction and ends the use; otherwise tx is nil.
type batchResults struct {
	pgx.BatchResults
	account account
	within  context.Context // whose end stops the batch
	tx      *tx
}

// Exec implements [pgx.BatchResults].
func (b *batchResults) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, stoppedBy(b.within, err)
}

// Query implements [pgx.BatchResults].
func (b *batchResults) Query() (pgx.Rows, error) {
	rows, err := b.BatchResults.Query()
	return batchRows{rows, b.within}, stoppedBy(b.within, err)
}

// QueryRow implements [pgx.BatchResults].
func (b *batchResults) QueryRow() pgx.Row { return batchRow{b.BatchResults.QueryRow(), b.within} }

// batchRows and batchRow are results of one statement of a batch. The batch has the permit.
type (
	batchRows struct {
		pgx.Rows
		within context.Context
	}
	batchRow struct {
		pgx.Row
		within context.Context
	}
)

// Err implements [pgx.Rows].
func (r batchRows) Err() error { return stoppedBy(r.within, r.Rows.Err()) }

// Scan implements [pgx.Row].
func (r batchRow) Scan(dest ...any) error { return stoppedBy(r.within, r.Row.Scan(dest...)) }

// Close implements [pgx.BatchResults].
func (b *batchResults) Close() error {
	defer b.account.endUnsampled()
	err := b.BatchResults.Close()
	b.account.end(err)
	return stoppedBy(b.within, err)
}

// Tx implements [pgx.BatchResults].
func (b *batchResults) Tx() pgx.Tx {
	if b.tx == nil {
		return b.BatchResults.Tx()
	}
	return b.tx
}
