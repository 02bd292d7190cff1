package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
)

// role is what a process started by this one is.
type role struct {
	// Kind is server (a handler behind a guard), backend (a bare one) or proxy.
	Kind     string
	Procs    int // GOMAXPROCS
	Law      Law
	Guard    Guard
	Upstream string `json:",omitempty"`
	// Nested makes each request to a server or a backend call the same service again
	// before it is answered. A server calls in its own process: told, with the context
	// that carries the permit, or untold, without. A backend calls by way of the gateway
	// at the URL that is given.
	Nested string `json:",omitempty"`
}

// How a server calls itself, see [role].
const (
	nestedTold   = "told"
	nestedUntold = "untold"
)

// command is an order to a child, one JSON line each on its standard input. It
// answers each with [stats].
type command struct {
	Scale float64 // of its backend's capacity from now on; 0 leaves it
}

// stats is the state of a child.
type stats struct {
	At         time.Duration // on the child's clock
	CPU        time.Duration // used so far
	Heap       uint64
	Goroutines int
	account
	LimitLeast, LimitMost int64   // since it was last asked
	LimitMean             float64 // read each [readEvery]
	Nested                Nested
}

// playRole plays a role: it prints its address, answers commands, and ends with
// its standard input.
func playRole(spec string, in io.Reader, out io.Writer) error {
	var r role
	if err := json.Unmarshal([]byte(spec), &r); err != nil {
		return fmt.Errorf("role: %w", err)
	}
	runtime.GOMAXPROCS(max(1, r.Procs))
	c, err := r.start()
	if err != nil {
		return err
	}
	defer c.server.Close()
	if _, err := fmt.Fprintln(out, c.addr); err != nil {
		return err
	}
	return c.obey(in, out)
}

// child is a process that plays a role.
type child struct {
	epoch   time.Time
	server  *http.Server
	addr    net.Addr
	backend backend // nil for proxies
	limits  *limits
	nester  *nester // nil where nothing is nested
}

func (r *role) start() (*child, error) {
	c := &child{epoch: time.Now(), limits: new(limits)}
	var h http.Handler
	var err error
	switch r.Kind {
	case "server":
		c.backend = newBackend(r.Law)
		h, err = c.guarded(r)
	case "backend":
		c.backend = newBackend(r.Law)
		h = c.bare(r)
	case "proxy":
		h, err = newProxy(r.Guard.Name, r.Upstream)
	default:
		err = fmt.Errorf("role %q: unknown", r.Kind)
	}
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.addr = ln.Addr()
	c.server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: quiet()}
	go func() { _ = c.server.Serve(ln) }() // ends with the process
	return c, nil
}

// guarded is the handler of a server.
func (c *child) guarded(r *role) (http.Handler, error) {
	h, hooks := handler(c.backend, nil), weir.Hooks{}
	var gate *limit.Limiter
	if r.Nested != "" {
		c.nester = &nester{backend: c.backend, epoch: c.epoch}
		hooks = c.nester.hooks()
		h = c.nester.handler(c.nester.inside(func() weir.Gate { return gate }, r.Nested == nestedTold))
	}
	h, gate, err := r.Guard.guarded(h, hooks)
	if err == nil && gate != nil {
		read := func() (int64, bool) { return gate.Snapshot().Limit, true }
		c.limits = watchLimit(readEvery, read, nil) // until the process ends
	}
	return h, err
}

// bare is the handler of a backend.
func (c *child) bare(r *role) http.Handler {
	if r.Nested == "" {
		return handler(c.backend, nil)
	}
	c.nester = &nester{backend: c.backend, epoch: c.epoch}
	mux := http.NewServeMux()
	mux.Handle("/", c.nester.handler(c.nester.outside(r.Nested)))
	mux.Handle(innerPath, c.nester.arrived())
	return mux
}

