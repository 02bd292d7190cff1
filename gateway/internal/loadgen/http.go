package loadgen

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

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
