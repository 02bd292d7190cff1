package weirhttp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/throttle"
)

// A [Transport] tells servers about a call in these headers. Policies read TimeoutHeader by themselves, and
// PriorityHeader with identity: {priority: header:X-Priority}.
const (
	// TimeoutHeader has the seconds until the caller's deadline, as 0.25.
	TimeoutHeader = "X-Request-Timeout"
	// PriorityHeader has the name of the priority.
	PriorityHeader = "X-Priority"
	// AttemptHeader has the number of the attempt. The first attempt is 0, and has no header.
	AttemptHeader = "X-Weir-Attempt"
)

// Transport is an [http.RoundTripper]. With it, a client does not make an overload worse. The zero value is
// ready to use. Set the fields before the first request, and share one Transport, or at least one Caller,
// between all clients of a process:
//
//	client := &http.Client{Transport: &weirhttp.Transport{}, Timeout: 2 * time.Second}
//
// Each request is a call of a [throttle.Caller], whose target is the host. If this process refuses a request,
// the error wraps a [*weir.Rejection]. A request is tried again if that is safe, can help and is within the
// budget. The last answer is returned as it came, unless this process refuses the next attempt. A request with a
// body is tried again only if it has GetBody; [http.NewRequest] sets GetBody for a buffer.
//
// A slot of the client's own limit is held until the response's body has been read to its end or is
// closed. It is not held during a back-off, but for the moment in which the rest of the answer is read.
//
// The Caller learns nothing from a request that never ends. Set Client.Timeout, or a deadline for each request:
// the time for all attempts together. A request that ends at its deadline counts as refused, see
// MinTimeout of [throttle.Config]. So give long polls, which end that way, a Target of their own.
type Transport struct {
	// Base sends the requests. nil means [http.DefaultTransport]. A failure to connect is taken for
	// proof that the server has not begun. net/http sends a request again by itself if an idle connection turns out to be closed, on
	// each that is left. Neither the budget nor the guard counts that. MaxIdleConnsPerHost, 2 by default, bounds it.
	Base http.RoundTripper
	// Caller decides about the requests. nil means a Caller with the default settings.
	Caller *throttle.Caller

	// Target returns the name of the service that a request is for. nil means the host in its URL, in lower case
	// and without the scheme's own port.
	Target func(*http.Request) string
	// Work describes a request as work, for instance by its priority. nil changes nothing. Op is the method.
	// Priority, exemption and deadline come from the context's scope (see [weir.WithPriority]). In a handler,
	// the scope is that of the request that the handler serves. Work can lower the priority, but not raise it
	// above that of the scope or of that request. An earlier deadline ends the request and its body, as that of
	// the context does. A connection that was switched to another protocol goes on.
	Work func(r *http.Request, w *weir.Work)
	// Safe reports whether a request may be done twice. With nil, that is so if the method is GET, HEAD,
	// OPTIONS, TRACE, PUT or DELETE, or if there is an Idempotency-Key.
	Safe func(*http.Request) bool

	// Quiet adds no headers with the deadline, the priority and the attempt. Those that the request has stay. Use
	// it for servers of others.
	Quiet bool
	// Refused, if not nil, is called when a request is refused before it started. It gets the address that
	// refused, for instance to choose another one next time. The address is empty if no connection was made.
	Refused func(r *http.Request, address string)

	once     sync.Once
	fallback *throttle.Caller
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	work, deadline := t.workOf(r)
	if at, ok := r.Context().Deadline(); deadline.IsZero() || ok && !deadline.Before(at) {
		return t.call(r.Context(), r, work, deadline)
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	handedOver := false
	defer func() {
		if !handedOver {
			cancel()
		}
	}()
	resp, err := t.call(ctx, r, work, deadline)
	if err == nil {
		handedOver = true
		afterBody(resp, cancel)
	}
	return resp, err
}

// call makes the attempts of a request.
func (t *Transport) call(ctx context.Context, r *http.Request, work weir.Work, deadline time.Time) (*http.Response, error) {
	call := t.caller().Start(t.target(r), deadline, t.safe(r))
	defer call.End()
	var before error // why the attempt before did not do
	for {
		work.Attempt = call.Attempt()
		p, err := call.Gate().Admit(t.gateContext(ctx, &work), work)
		if err != nil {
			if work.Attempt == 0 && r.Body != nil {
				_ = r.Body.Close() // nobody else closes it
			}
			if work.Attempt > 0 {
				err = fmt.Errorf("%w; attempt %d: %w", err, work.Attempt, before)
			}
			return nil, err
		}
		resp, answer, err := t.attempt(ctx, r, &call, &work, deadline, p)
		if ctx.Err() != nil || !replayable(r) {
			return resp, err
		}
		wait, stop := call.Decide(answer)
		if stop != throttle.Again {
			return resp, err
		}
		if before = err; resp != nil {
			before = errors.New("was answered " + resp.Status)
		}
		began, most := time.Now(), patience
		if !deadline.IsZero() {
			most = min(most, (wait+time.Until(deadline))/2) // leaves time for the attempt
		}
		discard(resp, most)
		if err := call.Wait(ctx, wait-time.Since(began)); err != nil {
			return nil, err
		}
	}
}

// CloseIdleConnections closes the idle connections of Base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) caller() *throttle.Caller {
	if t.Caller != nil {
		return t.Caller
	}
	t.once.Do(func() { t.fallback, _ = throttle.NewCaller(throttle.CallerConfig{}) }) // the defaults are valid
	return t.fallback
}

