package loadgen

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/hist"
)

// Tally is the account of the requests that were due in some stretch of time.
// Once all have ended, Offered = OK + Refused + Failed + GaveUp + Unsent.
type Tally struct {
	Offered int64
	OK      int64 // answered within the client's patience: the goodput
	Refused int64
	Failed  int64
	GaveUp  int64
	Unsent  int64 // never left: too many were open already

	LateSends int64 // left later than LateAfter allows

	// Admitted holds the latencies of OK, Failed and GaveUp requests, from the
	// moment they were due. GaveUp counts with the client's whole patience.
	Admitted hist.Histogram
}

// Add adds the account o to t.
func (t *Tally) Add(o *Tally) {
	t.Offered += o.Offered
	t.OK += o.OK
	t.Refused += o.Refused
	t.Failed += o.Failed
	t.GaveUp += o.GaveUp
	t.Unsent += o.Unsent
	t.LateSends += o.LateSends
	t.Admitted.Add(&o.Admitted)
}

// Open counts the requests that have not ended yet.
func (t *Tally) Open() int64 {
	return t.Offered - t.OK - t.Refused - t.Failed - t.GaveUp - t.Unsent
}

// Void reports whether the generator fell behind so far that the figures mean
// nothing.
func (t *Tally) Void() bool { return t.Behind() > VoidAbove }

// Behind is the share of the requests that left too late or not at all.
func (t *Tally) Behind() float64 {
	return float64(t.LateSends+t.Unsent) / float64(max(1, t.Offered))
}

// Meter keeps the account of a load, second by second. It is safe for
// concurrent use.
type Meter struct {
	done chan struct{}

	mu      sync.Mutex
	seconds []Tally
}

// Done is closed when the load has ended and every request with it.
func (m *Meter) Done() <-chan struct{} { return m.done }

// Seconds is the number of seconds the load lasts, rounded up.
func (m *Meter) Seconds() int { return len(m.seconds) }

// Second returns the account of the requests that were due in second i, from 0.
// It is final once the clients' patience has passed after the second's end.
func (m *Meter) Second(i int) Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.seconds[i]
	t.Admitted = t.Admitted.Clone()
	return t
}

func (m *Meter) sent(due time.Duration, late bool) {
	m.update(due, func(t *Tally) {
		t.Offered++
		if late {
			t.LateSends++
		}
	})
}

func (m *Meter) unsent(due time.Duration) {
	m.update(due, func(t *Tally) {
		t.Offered++
		t.Unsent++
	})
}

func (m *Meter) ended(due time.Duration, a Answer, latency time.Duration) {
	m.update(due, func(t *Tally) {
		switch a {
		case OK:
			t.OK++
		case Refused:
			t.Refused++
			return
		case Failed:
			t.Failed++
		case GaveUp:
			t.GaveUp++
		}
		t.Admitted.Record(latency)
	})
}

func (m *Meter) update(due time.Duration, f func(*Tally)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.seconds[due/time.Second])
}

// bodyLimit is how much of an answer is read so that its connection can be
// used again.
const bodyLimit = 64 << 10

// GET returns a Send function that fetches url, over connections that are kept
// and reused, and a function that closes them. 429 and 503 count as Refused, a
// status below 400 as OK, anything else as Failed.
func GET(url string) (send func(context.Context) Answer, closeIdle func(), err error) {
	if _, err := http.NewRequest(http.MethodGet, url, nil); err != nil {
		return nil, nil, err
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if tcp, ok := c.(*net.TCPConn); ok {
				// A client that leaves resets its connection, as a killed
				// browser tab does. It also spares the machine thousands of
				// ports in TIME_WAIT.
				_ = tcp.SetLinger(0)
			}
			return c, err
		},
		MaxIdleConns:        MaxOpen,
		MaxIdleConnsPerHost: MaxOpen,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
	send = func(ctx context.Context) Answer {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return Failed
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return classify(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, bodyLimit)); err != nil {
			return classify(err)
		}
		return answer(resp.StatusCode)
	}
	return send, transport.CloseIdleConnections, nil
}

func answer(status int) Answer {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return Refused
	case status < http.StatusBadRequest:
		return OK
	}
	return Failed
}

func classify(err error) Answer {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return GaveUp
	}
	return Failed
}
