package cost

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/throttle"
	"github.com/weir-go/weir/weirgrpc"
	"github.com/weir-go/weir/weirsql"
)

// call is a call of gRPC as a server sees it, with a handler that does nothing.
func call() group {
	const goalNS = 400
	return group{
		Name:  "call of gRPC",
		Floor: Subject{Name: "interceptor that does nothing", New: ready(bareCall)},
		Peers: []Subject{
			{Name: "weirgrpc, fixed limit", Goal: goal{Extra: goalNS}, New: guardedCall(limit.Config{Name: "bench", Limit: size})},
			{Name: "weirgrpc, fixed limit, a call with a deadline", Goal: goal{Extra: goalNS}, New: boundedCall},
			{Name: "weirgrpc, default limit", New: guardedCall(limit.Config{Name: "bench"})},
			{Name: "weirgrpc, a policy", Goal: goal{Extra: goalNS}, New: policedCall()},
			{Name: "weirgrpc, fixed limit, others go first", Goal: goal{Extra: goalNS}, New: yieldingCall},
			{Name: "weirgrpc, a policy that reads three keys", Goal: goal{Extra: goalNS}, New: policedCall("x-tenant", "acme", "x-user", "alice", "x-priority", "high")},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeCall), Parks: true},
		},
	}
}

// tapped is a call that is decided before it is read. The transport makes a context for each call, also without a tap.
func tapped() group {
	const goalNS = 1000
	return group{
		Name:  "call of gRPC with a tap",
		Floor: Subject{Name: "context and handler", New: ready(untapped)},
		Peers: []Subject{
			{Name: "weirgrpc, tap and interceptor", Goal: goal{Extra: goalNS}, New: tappedCall},
			{Name: "weirgrpc, tap and interceptor with a policy", Goal: goal{Extra: goalNS}, New: policedTap},
			{Name: "failsafe-go adaptive limiter, tap", New: ready(failsafeTapped), Parks: true},
		},
	}
}

// statement is one of a database that does nothing, in a context with a deadline, as those of servers have.
func statement() group {
	const goalNS = 600
	return group{
		Name:  "statement of a database",
		Floor: Subject{Name: "database/sql", New: statements(func() database { return sql.OpenDB(idle{}) }, exec)},
		Peers: []Subject{
			{Name: "weirsql, fixed limit", Goal: goal{Extra: goalNS}, New: statements(guarded(limit.Config{Name: "bench", Limit: size}), exec)},
			{Name: "weirsql, default limit", Goal: goal{Extra: goalNS}, New: statements(guarded(limit.Config{Name: "bench"}), exec)},
		},
	}
}

// query is a statement that returns rows, of which there are none.
func query() group {
	const goalNS = 600
	return group{
		Name:  "query of a database",
		Floor: Subject{Name: "database/sql", New: statements(func() database { return sql.OpenDB(idle{}) }, rows)},
		Peers: []Subject{
			{Name: "weirsql, fixed limit", Goal: goal{Extra: goalNS}, New: statements(guarded(limit.Config{Name: "bench", Limit: size}), rows)},
			{Name: "weirsql, default limit", Goal: goal{Extra: goalNS}, New: statements(guarded(limit.Config{Name: "bench"}), rows)},
		},
	}
}

// request is a call to another service that succeeds.
func request() group {
	const goalNS = 300
	return group{
		Name:  "call to another service",
		Floor: Subject{Name: "the call alone", New: ready(bareRequest)},
		Peers: []Subject{
			{Name: "throttle, retry and budget, as transports ask", Goal: goal{Extra: goalNS}, New: ready(throttledRequest)},
			{Name: "the same by Caller.Do", Goal: goal{Extra: goalNS}, New: ready(throttledDo)},
		},
	}
}

const method = "/grpc.testing.TestService/UnaryCall"

// unary loops over calls through an interceptor, with metadata besides those of each call.
func unary(interceptor grpc.UnaryServerInterceptor, pairs ...string) Loop {
	return unaryIn(context.Background(), interceptor, pairs...)
}

func unaryIn(ctx context.Context, interceptor grpc.UnaryServerInterceptor, pairs ...string) Loop {
	info, req := &grpc.UnaryServerInfo{FullMethod: method}, any(new(testgrpc.SimpleRequest))
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(append([]string{":authority", "bench", "content-type", "application/grpc"}, pairs...)...))
	return func(n int) error {
		for range n {
			if _, err := interceptor(ctx, req, info, handle); err != nil {
				return err
			}
		}
		return nil
	}
}

func handle(_ context.Context, req any) (any, error) { return req, nil }

func bareCall() Loop { return unary(pass) }

func pass(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(ctx, req)
}

func guardedCall(cfg limit.Config) func() (Loop, func()) {
	return func() (Loop, func()) {
		l := weir.Must(limit.New(cfg))
		return unary(weirgrpc.New(l, weirgrpc.WithYield(false)).Unary()), l.Close
	}
}

// yieldingCall has the default of WithYield: the processor goes round once before the handler. Here nobody else wants it.
func yieldingCall() (Loop, func()) {
	l := weir.Must(limit.New(limit.Config{Name: "bench", Limit: size}))
	return unary(weirgrpc.New(l).Unary()), l.Close
}

