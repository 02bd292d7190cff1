package demo

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// service is about how long the upstream works on a request, on average.
const service = 25 * time.Millisecond

// upstream is a small service of known capacity. It has workers, and each takes an exponentially
// distributed time for a request. Other requests wait, first come first served. Like most services
// it does not notice when a client leaves: it does the work all the same.
//
// No worker really works. A request begins when it has arrived and a worker is free, whichever is
// later. So its end is known when it arrives, and the upstream answers at that time. Its capacity
// is exact even if the machine's timers are not. Its queue may be of any length, and costs only the
// connections of its clients.
type upstream struct {
	mean   time.Duration
	epoch  time.Time
	server *http.Server
	ln     net.Listener

	mu     sync.Mutex
	free   []time.Duration // when each worker is free next
	random *rand.Rand
}

// startUpstream starts an upstream that can do capacity requests a second, on a
// free loopback port.
func startUpstream(capacity float64, seed uint64) (*upstream, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := newUpstream(capacity, seed)
	u.ln = ln
	u.server = &http.Server{Handler: u, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		// Serve ends with ErrServerClosed at Close, and never before: accepting
		// on loopback is retried by net/http.
		_ = u.server.Serve(ln)
	}()
	return u, nil
}

func newUpstream(capacity float64, seed uint64) *upstream {
	workers := workersFor(capacity)
	return &upstream{
		mean:   time.Duration(float64(workers) / capacity * float64(time.Second)),
		epoch:  time.Now(),
		free:   make([]time.Duration, workers),
		random: rand.New(rand.NewPCG(seed, 1)),
	}
}

// workersFor is how many workers it takes for a capacity.
func workersFor(capacity float64) int {
	return max(1, int(capacity*service.Seconds()+0.5))
}

func (u *upstream) url() string { return "http://" + u.ln.Addr().String() }

func (u *upstream) close() error {
	if err := u.server.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP answers when the work would be done.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Since(u.epoch)
	if loadgen.Pause(r.Context(), u.accept(now)-now) != nil {
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("done\n")) // a client that left does not read it
}

// accept plans a request that arrives at now and returns when it will be done.
func (u *upstream) accept(now time.Duration) (done time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := 0
	for i, at := range u.free {
		if at < u.free[next] {
			next = i
		}
	}
	work := time.Duration(u.random.ExpFloat64() * float64(u.mean))
	u.free[next] = max(now, u.free[next]) + work
	return u.free[next]
}