// obey answers each command until the input ends.
func (c *child) obey(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var cmd command
		if err := json.Unmarshal(lines.Bytes(), &cmd); err != nil {
			return fmt.Errorf("command %q: %w", lines.Text(), err)
		}
		if cmd.Scale > 0 && c.backend != nil {
			c.backend.setScale(cmd.Scale)
		}
		if err := answers.Encode(c.stats()); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (c *child) stats() stats {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s := stats{
		At: time.Since(c.epoch), CPU: rig.ProcessTime(),
		Heap: mem.HeapAlloc, Goroutines: runtime.NumGoroutine(),
	}
	if c.backend != nil {
		s.account = c.backend.read()
	}
	if c.nester != nil {
		s.Nested = c.nester.read()
	}
	s.LimitLeast, s.LimitMean, s.LimitMost = c.limits.read()
	return s
}

// Guard is what stands before the handler of a server of part one.
type Guard struct {
	Name string
	// Kind is none, fixed, default, or refuse: a gate without a free slot.
	Kind string
	// Limit and MaxWait are of fixed.
	Limit   int64         `json:",omitempty"`
	MaxWait time.Duration `json:",omitempty"`
	// NoRoom leaves fixed without a wait room: what finds no slot is refused.
	NoRoom bool `json:",omitempty"`
	// NoYield turns off what lets arrivals reach the gate before a handler runs.
	NoYield bool `json:",omitempty"`
	// Signals caps the limit by the scheduler's latency.
	Signals bool `json:",omitempty"`
}

// guarded puts the guard before next, and returns the gate, nil for none.
func (g *Guard) guarded(next http.Handler, hooks weir.Hooks) (http.Handler, *limit.Limiter, error) {
	cfg := limit.Config{Name: g.Name, Hooks: hooks}
	switch g.Kind {
	case "none":
		return next, nil, nil
	case "fixed":
		cfg.Limit = g.Limit
		cfg.Queue = limit.Queue{MaxWait: g.MaxWait, Order: limit.Adaptive}
		if g.NoRoom {
			cfg.Queue.Len = -1
		}
	case "default":
		cfg.Controller = control.Default()
	case "refuse":
		cfg.Limit, cfg.Queue.Len = 1, -1
	default:
		return nil, nil, fmt.Errorf("guard %q: unknown kind", g.Kind)
	}
	if g.Signals {
		latency := weir.Must(signal.NewSchedLatency(signal.SchedLatencyConfig{}))
		cfg.Signals = weir.Must(signal.NewPoller(signal.Config{Watches: []signal.Watch{{Signal: latency}}}))
		cfg.Controller = weir.Must(control.NewCapped(cfg.Controller, control.CapConfig{}))
	}
	gate, err := limit.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	if g.Kind == "refuse" {
		if _, err := gate.Admit(context.Background(), weir.Work{}); err != nil { // held for good
			return nil, nil, err
		}
	}
	return weirhttp.Middleware(gate, weirhttp.WithYield(!g.NoYield))(next), gate, nil
}

// limits watches the limit of a gate.
type limits struct {
	mu    sync.Mutex
	least int64
	most  int64
	sum   float64
	n     int64
}

// readEvery is how often the limit is read.
const readEvery = 50 * time.Millisecond

// watchLimit reads a limit every so often until stop is closed. read reports false
// where there is none.
func watchLimit(every time.Duration, read func() (int64, bool), stop <-chan struct{}) *limits {
	l := new(limits)
	go func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if now, ok := read(); ok {
					l.record(now)
				}
			case <-stop:
				return
			}
		}
	}()
	return l
}

func (l *limits) record(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		l.least, l.most = now, now
	}
	l.least, l.most = min(l.least, now), max(l.most, now)
	l.sum += float64(now)
	l.n++
}

// read returns the least, mean and largest limit since it was last called.
func (l *limits) read() (least int64, mean float64, most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		return 0, 0, 0
	}
	least, mean, most = l.least, l.sum/float64(l.n), l.most
	l.sum, l.n = 0, 0
	return least, mean, most
}

// newProxy returns the rival called name before upstream: ReverseProxy alone, or
// inside failsafe-go's handler.
func newProxy(name, upstream string) (http.Handler, error) {
	proxy, err := rig.ReverseProxy(upstream)
	if err != nil {
		return nil, err
	}
	switch name {
	case guardNone:
		return proxy, nil
	case guardFailsafe:
		return failsafehttp.NewHandler(proxy, adaptivelimiter.NewWithDefaults[*http.Response]()), nil
	case guardFailsafeQueue:
		// The factors are those that its prioritized limiter uses where none are given.
		return failsafehttp.NewHandler(proxy, adaptivelimiter.NewBuilder[*http.Response]().WithQueueing(2, 3).Build()), nil
	}
	return nil, fmt.Errorf("proxy %q: unknown", name)
}

