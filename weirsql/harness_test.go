package weirsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/slot"
)

// fakeGate is a gate of n slots that remembers what became of each permit. Work that may wait waits
// without a bound.
type fakeGate struct {
	slots chan struct{}
	group slot.Group

	mu       sync.Mutex
	refuse   error
	admitted int
	inFlight int
	twice    int // permits that were given back again
	sampled  []weir.Outcome
	works    []weir.Work
}

func newFakeGate(n int) *fakeGate {
	g := &fakeGate{slots: make(chan struct{}, n)}
	g.group.Holder = g
	g.group.Attention.Store(1)
	for range n {
		g.slots <- struct{}{}
	}
	return g
}

func (g *fakeGate) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, g); ok {
		return p, nil
	}
	g.mu.Lock()
	g.works = append(g.works, w)
	refuse := g.refuse
	g.mu.Unlock()
	if refuse != nil {
		return weir.Permit{}, refuse
	}
	select {
	case <-g.slots:
	default:
		if w.MaxWait < 0 {
			return weir.Permit{}, &weir.Rejection{Gate: "fake", Reason: weir.ReasonLimit}
		}
		select {
		case <-g.slots:
		case <-ctx.Done():
			return weir.Permit{}, &weir.Rejection{Gate: "fake", Reason: weir.ReasonCanceled, Cause: ctx.Err()}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
	g.admitted++
	s := new(slot.Slot)
	s.Init(&g.group, 0)
	return weir.NewPermit(s.Issue()), nil
}

func (g *fakeGate) Done(t slot.Ticket, outcome uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.MarkSampled() {
		g.sampled = append(g.sampled, weir.Outcome(outcome))
	}
	if live, _ := t.Recall(); !live {
		g.twice++
		return
	}
	g.inFlight--
	g.slots <- struct{}{}
}

func (g *fakeGate) Sample(t slot.Ticket, outcome uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.MarkSampled() {
		g.sampled = append(g.sampled, weir.Outcome(outcome))
	}
}

func (g *fakeGate) Cancel(t slot.Ticket)               { g.Done(t, uint8(weir.NoSample)) }
func (g *fakeGate) SetCost(slot.Ticket, string, int64) {}

func (g *fakeGate) held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight
}

// outcomes returns what was sampled since the last call.
func (g *fakeGate) outcomes() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := fmt.Sprint(g.sampled)
	g.sampled = nil
	return s
}

// server is a database of a fake driver. Its connections show what kind says.
type server struct {
	kind func(*core) driver.Conn

	mu     sync.Mutex
	log    []string
	asked  int
	opened int
	closed int
	// fault decides about each call to the driver. It may return an error, block or panic.
	fault func(ctx context.Context, op string, c *core) error
}

func (s *server) Connect(ctx context.Context) (driver.Conn, error) {
	s.mu.Lock()
	s.asked++
	c := &core{srv: s, id: s.asked}
	s.mu.Unlock()
	if err := c.do(ctx, "connect"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.opened++
	s.mu.Unlock()
	return s.kind(c), nil
}

func (s *server) Driver() driver.Driver { return fakeDriver{} }

type fakeDriver struct{}

func (fakeDriver) Open(string) (driver.Conn, error) { return nil, errors.New("use a connector") }

// on sets the fault of an operation; "" is every one.
func (s *server) on(op string, fault func(ctx context.Context, c *core) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(ctx context.Context, o string, c *core) error {
		if op == "" || o == op {
			return fault(ctx, c)
		}
		return nil
	}
}

// calls returns what the driver was asked since the last call.
func (s *server) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log
	s.log = nil
	return log
}

// core is the base of all kinds of connections: a driver from before contexts.
type core struct {
	srv  *server
	id   int
	dead bool
}

func (c *core) do(ctx context.Context, op string, more ...any) error {
	c.srv.mu.Lock()
	line := fmt.Sprint("#", c.id, " ", op)
	if len(more) > 0 {
		line += fmt.Sprint(" ", more)
	}
	c.srv.log = append(c.srv.log, line)
	fault := c.srv.fault
	c.srv.mu.Unlock()
	if c.dead && op != "close" {
		return driver.ErrBadConn
	}
	if fault == nil {
		return nil
	}
	return fault(ctx, op, c)
}

func (c *core) Prepare(query string) (driver.Stmt, error) {
	if err := c.do(context.Background(), "prepare", query); err != nil {
		return nil, err
	}
	return &oldStmt{c}, nil
}

func (c *core) Begin() (driver.Tx, error) {
	if err := c.do(context.Background(), "begin"); err != nil {
		return nil, err
	}
	return fakeTx{c}, nil
}

func (c *core) Close() error {
	err := c.do(context.Background(), "close")
	c.srv.mu.Lock()
	c.srv.closed++
	c.srv.mu.Unlock()
	return err
}

type fakeTx struct{ c *core }

func (t fakeTx) Commit() error   { return t.c.do(context.Background(), "commit") }
func (t fakeTx) Rollback() error { return t.c.do(context.Background(), "rollback") }

// The optional interfaces, one by one.
type (
	hasPing     struct{ c *core }
	hasExec     struct{ c *core }
	hasOldExec  struct{ c *core }
	hasQuery    struct{ c *core }
	hasOldQuery struct{ c *core }
	hasPrepare  struct{ c *core }
	hasBegin    struct{ c *core }
	hasReset    struct{ c *core }
	hasValid    struct{ c *core }
	hasCheck    struct{ c *core }
	hasSkip     struct{ c *core }
)

