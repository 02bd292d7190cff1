package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirhttp"
	"github.com/weir-go/weir/weirpgx"
	"github.com/weir-go/weir/weirsql"
)

// The controllers of the execution tickets.
const (
	fixed     = "fixed"   // 128 for reads and 128 for writes, as MongoDB's fixed algorithm
	probing   = "probing" // control.ProbePair
	byDefault = "default" // one limiter for both, by weir's default
)

var controllers = []string{fixed, probing, byDefault}

const (
	most           = 128       // execution tickets of a pool
	defaultIngress = 1_000_000 // ingress tickets
	exemptCap      = 8         // system commands at a time, at each stage
)

// node is the database server.
type node struct {
	controller string
	addr       string
	ingress    *limit.Limiter
	execution  weir.Gate
	sizes      func() (read, write int64) // the numbers of execution tickets; write is 0 for a gate for both
	db         *weirpgx.Pool              // behind execution
	close      func()
	server     *http.Server
}

// startNode serves at an address, over a PostgreSQL.
func startNode(ctx context.Context, database, addr, controller string, ingress int64) (_ *node, err error) {
	n := &node{controller: controller}
	defer func() {
		if err != nil {
			n.stop()
		}
	}()
	if n.ingress, err = limit.New(limit.Config{Name: "ingress", Limit: ingress, Exempt: exemptCap}); err != nil {
		return nil, err
	}
	if err := n.openExecution(); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2*most + 2*exemptCap // so no command waits for a connection
	weirpgx.CancelRequests(cfg.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	n.db = weirpgx.New(pool, n.execution)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	n.addr = l.Addr().String()
	n.server = &http.Server{Handler: n, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = n.server.Serve(l) }() // it returns when the server is closed
	return n, nil
}

// openExecution makes execution control, as the flag -controller says.
func (n *node) openExecution() error {
	if n.controller == byDefault {
		belief, err := control.NewBelief(control.BeliefConfig{Max: 2 * most})
		if err != nil {
			return err
		}
		l, err := limit.New(limit.Config{Name: "execution", Controller: belief, Exempt: exemptCap})
		if err != nil {
			return err
		}
		n.execution, n.close = l, l.Close
		n.sizes = func() (int64, int64) { return l.Snapshot().Limit, 0 }
		return nil
	}
	like := limit.Config{Exempt: exemptCap}
	pools := keyed.ReadWrite(control.ProbeConfig{Max: most}, like)
	if n.controller == fixed {
		like.Limit = most
		pools = func(string) (map[string]limit.Config, error) {
			return map[string]limit.Config{keyed.Reads: like, keyed.Writes: like}, nil
		}
	}
	gate, err := keyed.NewAdaptive(keyed.AdaptiveConfig{Name: "execution", New: pools, Key: func(weir.Work) string { return "" }, Part: func(w weir.Work) string {
		if w.Write {
			return keyed.Writes
		}
		return keyed.Reads
	}})
	if err != nil {
		return err
	}
	n.execution, n.close = gate, gate.Close
	n.sizes = func() (int64, int64) {
		read, _ := gate.Limiter("", keyed.Reads)
		write, _ := gate.Limiter("", keyed.Writes)
		return read.Limit, write.Limit
	}
	return nil
}

// stop closes what startNode has made so far.
func (n *node) stop() {
	if n.server != nil {
		_ = n.server.Close() // the connections of commands in progress break
	}
	if n.ingress != nil {
		n.ingress.Close()
	}
	if n.close != nil {
		n.close()
	}
	if n.db != nil {
		n.db.Close()
	}
}

// querier runs statements. It is the pool, or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// command is a command that a client can send.
type command struct {
	// admitted says that the command is subject to admission. Other commands are system commands, which wait
	// for no other command.
	admitted bool
	write    bool
	run      func(ctx context.Context, n *node, q querier, args url.Values) (any, error)
}

func commandOf(name string) (command, bool) {
	switch name {
	case "find":
		return command{admitted: true, run: find}, true
	case "aggregate":
		return command{admitted: true, run: aggregate}, true
	case "update":
		return command{admitted: true, write: true, run: update}, true
	case "transfer":
		return command{admitted: true, write: true, run: transfer}, true
	case "ping":
		return command{run: func(context.Context, *node, querier, url.Values) (any, error) { return "ok", nil }}, true
	case "serverStatus":
		return command{run: serverStatus}, true
	case "setParameter":
		return command{run: setParameter}, true
	}
	return command{}, false
}

// do runs a command. A command that runs another one calls do again. Then the context carries the tickets of
// the outer command, and neither gate grants a second one.
func (n *node) do(ctx context.Context, q querier, name string, args url.Values) (any, error) {
	c, ok := commandOf(name)
	if !ok {
		return nil, mistake{http.StatusNotFound, fmt.Sprintf("there is no command %q", name)}
	}
	if !c.admitted {
		ctx = weir.WithExempt(ctx) // its statements are exempt, too
	}
	w := weir.Work{Op: name, Write: c.write}
	w.Deadline, _ = ctx.Deadline() // so that a command that would be late is refused at once, with numbers
	ingress, err := n.ingress.Admit(ctx, w)
	if err != nil {
		return nil, err
	}
	defer ingress.Done(weir.NoSample)
	ctx = weir.WithPermit(ctx, n.ingress, ingress)
	execution, err := n.execution.Admit(ctx, w)
	if err != nil {
		return nil, err
	}
	defer execution.Done(weir.NoSample)
	ctx = weir.WithPermit(ctx, n.execution, execution)
	answer, err := c.run(ctx, n, q, args)
	if !errors.As(err, new(mistake)) { // a mistake says nothing about the database
		execution.Done(weirsql.Classify(ctx, err))
	}
	return answer, err
}

// ServeHTTP runs a command. Its name is the path, and its arguments are a form. maxTimeMS bounds its time,
// waiting included.
func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.Form.Has("maxTimeMS") {
		ms, err := number(r.Form, "maxTimeMS")
		if err != nil || ms <= 0 || ms > 1<<31 {
			http.Error(w, "maxTimeMS is a number of milliseconds above 0", http.StatusBadRequest)
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
	}
	answer, err := n.do(ctx, n.db, strings.TrimPrefix(r.URL.Path, "/"), r.Form)
	var wrong mistake
	switch rejected := weir.AsRejection(err); {
	case rejected != nil:
		weirhttp.WriteRejection(w, r, rejected)
	case errors.As(err, &wrong):
		http.Error(w, wrong.text, wrong.status)
	case ctx.Err() != nil:
		http.Error(w, "the time of maxTimeMS has passed", http.StatusGatewayTimeout)
	case errors.Is(err, pgx.ErrNoRows):
		http.Error(w, "there is no such account", http.StatusNotFound)
	case err != nil && weirsql.Classify(ctx, err) == weir.Overload: // for instance, a late cancel has stopped a statement
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the client may have left
	}
}

// mistake is an error of the caller.
type mistake struct {
	status int
	text   string
}

func (m mistake) Error() string { return m.text }

func number(args url.Values, name string) (int64, error) {
	n, err := strconv.ParseInt(args.Get(name), 10, 64)
	if err != nil {
		return 0, mistake{http.StatusBadRequest, fmt.Sprintf("%s is a number, not %q", name, args.Get(name))}
	}
	return n, nil
}

// accountOf is the number of an account: a column of 32 bits, so a larger one could not even be asked for.
func accountOf(args url.Values, name string) (int64, error) {
	id, err := number(args, name)
	if err == nil && id != int64(int32(id)) {
		err = mistake{http.StatusBadRequest, fmt.Sprintf("%s is the number of an account, at most %d, not %d", name, math.MaxInt32, id)}
	}
	return id, err
}

// find reads one account.
func find(ctx context.Context, _ *node, q querier, args url.Values) (any, error) {
	id, err := accountOf(args, "id")
	if err != nil {
		return nil, err
	}
	var balance int64
	return &balance, q.QueryRow(ctx, `select balance from accounts where id = $1`, id).Scan(&balance)
}

// aggregate reads twenty thousand accounts.
func aggregate(ctx context.Context, _ *node, q querier, args url.Values) (any, error) {
	id, err := accountOf(args, "id")
	if err != nil {
		return nil, err
	}
	var sum int64
	return &sum, q.QueryRow(ctx, `select coalesce(sum(balance), 0) from accounts where id between $1 and $2`, id, min(id+19_999, math.MaxInt32)).Scan(&sum)
}

// update changes one account.
func update(ctx context.Context, _ *node, q querier, args url.Values) (any, error) {
	id, err := accountOf(args, "id")
	if err != nil {
		return nil, err
	}
	tag, err := q.Exec(ctx, `update accounts set balance = balance + 1 where id = $1`, id)
	return tag.RowsAffected(), err
}

// transfer changes two accounts in a transaction, and reads the new balance by the command find.
func transfer(ctx context.Context, n *node, _ querier, args url.Values) (left any, err error) {
	from, err1 := accountOf(args, "id")
	to, err2 := accountOf(args, "to")
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if from == to {
		return nil, mistake{http.StatusBadRequest, "id and to are the same account"}
	}
	first, second := min(from, to), max(from, to) // always in this order, so that no two transfers wait for each other
	err = n.db.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		for _, id := range []int64{first, second} {
			by := 1
			if id == from {
				by = -1
			}
			tag, err := tx.Exec(ctx, `update accounts set balance = balance + $2 where id = $1`, id, by)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return pgx.ErrNoRows
			}
		}
		left, err = n.do(ctx, tx, "find", url.Values{"id": {strconv.FormatInt(from, 10)}})
		return err
	})
	return left, err
}