// Nested is what became of the calls that handlers made through the gate which had
// admitted them.
type Nested struct {
	Calls int64 `json:"calls"`
	// Behind counts those that waited behind their own callers for a slot, or were
	// refused one. Only a gate in the handler's process tells.
	Behind int64 `json:"behind"`
	// Stuck counts those that came to nothing: refused, or still not let in when the
	// time of whoever wanted them was over.
	Stuck int64 `json:"stuck"`
	// P99 is the time until they could begin, in ms.
	P99 float64 `json:"p99_ms"`
}

// mostTimes bounds the times of which [Nested].P99 is made.
const mostTimes = 1 << 20

// nester makes nested calls and keeps the account of them.
type nester struct {
	backend backend
	epoch   time.Time

	mu sync.Mutex
	Nested
	times []time.Duration // until they began
}

// nestedOp is the operation of nested calls, where a gate tells of them.
const nestedOp = "nested"

// hooks are for the gate that is called.
func (n *nester) hooks() weir.Hooks {
	note := func(op string, behind bool) {
		if op == nestedOp && behind {
			n.mu.Lock()
			n.Behind++
			n.mu.Unlock()
		}
	}
	return weir.Hooks{
		Admitted: func(_ string, w weir.Work, waited time.Duration) { note(w.Op, waited > 0) },
		Rejected: func(w weir.Work, _ *weir.Rejection) { note(w.Op, true) },
	}
}

func (n *nester) read() Nested {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.P99 = quantile(n.times, 0.99)
	return n.Nested
}

// called counts a call that is over.
func (n *nester) called(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Calls++
	if err != nil {
		n.Stuck++
	}
}

// began notes how long a call took to begin.
func (n *nester) began(after time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.times) < mostTimes {
		n.times = append(n.times, after)
	}
}

// handler does a request's work, has call do as much again, and answers.
func (n *nester) handler(call func(*http.Request, time.Duration) error) http.Handler {
	return handler(n.backend, func(r *http.Request, work time.Duration) error {
		err := call(r, work)
		n.called(err)
		return err
	})
}

// inside makes the calls through the gate that stands before the handler itself.
// With told their context comes from the request's, which carries its permit;
// otherwise it ends with it, and the gate knows no more of it. They wait as long as a
// client does.
func (n *nester) inside(gate func() weir.Gate, told bool) func(*http.Request, time.Duration) error {
	return func(r *http.Request, work time.Duration) error {
		from := context.Background()
		if told {
			from = r.Context()
		}
		ctx, cancel := context.WithTimeout(from, orderPatience)
		defer cancel()
		defer context.AfterFunc(r.Context(), cancel)()
		begun := time.Now()
		return weir.Do(ctx, gate(), weir.Work{Op: nestedOp}, func(context.Context) error {
			n.began(time.Since(begun))
			if !n.backend.do(work) {
				return errFull
			}
			return nil
		})
	}
}

var errFull = errors.New("too many inside")

// A server calls itself at innerPath, by way of the gateway before it. sentHeader
// says when, in nanoseconds of the server's own clock.
const (
	innerPath  = "/inner"
	sentHeader = "X-Sent"
)

// outside makes the calls by way of the gateway at base. They say that they are more
// important than what comes from outside, and wait as long as a client does.
func (n *nester) outside(base string) func(*http.Request, time.Duration) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: mostOpen}, Timeout: orderPatience}
	return func(_ *http.Request, work time.Duration) error {
		req, err := http.NewRequest(http.MethodGet, base+innerPath, nil)
		if err != nil {
			return err
		}
		req.Header.Set("X-Priority", weir.High.String())
		req.Header.Set(workHeader, strconv.FormatInt(work.Microseconds(), 10))
		req.Header.Set(sentHeader, strconv.FormatInt(int64(time.Since(n.epoch)), 10))
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New("the nested call was answered " + resp.Status)
		}
		return nil
	}
}

// arrived serves what outside asks for.
func (n *nester) arrived() http.Handler {
	next := handler(n.backend, nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sent, err := strconv.ParseInt(r.Header.Get(sentHeader), 10, 64); err == nil {
			n.began(time.Since(n.epoch) - time.Duration(sent))
		}
		next.ServeHTTP(w, r)
	})
}