func (t *Transport) target(r *http.Request) string {
	switch {
	case t.Target != nil:
		return t.Target(r)
	case r.URL == nil:
		return ""
	}
	host := strings.ToLower(r.URL.Host)
	switch r.URL.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return host
}

// workOf returns a request as work, and the deadline of the call.
func (t *Transport) workOf(r *http.Request) (weir.Work, time.Time) {
	ctx := r.Context()
	w := weir.Work{Op: r.Method}
	w.Deadline, _ = ctx.Deadline()
	w.Inherit(ctx)
	if t.Work == nil {
		return w, w.Deadline
	}
	w = t.described(r, w)
	return w, w.Deadline
}

// described is a function of its own because its work escapes to the heap.
func (t *Transport) described(r *http.Request, w weir.Work) weir.Work {
	latest := w.Deadline
	t.Work(r, &w)
	attempt.Bound(r.Context(), &w, latest)
	return w
}

// gateContext returns the context for the gates. In a scope of a higher priority, Normal names none, so the
// context has to say that Work has lowered it.
func (t *Transport) gateContext(ctx context.Context, w *weir.Work) context.Context {
	if t.Work == nil || w.Priority != weir.Normal {
		return ctx
	}
	var scope weir.Work
	if scope.Inherit(ctx); scope.Priority > weir.Normal {
		return weir.WithPriority(ctx, weir.Normal)
	}
	return ctx
}

func (t *Transport) safe(r *http.Request) bool {
	if t.Safe != nil {
		return t.Safe(r)
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return len(r.Header["Idempotency-Key"]) > 0 || len(r.Header["X-Idempotency-Key"]) > 0
}

// replayable reports whether the body of a request can be sent again.
func replayable(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
}

// attempt sends a request once. It gives the permit back at the end of the response's body, or at once if there
// is no body.
func (t *Transport) attempt(ctx context.Context, r *http.Request, call *throttle.Call, work *weir.Work, deadline time.Time, p weir.Permit) (*http.Response, throttle.Answer, error) {
	var resp *http.Response
	kept := false
	defer func() {
		if kept {
			return
		}
		p.Done(weir.NoSample) // counts only after a panic; otherwise the permit is done already
		if resp != nil {      // Refused has panicked
			_ = resp.Body.Close()
		}
	}()
	out, err := t.outgoing(ctx, r, work, deadline)
	if err != nil {
		p.Cancel()
		return nil, throttle.Answer{}, err
	}
	var address string
	switch {
	case t.Refused != nil:
		out = out.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(c httptrace.GotConnInfo) {
				if c.Conn == nil { // a base that is not net/http's
					return
				}
				if a := c.Conn.RemoteAddr(); a != nil { // that of a dialer of the user may be
					address = a.String()
				}
			},
		}))
	case ctx.Done() != r.Context().Done(): // the type of a context may not be comparable
		out = out.WithContext(ctx)
	}
	call.Sent()
	resp, err = complete(t.base().RoundTrip(out))
	answer := answerTo(ctx, out, resp, err)
	p.Sample(answer.Outcome)
	if t.Refused != nil && answer.Unstarted {
		t.Refused(r, address)
	}
	if err != nil {
		p.Done(answer.Outcome)
		return nil, answer, err
	}
	kept = true
	holdUntilRead(resp, p)
	return resp, answer, nil
}

