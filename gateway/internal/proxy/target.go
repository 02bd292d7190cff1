package proxy

import (
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// target is one server of an upstream. It outlives reloads of the configuration
// that keep its URL.
type target struct {
	url *url.URL
	key string // as configured
	h2c bool

	requests  atomic.Uint64
	failures  [numFailures]atomic.Uint64
	ejections atomic.Uint64

	// out is the end of the present ejection in nanoseconds since the epoch of
	// the clock, 0 for a target in rotation.
	out atomic.Int64

	row atomic.Int32 // failures in a row
}

// failure says how a target failed, for metrics.
type failure int

const (
	failedConnect failure = iota // no connection: refused, unreachable, name unknown
	failedTimeout                // no connection or no answer in time
	failedReset                  // the connection broke, or what came was no HTTP
	failedBody                   // the connection broke after the headers of the answer
	failedStatus                 // it answered 502 or 504
	numFailures
)

var failureNames = [numFailures]string{"connect", "timeout", "reset", "body", "status"}

// seat is a target as one configuration sees it: with its gate.
type seat struct {
	*target
	gate weir.Gate // nil: no limit
}

// succeeded ends a row of failures, and reports whether that brought the target
// back into rotation.
func (t *target) succeeded() (back bool) {
	if t.row.Load() == 0 {
		return false
	}
	t.row.Store(0)
	return t.out.Swap(0) != 0
}

// failed counts a failure and reports whether it put the target out of
// rotation. alone says that no other target is left in rotation: the last one is
// never put out.
func (t *target) failed(f failure, now time.Duration, e ejection, alone func() bool) bool {
	t.failures[f].Add(1)
	if e.failures <= 0 || t.row.Add(1) < int32(e.failures) {
		return false
	}
	out := t.out.Load()
	if out > int64(now) || alone() || !t.out.CompareAndSwap(out, int64(now+e.lasts)) {
		return false
	}
	t.ejections.Add(1)
	return true
}

// inRotation reports whether the target is used without conditions.
func (t *target) inRotation() bool { return t.out.Load() == 0 }

// usable reports whether a request may go to the target: it is in rotation, or
// its ejection is over and this request is the one that tries it. The next one
// tries only after another such time, unless this one succeeds.
func (t *target) usable(now time.Duration, e ejection) bool {
	out := t.out.Load()
	return out == 0 || out <= int64(now) && t.out.CompareAndSwap(out, int64(now+e.lasts))
}

// ejection is when a target is left out, and for how long.
type ejection struct {
	failures int
	lasts    time.Duration
}

// address returns where in goes at this target.
func (t *target) address(in *url.URL) *url.URL {
	out := *in
	t.direct(&out)
	return &out
}

// direct makes u lead to this target: its scheme and host, and its path before
// the path of u.
func (t *target) direct(u *url.URL) {
	u.Scheme, u.Host = t.url.Scheme, t.url.Host
	base := strings.TrimSuffix(t.url.EscapedPath(), "/")
	if base == "" {
		return
	}
	escaped := base + "/" + strings.TrimPrefix(u.EscapedPath(), "/")
	path, err := url.PathUnescape(escaped)
	if err != nil { // cannot be: both halves come from parsed URLs
		path = escaped
	}
	u.Path, u.RawPath = path, escaped
}

// TargetStats is what has become of the requests to one target. Counters only
// grow, also over reloads that keep the target's URL.
type TargetStats struct {
	Target    string            `json:"target"`
	Requests  uint64            `json:"requests"`
	Failures  map[string]uint64 `json:"failures"` // by kind: connect, timeout, reset, body, status
	Ejections uint64            `json:"ejections"`
	Ejected   bool              `json:"ejected"`
}

// Stats returns the figures of each target, in the order of the configuration.
func (u *Upstream) Stats() []TargetStats {
	stats := make([]TargetStats, 0, len(u.seats))
	for _, s := range u.seats {
		st := TargetStats{
			Target:    s.key,
			Requests:  s.requests.Load(),
			Failures:  make(map[string]uint64, numFailures),
			Ejections: s.ejections.Load(),
			Ejected:   !s.inRotation(),
		}
		for f, name := range failureNames {
			st.Failures[name] = s.failures[f].Load()
		}
		stats = append(stats, st)
	}
	return stats
}

// Abandoned returns how many requests have lost their client while the upstream
// was working on them. It never falls.
func (u *Upstream) Abandoned() uint64 { return u.shared.abandoned.Load() }

// Expect sets how long the upstream is expected to take on routes without an
// answer yet. 0, as at first, means that it is not known.
func (u *Upstream) Expect(d time.Duration) { u.shared.services.guess.Store(int64(d)) }

// Expected returns the moving mean of the time the upstream takes to answer, over
// all routes; 0 before the first answer.
func (u *Upstream) Expected() time.Duration { return u.shared.services.all.value() }

const (
	// idlePerTarget bounds the idle connections kept to one target. The
	// default of net/http is 2, which makes a busy proxy dial for nearly every
	// request and costs three times the CPU.
	idlePerTarget = 1024
	// idleFor is shorter than the keep-alive time of most servers, so that it
	// is rarely they who close a connection just as a request is sent on it.
	idleFor = 45 * time.Second
	// maxAnswerHeader bounds the headers of an answer.
	maxAnswerHeader = 256 << 10
	// bufferSize is what one read or write moves at most.
	bufferSize = 32 << 10
)

// newTransport returns a transport for one upstream. With h2c it speaks HTTP/2
// without TLS to http targets; else HTTP/1.1 to them, and to https targets what
// they prefer of the two.
func newTransport(connectTimeout time.Duration, h2c bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(!h2c)
	protocols.SetUnencryptedHTTP2(h2c)
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		Protocols:              protocols,
		MaxIdleConnsPerHost:    idlePerTarget,
		IdleConnTimeout:        idleFor,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true, // what the client asked for is passed on as it is
		HTTP2: &http.HTTP2Config{
			// A connection that died unnoticed is found by a ping, and not by
			// requests that hang on it.
			SendPingTimeout: 15 * time.Second,
			PingTimeout:     5 * time.Second,
		},
	}
}

// buffers lends the buffers that bodies are copied with.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
