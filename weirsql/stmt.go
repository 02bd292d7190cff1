package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// Stmt is a prepared statement that waits for its turn before it asks for a connection. Make one with
// [DB.Stmt]. It is safe for concurrent use.
//
// A bare [database/sql.Stmt] knows nothing of the gate. It asks the gate only when it has a connection already.
// So it is admitted or refused, and never waits. In a transaction, use the inner statement:
//
//	tx.StmtContext(ctx, s.Stmt)
type Stmt struct {
	*sql.Stmt
	db    *DB
	query string
}

// Stmt prepares a statement that waits above the pool. Close it when it is no longer needed.
func (db *DB) Stmt(ctx context.Context, query string) (*Stmt, error) {
	s, err := db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &Stmt{s, db, query}, nil
}

// ExecContext is that of [database/sql.Stmt], through the gate.
func (s *Stmt) ExecContext(ctx context.Context, args ...any) (sql.Result, error) {
	u, err := s.db.admit(ctx, call{method: methodExec, query: s.query})
	if err != nil {
		return nil, err
	}
	defer u.end()
	r, err := s.Stmt.ExecContext(u.bounded(), args...)
	u.executed(err)
	return r, err
}

// Exec is ExecContext without a context.
func (s *Stmt) Exec(args ...any) (sql.Result, error) {
	return s.ExecContext(context.Background(), args...)
}

// QueryContext is that of [database/sql.Stmt], through the gate.
func (s *Stmt) QueryContext(ctx context.Context, args ...any) (*sql.Rows, error) {
	u, err := s.db.admit(ctx, call{method: methodQuery, query: s.query})
	if err != nil {
		return nil, err
	}
	defer u.endUnlessKept()
	rows, err := s.Stmt.QueryContext(u.bounded(), args...)
	u.queried(err)
	return rows, err
}

// Query is QueryContext without a context.
func (s *Stmt) Query(args ...any) (*sql.Rows, error) {
	return s.QueryContext(context.Background(), args...)
}

// QueryRowContext is that of [database/sql.Stmt], through the gate. A refusal comes from Scan.
func (s *Stmt) QueryRowContext(ctx context.Context, args ...any) *sql.Row {
	u, err := s.db.admit(ctx, call{method: methodQuery, query: s.query})
	if err != nil {
		return s.Stmt.QueryRowContext(refused{ctx, err}, args...)
	}
	defer u.endUnlessKept()
	row := s.Stmt.QueryRowContext(u.bounded(), args...)
	u.queried(row.Err())
	findLeak(u, row)
	return row
}

// QueryRow is QueryRowContext without a context.
func (s *Stmt) QueryRow(args ...any) *sql.Row {
	return s.QueryRowContext(context.Background(), args...)
}

// stmt is a statement of a driver on a connection.
type stmt struct {
	inner driver.Stmt
	c     *dbConn
	query string
}

type columnConverter interface {
	ColumnConverter(index int) driver.ValueConverter
}

// stmtConverter is a statement whose driver converts arguments column by column.
type stmtConverter struct {
	*stmt
	columns columnConverter
}

// ColumnConverter implements [driver.ColumnConverter].
func (s stmtConverter) ColumnConverter(index int) driver.ValueConverter {
	return columnOf{s, index}
}

// columnOf asks the driver for the converter of a column only when an argument comes. So one place sees the panics of both.
type columnOf struct {
	stmtConverter
	index int
}

// ConvertValue implements [driver.ValueConverter].
func (c columnOf) ConvertValue(v any) (driver.Value, error) {
	returned := false
	defer c.c.freeUnless(&returned)
	value, err := c.columns.ColumnConverter(c.index).ConvertValue(v)
	returned = true
	return value, err
}

func wrapStmt(inner driver.Stmt, c *dbConn, query string) driver.Stmt {
	s := &stmt{inner, c, query}
	if converter, ok := inner.(columnConverter); ok {
		return stmtConverter{s, converter}
	}
	return s
}

// Close implements [driver.Stmt].
func (s *stmt) Close() error {
	returned := false
	defer s.c.freeUnless(&returned)
	err := s.inner.Close()
	returned = true
	return err
}

// NumInput implements [driver.Stmt].
func (s *stmt) NumInput() int {
	returned := false
	defer s.c.freeUnless(&returned)
	n := s.inner.NumInput()
	returned = true
	return n
}

// Exec implements [driver.Stmt]. database/sql calls ExecContext.
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query implements [driver.Stmt]. database/sql calls QueryContext.
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}

func named(args []driver.Value) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, a := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return values
}

// CheckNamedValue implements [driver.NamedValueChecker]. If the statement of the driver has no checker, the
// connection checks.
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := s.inner.(driver.NamedValueChecker); ok {
		return s.c.check(n, v)
	}
	return s.c.CheckNamedValue(v)
}

// ExecContext implements [driver.StmtExecContext].
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	u, _, err := s.c.enter(ctx, call{method: methodExec, query: s.query})
	if err != nil {
		return nil, err
	}
	returned := false
	defer s.c.freeUnless(&returned)
	var r driver.Result
	if err = s.c.tell(ctx); err == nil {
		r, err = s.exec(ctx, args)
	}
	s.c.answer(ctx, u, err)
	returned = true
	return r, err
}

func (s *stmt) exec(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := s.inner.(driver.StmtExecContext); ok {
		return e.ExecContext(ctx, args)
	}
	values, err := unnamed(ctx, args)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 drivers from before contexts have nothing else
	return s.inner.Exec(values)
}

// QueryContext implements [driver.StmtQueryContext].
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	u, _, err := s.c.enter(ctx, call{method: methodQuery, query: s.query})
	if err != nil {
		return nil, err
	}
	returned := false
	defer s.c.freeUnless(&returned)
	var r driver.Rows
	if err = s.c.tell(ctx); err == nil {
		r, err = rowsOf(s.rows(ctx, args))
	}
	s.c.answer(ctx, u, err) // it may panic, too
	if err == nil {
		s.c.reads(u, ctx)
	}
	returned = true
	return r, err
}

func (s *stmt) rows(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if q, ok := s.inner.(driver.StmtQueryContext); ok {
		return q.QueryContext(ctx, args)
	}
	values, err := unnamed(ctx, args)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 drivers from before contexts have nothing else
	return s.inner.Query(values)
}