// complete fills in what a faulty RoundTripper has not returned.
func complete(resp *http.Response, err error) (*http.Response, error) {
	switch {
	case err != nil:
		return nil, err
	case resp == nil:
		return nil, errNoResponse
	case resp.Body == nil:
		resp.Body = http.NoBody
	}
	return resp, nil
}

var errNoResponse = errors.New("weirhttp: the base of a Transport returned neither a response nor an error")

// outgoing returns the request to send: with headers of its own, and from the second attempt on with a new
// body.
func (t *Transport) outgoing(ctx context.Context, r *http.Request, w *weir.Work, deadline time.Time) (*http.Request, error) {
	again := w.Attempt > 0 && r.GetBody != nil
	_, file := r.Body.(*os.File) // which net/http lets the kernel send
	once := !file && !replayable(r)
	if t.Quiet && !again && !once {
		return r, nil
	}
	out := *r // a shallow copy, as RoundTrippers may make
	switch {
	case again:
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		out.Body = body
	case once: // the others are mostly in memory, and net/http sends those together with the header
		out.Body = newOwnBody(ctx, r)
	}
	if !t.Quiet {
		out.Header = outgoingHeader(r, w, deadline)
	}
	return &out, nil
}

// outgoingHeader returns the headers of a request, with those for the server added.
func outgoingHeader(r *http.Request, w *weir.Work, deadline time.Time) http.Header {
	h := r.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	for _, name := range attempt.Headers { // or the number of a stranger would become that of this process
		delete(h, name.Name)
	}
	if w.Attempt > 0 {
		h[AttemptHeader] = []string{strconv.Itoa(w.Attempt)}
	}
	if left := time.Until(deadline); !deadline.IsZero() && !saysLess(h.Get(TimeoutHeader), left) {
		ms := max(1, left.Milliseconds())
		h[TimeoutHeader] = []string{strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64)}
	}
	_, _, came := weir.Received(r.Context())
	if came || w.Priority != weir.Normal || h[PriorityHeader] != nil && r.Context().Value(http.ServerContextKey) != nil {
		// In a handler, a header that is there already may be a stranger's: a proxy passes all on.
		h[PriorityHeader] = []string{weir.PriorityOf(w.Priority.Class()).String()}
	}
	return h
}

// saysLess reports whether a time-out header that the request has already ends before the call does.
func saysLess(timeout string, left time.Duration) bool {
	if _, err := strconv.ParseFloat(timeout, 64); err == nil {
		timeout += "s"
	}
	said, err := time.ParseDuration(timeout)
	return err == nil && said > 0 && said < left
}

