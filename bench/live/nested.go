package live

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

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

func (n *nester) take() Nested {
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work, ok := wanted(w, r)
		if !ok {
			return
		}
		if !n.backend.do(work) {
			http.Error(w, "too many inside", http.StatusInternalServerError)
			return
		}
		err := call(r, work)
		n.called(err)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		answer(w)
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

// innerPath is what a server asks of itself by way of the gateway before it, and
// sentHeader when it did, in nanoseconds of its own clock.
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
	next := handler(n.backend)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sent, err := strconv.ParseInt(r.Header.Get(sentHeader), 10, 64); err == nil {
			n.began(time.Since(n.epoch) - time.Duration(sent))
		}
		next.ServeHTTP(w, r)
	})
}