// boundedCall is a call whose client does not wait for ever.
func boundedCall() (Loop, func()) {
	l := weir.Must(limit.New(limit.Config{Name: "bench", Limit: size}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	return unaryIn(ctx, weirgrpc.New(l, weirgrpc.WithYield(false)).Unary()), func() { cancel(); l.Close() }
}

// policedCall is a call whose route, tenant, user and priority a policy finds.
func policedCall(pairs ...string) func() (Loop, func()) {
	return func() (Loop, func()) {
		guard, stop := policed()
		return unary(guard.Unary(), pairs...), stop
	}
}

func policed() (*weirgrpc.Guard, func()) {
	p := weir.Must(policy.Compile(policy.Spec{
		Identity: policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority"},
		Gates:    map[string]policy.GateSpec{"bench": {Limit: &policy.LimitSpec{Limit: size}}},
		Routes:   []policy.RouteSpec{{Match: []string{"POST /grpc.testing.TestService/"}, Gates: []string{"bench"}}},
	}, policy.Options{}))
	return weirgrpc.New(nil, weirgrpc.WithYield(false), weirgrpc.WithPolicy(func() *policy.Policy { return p })), p.Close
}

// transport loops over calls with a context of their own, as a transport makes it, through a tap and an interceptor.
func transport(in tap.ServerInHandle, intercept grpc.UnaryServerInterceptor) Loop {
	info, req := &grpc.UnaryServerInfo{FullMethod: method}, any(new(testgrpc.SimpleRequest))
	header := &tap.Info{FullMethodName: method, Header: metadata.MD{}}
	return func(n int) error {
		for range n {
			base, cancel := context.WithTimeout(context.Background(), time.Second)
			base.Done() // which the transport asks for
			ctx, err := in(base, header)
			if err == nil {
				_, err = intercept(ctx, req, info, handle)
			}
			cancel()
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func untapped() Loop {
	return transport(func(ctx context.Context, _ *tap.Info) (context.Context, error) { return ctx, nil }, pass)
}

func tappedCall() (Loop, func()) {
	l := weir.Must(limit.New(limit.Config{Name: "bench", Limit: size}))
	guard := weirgrpc.New(l, weirgrpc.WithYield(false))
	return transport(guard.Tap(nil), guard.Unary()), l.Close
}

func policedTap() (Loop, func()) {
	guard, stop := policed()
	return transport(guard.Tap(nil), guard.Unary()), stop
}

func failsafeLimiter() failsafe.Policy[any] {
	return adaptivelimiter.NewBuilder[any]().WithLimits(size, 200, size).Build()
}

// failsafeCall has the limiter of failsafeTry.
func failsafeCall() Loop { return unary(failsafegrpc.NewUnaryServerInterceptor(failsafeLimiter())) }

// failsafeTapped only looks whether there is room: its tap holds nothing while the call runs.
func failsafeTapped() Loop { return transport(failsafegrpc.NewServerInHandle(failsafeLimiter()), pass) }

// database is what [sql.DB] and [weirsql.DB] have in common here.
type database interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	Close() error
}

func guarded(cfg limit.Config) func() database {
	return func() database { return weir.Must(weirsql.Open(idle{}, 2*size, cfg)) }
}

func statements(open func() database, do func(context.Context, database) error) func() (Loop, func()) {
	return func() (Loop, func()) {
		db := open()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		return func(n int) error {
				for range n {
					if err := do(ctx, db); err != nil {
						return err
					}
				}
				return nil
			}, func() {
				cancel()
				_ = db.Close()
			}
	}
}

const text = "UPDATE orders SET paid = true WHERE id = 7"

func exec(ctx context.Context, db database) error {
	_, err := db.ExecContext(ctx, text)
	return err
}

func rows(ctx context.Context, db database) error {
	r, err := db.QueryContext(ctx, text)
	if err != nil {
		return err
	}
	return r.Close()
}

// idle is a driver that does nothing.
type idle struct{}

func (idle) Connect(context.Context) (driver.Conn, error) { return idle{}, nil }
func (idle) Driver() driver.Driver                        { return idle{} }
func (idle) Open(string) (driver.Conn, error)             { return idle{}, nil }
func (idle) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (idle) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (idle) Close() error                                 { return nil }
func (idle) ResetSession(context.Context) error           { return nil }
func (idle) IsValid() bool                                { return true }
func (idle) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.ResultNoRows, nil
}
func (idle) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noRows{}, nil
}

type noRows struct{}

func (noRows) Columns() []string         { return nil }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

func answered(context.Context) error { return nil }

func bareRequest() Loop {
	ctx := context.Background()
	return func(n int) error {
		for range n {
			if err := answered(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

func throttledRequest() Loop {
	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Name: "bench"}))
	ctx := context.Background()
	return func(n int) error {
		for range n {
			call := caller.Start("target", time.Time{}, true)
			p, err := call.Gate().Admit(ctx, weir.Work{})
			if err != nil {
				return err
			}
			call.Sent()
			err = answered(ctx)
			p.Done(weir.Classify(err))
			call.End()
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func throttledDo() Loop {
	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Name: "bench"}))
	ctx := context.Background()
	return func(n int) error {
		for range n {
			if err := caller.Do(ctx, "target", weir.Work{}, true, answered); err != nil {
				return err
			}
		}
		return nil
	}
}