func (h hasPing) Ping(ctx context.Context) error { return h.c.do(ctx, "ping") }

func (h hasExec) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), h.c.do(ctx, "exec", query, args)
}

func (h hasOldExec) Exec(query string, args []driver.Value) (driver.Result, error) {
	return driver.RowsAffected(1), h.c.do(context.Background(), "oldexec", query, args)
}

func (h hasQuery) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := h.c.do(ctx, "query", query, args); err != nil {
		return nil, err
	}
	return &fakeRows{c: h.c}, nil
}

func (h hasOldQuery) Query(query string, args []driver.Value) (driver.Rows, error) {
	if err := h.c.do(context.Background(), "oldquery", query, args); err != nil {
		return nil, err
	}
	return &fakeRows{c: h.c}, nil
}

func (h hasPrepare) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := h.c.do(ctx, "preparectx", query); err != nil {
		return nil, err
	}
	return &newStmt{oldStmt(h)}, nil
}

func (h hasBegin) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := h.c.do(ctx, "begintx", opts); err != nil {
		return nil, err
	}
	return fakeTx(h), nil
}

func (h hasReset) ResetSession(ctx context.Context) error { return h.c.do(ctx, "reset") }
func (h hasValid) IsValid() bool                          { return h.c.do(context.Background(), "valid") == nil }

func (h hasCheck) CheckNamedValue(v *driver.NamedValue) error {
	if _, ok := v.Value.(special); ok {
		v.Value = "special"
		return nil
	}
	return driver.ErrSkip
}

// hasSkip makes database/sql prepare each statement, as drivers do for some queries.
func (h hasSkip) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	_ = h.c.do(ctx, "skip", query)
	return nil, driver.ErrSkip
}

func (h hasSkip) QueryContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	_ = h.c.do(ctx, "skip", query)
	return nil, driver.ErrSkip
}

// special is an argument that database/sql does not know.
type special struct{ a, b int }

// oldStmt is a statement of a driver from before contexts.
type oldStmt struct{ c *core }

func (s *oldStmt) Close() error  { return s.c.do(context.Background(), "stmt close") }
func (s *oldStmt) NumInput() int { _ = s.c.do(context.Background(), "inputs"); return -1 }

func (s *oldStmt) Exec(args []driver.Value) (driver.Result, error) {
	return driver.RowsAffected(1), s.c.do(context.Background(), "stmt exec", args)
}

func (s *oldStmt) Query(args []driver.Value) (driver.Rows, error) {
	if err := s.c.do(context.Background(), "stmt query", args); err != nil {
		return nil, err
	}
	return &fakeRows{c: s.c}, nil
}

// convertStmt converts its arguments column by column.
type convertStmt struct{ oldStmt }

func (s *convertStmt) ColumnConverter(int) driver.ValueConverter {
	_ = s.c.do(context.Background(), "converter")
	return converter(*s)
}

type converter struct{ oldStmt }

func (c converter) ConvertValue(v any) (driver.Value, error) {
	_ = c.c.do(context.Background(), "convert")
	if _, ok := v.(special); ok {
		return "converted", nil
	}
	return driver.DefaultParameterConverter.ConvertValue(v)
}

// newStmt is one of a driver that knows contexts and checks its arguments.
type newStmt struct{ oldStmt }

func (s *newStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), s.c.do(ctx, "stmt execctx", args)
}

func (s *newStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.c.do(ctx, "stmt queryctx", args); err != nil {
		return nil, err
	}
	return &fakeRows{c: s.c}, nil
}

func (s *newStmt) CheckNamedValue(v *driver.NamedValue) error {
	return hasCheck{s.c}.CheckNamedValue(v)
}

// fakeRows are two rows with one column.
type fakeRows struct {
	c    *core
	read int
}

func (r *fakeRows) Columns() []string { return []string{"a"} }
func (r *fakeRows) Close() error      { return r.c.do(context.Background(), "rows close") }

func (r *fakeRows) Next(to []driver.Value) error {
	if r.read++; r.read > 2 {
		return io.EOF
	}
	to[0] = int64(r.read)
	return r.c.do(context.Background(), "next")
}

// modern is a connection as drivers have them today.
func modern(c *core) driver.Conn {
	return struct {
		*core
		hasPing
		hasExec
		hasQuery
		hasPrepare
		hasBegin
		hasReset
		hasValid
		hasCheck
	}{c, hasPing{c}, hasExec{c}, hasQuery{c}, hasPrepare{c}, hasBegin{c}, hasReset{c}, hasValid{c}, hasCheck{c}}
}

// ancient is one from before all of it.
func ancient(c *core) driver.Conn { return c }

// skipping is a connection that prepares every statement.
func skipping(c *core) driver.Conn {
	return struct {
		*core
		hasSkip
		hasPrepare
		hasBegin
	}{c, hasSkip{c}, hasPrepare{c}, hasBegin{c}}
}

// inBubble runs a test of a DB on a fake driver. Then it checks that no permit is held, none was given back
// twice, and no connection is open.
func inBubble(t *testing.T, kind func(*core) driver.Conn, slots int, fn func(t *testing.T, db *DB, g *fakeGate, s *server), opts ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g, s := newFakeGate(slots), &server{kind: kind}
		db := New(s, g, opts...)
		fn(t, db, g, s)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if g.inFlight != 0 || g.twice != 0 {
			t.Errorf("%d permits held at the end, %d given back twice", g.inFlight, g.twice)
		}
		if s.opened != s.closed {
			t.Errorf("%d connections opened, %d closed", s.opened, s.closed)
		}
	})
}