// answerTo returns the Answer to an attempt.
func answerTo(ctx context.Context, r *http.Request, resp *http.Response, err error) throttle.Answer {
	if err != nil {
		if unsendable(err) || errors.Is(err, net.ErrClosed) && malformed(r) || ctx.Err() == nil && unreadable(r, err) {
			return throttle.Answer{}
		}
		a := throttle.AnswerOf(err)
		at, timed := ctx.Deadline()
		switch over := ctx.Err(); {
		case over == context.Canceled:
			a.Outcome = weir.Abandoned
		case over != nil, timed && !time.Now().Before(at): // the timer of http.Client may be a moment ahead of the context
			if a.Outcome = weir.Overload; starved(r) {
				a.Outcome = weir.NoSample
			}
		case cancelled(r):
			a = throttle.Answer{Outcome: weir.Abandoned}
		default:
			a.Transient = true // a broken connection
			var stream streamError
			switch {
			case untrusted(err): // the server or a proxy
				a.Outcome, a.Transient, a.Unstarted = weir.Failed, false, false
			case errors.As(err, &stream) && stream.Code == refusedStream:
				a.Outcome, a.Unstarted, a.Final = weir.Overload, true, true
			}
		}
		return a
	}
	a := throttle.Answer{Outcome: weir.ClassifyHTTP(resp.StatusCode)}
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		a.Outcome = weir.OK // or a breaker before a server of WebSockets would never close again
	case http.StatusTooManyRequests:
		a.Outcome, a.Quota = weir.OK, true
	case http.StatusBadGateway:
		a.Transient = true
	}
	a.After, a.Told = throttle.ParseRetryAfter(resp.Header["Retry-After"], answeredAt(resp))
	if resp.StatusCode == http.StatusServiceUnavailable && len(resp.Header["X-Envoy-Overloaded"]) > 0 {
		a.Outcome, a.Quota, a.Unstarted = weir.Overload, false, true
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		a = asRefused(resp, a)
	}
	a.Final = a.Final || resp.Header.Get(retryableHeader) == notRetryable[0]
	return a
}

// cancelled reports whether the caller has closed the channel of a request that cancels it, as code from before contexts does.
func cancelled(r *http.Request) bool {
	select {
	//lint:ignore SA1019 it counts while net/http heeds it
	case <-r.Cancel:
		return true
	default:
		return false
	}
}

// answeredAt returns the time of an answer by the clock of its server. A date in Retry-After is of the same clock,
// which may differ from that of this process.
func answeredAt(resp *http.Response) time.Time {
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		return date
	}
	return time.Now()
}

// streamError has the shape of net/http's error of a stream of HTTP/2, which [errors.As] converts to it.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

// Error implements error.
func (e streamError) Error() string { return "stream error " + strconv.FormatUint(uint64(e.Code), 10) }

// refusedStream is the code of a stream that the server has not processed at all: REFUSED_STREAM. net/http
// repeats such requests by itself, and gives up after a minute. More attempts would multiply.
const refusedStream = 7

// untrusted reports whether TLS has failed for a reason that the next connection would meet, too. The server's
// certificate is not trusted, or the server does not speak TLS.
func untrusted(err error) bool {
	var (
		certificate *tls.CertificateVerificationError
		authority   x509.UnknownAuthorityError // a VerifyConnection of the user may return these
		hostname    x509.HostnameError
		invalid     x509.CertificateInvalidError
		record      tls.RecordHeaderError
	)
	return errors.As(err, &certificate) || errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid) ||
		errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch)
}

