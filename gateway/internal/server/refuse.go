package server

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirhttp"
)

// doorRejections are what a door says by each of its rules. They are made when the limits
// are set, and shared: a flood of refusals makes nothing.
type doorRejections [numDoorRules]*weir.Rejection

func (l *doorLimits) rejections() *doorRejections {
	var all doorRejections
	full := func(rule doorRule, limit int) {
		all[rule] = &weir.Rejection{
			Gate: l.name, Rule: rule.String(), Reason: rule.reason(), Value: float64(limit), Limit: float64(limit),
			RetryAfter: time.Second, Retryable: true,
		}
	}
	fast := func(rule doorRule, rate float64) {
		all[rule] = &weir.Rejection{
			Gate: l.name, Rule: rule.String(), Reason: rule.reason(), Limit: rate,
			RetryAfter: nextIn(rate), Retryable: true,
		}
	}
	full(doorFull, l.open)
	full(doorPeerFull, l.peerOpen)
	fast(doorRate, l.rate)
	fast(doorPeerRate, l.peerRate)
	full(doorCrowd, l.peers)
	return &all
}

// nextIn is how long at most it takes until a bucket holds one again.
func nextIn(rate float64) time.Duration {
	if rate <= 0 {
		return time.Second
	}
	return time.Duration(min(1/rate, 1e6) * float64(time.Second))
}

// refuse turns a connection away. Telling it why takes a moment; under TLS, and when many
// are being told already, it is reset: that costs one packet, and leaves nothing behind in
// the kernel, where a connection that the server closes first lingers for a minute.
func (c *conns) refuse(raw *net.TCPConn, rule doorRule) {
	rej := c.tell(rule, raw, false)
	if !c.plain {
		reset(raw)
		return
	}
	select {
	case c.turnAway <- struct{}{}:
	default:
		reset(raw)
		return
	}
	go func() {
		defer func() { <-c.turnAway }()
		defer raw.Close()
		// Reading what the client sends keeps its kernel from throwing the answer
		// away with a reset.
		_ = raw.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = raw.Write(plainAnswer(rej))
		_ = raw.CloseWrite()
		buf := make([]byte, 4<<10)
		for {
			if _, err := raw.Read(buf); err != nil {
				return
			}
		}
	}()
}

// tell tells of a connection that was refused, or would have been, and returns what there
// is to say of it.
func (c *conns) tell(rule doorRule, raw *net.TCPConn, observed bool) *weir.Rejection {
	rej := c.door.said.Load()[rule]
	if c.note != nil {
		c.note(rej, remote(raw), observed)
	}
	return rej
}

// reset closes a connection without a word.
func reset(raw *net.TCPConn) {
	_ = raw.SetLinger(0) // or it lingers
	_ = raw.Close()
}

// plainAnswer is the answer to a connection whose request has not been read.
func plainAnswer(rej *weir.Rejection) []byte {
	var a rawAnswer
	weirhttp.WriteRejection(&a, &http.Request{Method: http.MethodGet}, rej)
	a.Header().Set("Connection", "close")
	a.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	_ = a.header.Write(&b) // to memory
	b.WriteString("\r\n")
	b.Write(a.body.Bytes())
	return b.Bytes()
}

// rawAnswer is a ResponseWriter that keeps what is written.
type rawAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *rawAnswer) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}

// WriteHeader implements http.ResponseWriter.
func (a *rawAnswer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *rawAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }
