package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirgrpc"
)

// podVariable holds a pod's settings, in the environment of this same program.
const podVariable = "WEIR_ANALYTICS_POD"

type podSettings struct {
	Addr, Admin string
	Database    string
	Gate        string
}

// The gates that a pod may have.
const (
	gateNone    = "none"
	gateSeed    = "seed"
	gateDefault = "default"
)

// connections is how many a pod has to the database, and so how many queries it runs at once.
const connections = 20

// Who calls, which call it is, and which attempt of Envoy's.
const (
	callerKey  = "x-caller"
	callKey    = "x-call"
	attemptKey = "x-envoy-attempt-count"
)

// pod is a process of the service. It makes a query of a call, and an answer of the rows.
type pod struct {
	pool *pgxpool.Pool
	slow atomic.Bool // its charts read three times the rows

	mu      sync.Mutex
	refused map[int]bool // the calls that this pod has refused, at most mostRefused
	counts  podCounts
}

const mostRefused = 1 << 18

// podCounts are the calls of a pod so far.
type podCounts struct {
	Calls, Refused int64
	Retries        int64 // that Envoy sent after a refusal
	SameAgain      int64 // of them, that this pod itself had refused
}

// servePod runs a pod until ctx ends, or the command that started it does.
func servePod(ctx context.Context, spec string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the command
		cancel()
	}()
	var s podSettings
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	pool, err := newPool(ctx, s.Database, connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	p := &pod{pool: pool, refused: map[int]bool{}}
	guard, err := newGuard(s.Gate)
	if err != nil {
		return err
	}
	opts := []grpc.ServerOption{grpc.ChainUnaryInterceptor(p.account)}
	if guard != nil {
		opts = append(opts, guard.ServerOptions()...)
	}
	server := grpc.NewServer(opts...)
	server.RegisterService(&service, p)
	admin := &http.Server{Addr: s.Admin, Handler: p.admin(), ReadHeaderTimeout: 5 * time.Second}
	l, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- admin.ListenAndServe() }()
	go func() { failed <- server.Serve(l) }()
	defer admin.Close()
	defer server.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// newGuard returns the interceptors of a gate, nil for none. Refusals are RESOURCE_EXHAUSTED, for
// which Envoy tries the other pod.
func newGuard(name string) (*weirgrpc.Guard, error) {
	var gate weir.Gate
	var err error
	switch name {
	case gateNone:
		return nil, nil
	case gateDefault:
		gate, err = limit.New(limit.Config{Name: "database"})
	case gateSeed:
		gate, err = keyed.NewAdaptive(keyed.AdaptiveConfig{Name: "queries", New: keyed.PerKey(seedLimit), MaxWaiting: -1})
	default:
		err = fmt.Errorf("there is no gate %q", name)
	}
	if err != nil {
		return nil, err
	}
	return weirgrpc.New(gate, weirgrpc.WithOverloadCode(codes.ResourceExhausted), weirgrpc.WithWork(describe)), nil
}

// describe says whose work a call is. Here it believes the header; with strangers, a policy decides
// whom to believe.
func describe(ctx context.Context, _ string, w *weir.Work) {
	switch header(ctx, callerKey) {
	case "api":
		w.Priority = weir.High
	case "reports":
		w.Priority, w.Tenant = weir.Background, heavy
	}
}

// heavy is the key of the queries that have a limit of their own.
const heavy = "heavy"

// seedLimit is the limit that Klaviyo describes, for each key of queries. Nothing waits. Every three
// seconds the limit goes down by a tenth if the p95 of the last few hundred calls is too high.
// Otherwise it goes up by one. A few hundred reports would take minutes, so their limit is a number.
func seedLimit(key string) (limit.Config, error) {
	none := limit.Queue{Len: -1}
	if key == heavy {
		return limit.Config{Name: key, Limit: 2, Queue: none}, nil
	}
	aimd, err := control.NewAIMD(control.AIMDConfig{Initial: connections, Min: 4, Max: 200, Window: 3 * time.Second, MinSamples: 100, Percentile: 0.95, Threshold: 500 * time.Millisecond})
	return limit.Config{Name: "light", Controller: aimd, Queue: none}, err
}

// The methods of the service. Both do the same. With one of its own, heavy work can have a route of its own.
const (
	queryMethod  = "/analytics.Metrics/Query"
	reportMethod = "/analytics.Metrics/Report"
)

// service is what a generator would make of a proto file with strings in and numbers out.
var service = grpc.ServiceDesc{ServiceName: "analytics.Metrics", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
	describeMethod("Query", queryMethod), describeMethod("Report", reportMethod),
}}

func describeMethod(name, full string) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(ctx context.Context, req any) (any, error) {
			return srv.(*pod).query(ctx, req.(*wrapperspb.StringValue))
		})
	}}
}

func (p *pod) query(ctx context.Context, in *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
	var q query
	if err := json.Unmarshal([]byte(in.Value), &q); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if p.slow.Load() && q.By == "day" {
		q.Customers *= 3
	}
	n, err := answer(ctx, p.pool, q)
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	return wrapperspb.Int64(n), nil
}

// account counts calls and refusals, before any gate is asked.
func (p *pod) account(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call, _ := strconv.Atoi(header(ctx, callKey))
	attempt, _ := strconv.Atoi(header(ctx, attemptKey))
	p.mu.Lock()
	p.counts.Calls++
	if attempt > 1 {
		p.counts.Retries++
		if p.refused[call] {
			p.counts.SameAgain++
		}
	}
	p.mu.Unlock()
	resp, err := handler(ctx, req)
	if status.Code(err) == codes.ResourceExhausted {
		p.mu.Lock()
		p.counts.Refused++
		if len(p.refused) < mostRefused {
			p.refused[call] = true
		}
		p.mu.Unlock()
	}
	return resp, err
}

// admin is for the command that started the pod.
func (p *pod) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = json.NewEncoder(w).Encode(p.counts) // whoever asked has left
	})
	mux.HandleFunc("POST /slow", func(_ http.ResponseWriter, r *http.Request) { p.slow.Store(r.FormValue("on") == "true") })
	return mux
}

// header is a key of a call's metadata, empty unless it is there once.
func header(ctx context.Context, key string) string {
	if v := metadata.ValueFromIncomingContext(ctx, key); len(v) == 1 {
		return v[0]
	}
	return ""
}
