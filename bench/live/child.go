package live

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// role is what a process started by this one is.
type role struct {
	// Kind is server (a handler behind a guard), backend (a bare one) or proxy.
	Kind     string
	Procs    int // GOMAXPROCS
	Law      Law
	Guard    Guard
	Upstream string `json:",omitempty"`
	// Nested makes each request to a server or a backend call the same service
	// again before it is answered: a server in its own process (told: with the
	// context that carries the permit; untold: without), a backend by way of the
	// gateway at the URL that is given.
	Nested string `json:",omitempty"`
}

// How a server calls itself, see [role].
const (
	nestedTold   = "told"
	nestedUntold = "untold"
)

// command is what a child is told, one JSON line each on its standard input. It
// answers each with [Stats].
type command struct {
	Scale float64 // of its backend's capacity from now on; 0 leaves it
}

// Stats is the state of a child.
type Stats struct {
	At         time.Duration // on the child's clock
	CPU        time.Duration // used so far
	Heap       uint64
	Goroutines int
	account
	LimitLeast, LimitMost int64   // since it was last asked
	LimitMean             float64 // of a look each [lookEvery]
	Nested                Nested
}

// serveRole plays a role: it prints its address, answers commands, and ends with
// its standard input.
func serveRole(spec string, in io.Reader, out io.Writer) error {
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
	h, hooks := handler(c.backend), weir.Hooks{}
	var gate *limit.Limiter
	if r.Nested != "" {
		c.nester = &nester{backend: c.backend, epoch: c.epoch}
		hooks = c.nester.hooks()
		h = c.nester.handler(c.nester.inside(func() weir.Gate { return gate }, r.Nested == nestedTold))
	}
	h, gate, err := r.Guard.guarded(h, hooks)
	if err == nil && gate != nil {
		look := func() (int64, bool) { return gate.Snapshot().Limit, true }
		c.limits = watchLimit(lookEvery, look, nil) // until the process ends
	}
	return h, err
}

// bare is the handler of a backend.
func (c *child) bare(r *role) http.Handler {
	if r.Nested == "" {
		return handler(c.backend)
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

func (c *child) stats() Stats {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s := Stats{
		At: time.Since(c.epoch), CPU: processTime(),
		Heap: mem.HeapAlloc, Goroutines: runtime.NumGoroutine(),
	}
	if c.backend != nil {
		s.account = c.backend.take()
	}
	if c.nester != nil {
		s.Nested = c.nester.take()
	}
	s.LimitLeast, s.LimitMean, s.LimitMost = c.limits.take()
	return s
}