// unsendable reports whether net/http has refused to send a request because of its content. That says nothing
// about the server, and net/http would refuse the next attempt as well. Such errors have no type of their own.
func unsendable(err error) bool {
	if err == nil {
		return false
	}
	said := err.Error()
	if slices.ContainsFunc(unsent, func(how string) bool { return strings.HasPrefix(said, how) }) {
		return true
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return unsendable(err.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(err.Unwrap(), unsendable)
	}
	return false
}

// unsent are the beginnings of net/http's errors before a request is sent, or before its end if its body has
// another length. A proxy that refuses CONNECT could give a reason that begins so; then there is one attempt.
var unsent = []string{
	"unsupported protocol scheme", "http: no Host in request URL", "http: nil Request.", "net/http: invalid method ",
	"net/http: invalid header ", "net/http: invalid trailer ", "net/http: can't write control character in ",
	"http: invalid Host header", "http: Request.ContentLength=", "http: ContentLength=",
	"http2: invalid ", "http2: request body larger than specified content length",
}

// malformed reports whether a request has a fault that net/http finds only when it writes the request to a
// connection. It closes the connection then, and may return that the connection is closed instead of the fault.
func malformed(r *http.Request) bool {
	control := func(c rune) bool { return c < ' ' || c == 0x7f }
	return r.ContentLength != 0 && r.Body == nil || r.URL != nil && strings.ContainsFunc(r.URL.RequestURI(), control)
}

const (
	// longestProblem bounds the problem documents that are read: above the most that [WriteRejectionTo] writes, whose
	// tenant and key may take six times longestText each.
	longestProblem = 32 << 10
	// patience bounds the wait for the body of an answer before the caller gets the answer. The body mostly
	// arrives with the header. A server that holds the body back must not hold the call and its slot.
	patience = 250 * time.Millisecond
)

// asRefused returns the Answer of a problem document of weir, or a if there is none. The body can still be read
// afterwards.
func asRefused(resp *http.Response, a throttle.Answer) throttle.Answer {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != problemType[0] || resp.Body == http.NoBody {
		return a
	}
	body := readAhead(resp.Body)
	resp.Body = body
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-body.done:
		body.fail()
	case <-late.C:
		return a
	}
	var doc struct {
		Type      string      `json:"type"`
		Reason    weir.Reason `json:"reason"`
		Retryable bool        `json:"retryable"`
		Relayed   bool        `json:"relayed"`
		Millis    int64       `json:"retry_after_ms"`
	}
	if body.err != nil || json.Unmarshal(body.head, &doc) != nil || !strings.HasPrefix(doc.Type, reasonDocs) {
		return a
	}
	rej := weir.Rejection{Reason: doc.Reason, Retryable: doc.Retryable}
	if doc.Millis > 0 {
		rej.RetryAfter = time.Duration(min(doc.Millis, int64(forever/time.Millisecond))) * time.Millisecond
	} else if a.Told {
		rej.RetryAfter = a.After
	}
	a = throttle.AnswerOfRejection(&rej)
	a.Unstarted = !doc.Relayed
	return a
}

// holdUntilRead gives the permit back when the body has been read to its end or is closed. The sample has
// been taken.
func holdUntilRead(resp *http.Response, p weir.Permit) {
	held := &heldBody{ReadCloser: resp.Body, permit: p}
	switch body := resp.Body.(type) {
	case io.ReadWriteCloser: // the connection was switched to another protocol
		resp.Body = &heldConn{held, body}
	default:
		if body == http.NoBody {
			p.Done(weir.NoSample)
			return
		}
		resp.Body = held
	}
}

// afterBody calls cancel when the body has been read to its end or is closed.
func afterBody(resp *http.Response, cancel context.CancelFunc) {
	switch body := resp.Body.(type) {
	case *heldBody:
		body.cancel = cancel
	case *heldConn:
		body.cancel = cancel
	default: // there is no body
		cancel()
	}
}

// heldBody is a body with a permit.
type heldBody struct {
	io.ReadCloser
	permit weir.Permit
	cancel context.CancelFunc // ends the context of the call; nil if the call has none of its own
}

func (b *heldBody) finish() {
	b.permit.Done(weir.NoSample)
	if b.cancel != nil {
		b.cancel()
	}
}

// Read implements [io.Reader].
func (b *heldBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if err != nil {
		b.finish()
	}
	return n, err
}

// Close implements [io.Closer].
func (b *heldBody) Close() error {
	defer b.finish()
	return b.ReadCloser.Close()
}

// heldConn is the body of a connection that was switched to another protocol.
type heldConn struct {
	*heldBody
	io.Writer
}

// CloseWrite closes the writing side, for a proxy that passes a half-close on.
func (c *heldConn) CloseWrite() error {
	if half, ok := c.Writer.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// discard ends a response that nobody will read. It reads the rest of a short body, so that the connection can
// be used again, unless that takes longer than most.
func discard(resp *http.Response, most time.Duration) {
	if resp == nil {
		return
	}
	if resp.ContentLength >= 0 && resp.ContentLength <= longestProblem {
		late := time.AfterFunc(most, func() { _ = resp.Body.Close() })
		_, _ = io.CopyN(io.Discard, resp.Body, longestProblem)
		late.Stop()
	}
	_ = resp.Body.Close()
}
