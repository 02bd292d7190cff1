package weirsql

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"testing/synctest"
)

// FuzzPermits runs random programs on a DB, with faults and contexts that end, and compares them with a naive
// model. In the model each open set of rows, transaction and conn holds one permit, and nothing else holds any.
// No permit leaks, and none is given back twice.
func FuzzPermits(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{2, 20, 2, 14, 3, 17, 11, 13, 15, 16})
	f.Add([]byte{3, 5, 12, 24, 3, 19, 11, 4, 4, 21, 4, 11, 11})
	f.Add([]byte{23, 1, 2, 3, 4, 6, 7, 22, 0, 3, 18, 10, 14, 22})
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 200 {
			t.Skip("longer than it needs")
		}
		names := []string{"modern", "ancient", "skipping", "all but valid", "reset", "old exec and query"}
		kind := modern
		if len(program) > 0 {
			kind = kinds[names[int(program[0])%len(names)]]
		}
		inBubble(t, kind, 1000, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			m := newModel(t, db, s)
			for _, op := range program {
				m.step(int(op))
				synctest.Wait()
				if held, want := g.held(), m.held(); held != want {
					t.Fatalf("after op %d: %d permits held, want %d", op, held, want)
				}
			}
			m.close()
			synctest.Wait()
			if held := g.held(); held != 0 {
				t.Fatalf("%d permits held when all is closed", held)
			}
		})
	})
}

// model is what a program has open.
type model struct {
	t      *testing.T
	db     *DB
	s      *server
	ctx    context.Context
	cancel context.CancelFunc
	bare   *sql.Stmt
	own    *Stmt

	rows  []opened[*sql.Rows]
	txs   []opened[*sql.Tx]
	conns []opened[*sql.Conn]
	inner []*sql.Rows // of transactions and conns: they hold nothing
}

// opened is something that is open, until ctx ends if that can end.
type opened[T any] struct {
	it  T
	ctx context.Context
}

func newModel(t *testing.T, db *DB, s *server) *model {
	m := &model{t: t, db: db, s: s}
	m.renew()
	var err error
	m.bare, err = db.Prepare("SELECT 1")
	check(t, err)
	m.own, err = db.Stmt(t.Context(), "SELECT 1")
	check(t, err)
	return m
}

// renew begins a new context, after the last has ended.
func (m *model) renew() { m.ctx, m.cancel = context.WithCancel(m.t.Context()) }

func (m *model) held() int { return len(m.rows) + len(m.txs) + len(m.conns) }

// step does one thing. Its result does not matter, only the permits that are held afterwards.
func (m *model) step(op int) {
	pick := op / 32
	switch op % 25 {
	case 0:
		_, _ = m.db.ExecContext(m.ctx, "x")
	case 1:
		_ = m.db.QueryRowContext(m.ctx, "SELECT 1").Scan(new(int))
	case 2:
		m.addRows(m.db.QueryContext(m.ctx, "SELECT 1"))
	case 3:
		if tx, err := m.db.BeginTx(m.ctx, nil); err == nil {
			m.txs = append(m.txs, opened[*sql.Tx]{tx, m.ctx})
		}
	case 4:
		if c, err := m.db.Conn(m.ctx); err == nil {
			m.conns = append(m.conns, opened[*sql.Conn]{c, context.Background()})
		}
	case 5:
		_ = m.db.PingContext(m.ctx)
	case 6:
		m.addRows(m.bare.QueryContext(m.ctx))
	case 7:
		m.addRows(m.own.QueryContext(m.ctx))
	case 8:
		_, _ = m.bare.ExecContext(m.ctx)
	case 9:
		_, _ = m.own.ExecContext(m.ctx)
	case 10:
		m.addRows(m.db.Pool().QueryContext(m.ctx, "SELECT 1"))
	case 11:
		take(&m.rows, pick, func(r *sql.Rows) { _ = r.Close() })
	case 12:
		m.closeInner()
		take(&m.txs, pick, func(tx *sql.Tx) { _ = tx.Commit() })
	case 13:
		m.closeInner()
		take(&m.txs, pick, func(tx *sql.Tx) { _ = tx.Rollback() })
	case 14:
		m.closeInner()
		take(&m.conns, pick, func(c *sql.Conn) { _ = c.Close() })
	case 15:
		m.inTx(pick, func(tx *sql.Tx) { _, _ = tx.ExecContext(m.ctx, "x") })
	case 16:
		m.inTx(pick, func(tx *sql.Tx) {
			if rows, err := tx.QueryContext(m.ctx, "SELECT 1"); err == nil {
				m.inner = append(m.inner, rows)
			}
		})
	case 17:
		m.inTx(pick, func(tx *sql.Tx) { _, _ = tx.StmtContext(m.ctx, m.bare).ExecContext(m.ctx) })
	case 18:
		if len(m.conns) > 0 {
			c := m.conns[pick%len(m.conns)].it
			_, _ = c.ExecContext(m.ctx, "x")
			if tx, err := c.BeginTx(m.ctx, nil); err == nil {
				_ = tx.Rollback()
			}
			m.dropConns()
		}
	case 19: // the contexts of all that is open end
		m.cancel()
		m.renew()
		synctest.Wait()
		m.rows = slices.DeleteFunc(m.rows, func(o opened[*sql.Rows]) bool { return o.ctx.Err() != nil })
		m.txs = slices.DeleteFunc(m.txs, func(o opened[*sql.Tx]) bool { return o.ctx.Err() != nil })
		m.dropConns()
	case 20:
		m.s.on("", fails(errBroken))
	case 21:
		m.s.on("", dies)
	case 22:
		m.s.on("", fails(nil))
	case 23:
		m.s.on("begintx", dies)
	case 24:
		if len(m.rows) > 0 { // reads all: the last Next closes
			r := m.rows[pick%len(m.rows)].it
			for r.Next() {
			}
			m.rows = slices.DeleteFunc(m.rows, func(o opened[*sql.Rows]) bool { return o.it == r })
		}
	}
}

func (m *model) addRows(rows *sql.Rows, err error) {
	if err == nil {
		m.rows = append(m.rows, opened[*sql.Rows]{rows, m.ctx})
	}
}

func (m *model) inTx(pick int, f func(*sql.Tx)) {
	if len(m.txs) > 0 {
		m.closeInner() // database/sql waits for rows that are open
		f(m.txs[pick%len(m.txs)].it)
	}
}

func (m *model) closeInner() {
	for _, r := range m.inner {
		_ = r.Close()
	}
	m.inner = nil
}

// dropConns forgets those that database/sql has closed because their connection broke.
func (m *model) dropConns() {
	m.conns = slices.DeleteFunc(m.conns, func(o opened[*sql.Conn]) bool {
		return o.it.Raw(func(any) error { return nil }) == sql.ErrConnDone
	})
}

func take[T any](from *[]opened[T], pick int, end func(T)) {
	if len(*from) == 0 {
		return
	}
	i := pick % len(*from)
	end((*from)[i].it)
	*from = slices.Delete(*from, i, i+1)
}

func (m *model) close() {
	m.s.on("", fails(nil))
	m.closeInner()
	for _, o := range m.rows {
		_ = o.it.Close()
	}
	for _, o := range m.txs {
		_ = o.it.Rollback()
	}
	for _, o := range m.conns {
		_ = o.it.Close()
	}
	_ = m.bare.Close()
	_ = m.own.Close()
	m.cancel()
}