// status is the answer of serverStatus.
type status struct {
	Ingress   weir.Snapshot `json:"ingress"`
	Execution weir.Snapshot `json:"execution"`
	Read      int64         `json:"read_tickets"`
	Write     int64         `json:"write_tickets"` // 0 if the read tickets are for both
	Active    int64         `json:"active_backends"`
}

func serverStatus(ctx context.Context, n *node, q querier, _ url.Values) (any, error) {
	s := status{Ingress: n.ingress.Snapshot(), Execution: n.execution.(weir.Snapshotter).Snapshot()}
	s.Read, s.Write = n.sizes()
	err := q.QueryRow(ctx, `select count(*) from pg_stat_activity where state = 'active' and backend_type = 'client backend' and pid <> pg_backend_pid()`).Scan(&s.Active)
	return s, err
}

// setParameter resizes the ingress pool while it runs. A pool that shrinks revokes nothing.
func setParameter(_ context.Context, n *node, _ querier, args url.Values) (any, error) {
	tickets, err := number(args, "ingressTickets")
	if err != nil {
		return nil, err
	}
	was := n.ingress.Snapshot().Limit
	if err := n.ingress.SetLimit(tickets); err != nil {
		return nil, mistake{http.StatusBadRequest, err.Error()}
	}
	return map[string]int64{"was": was, "ingressTickets": tickets}, nil
}
