package weirhttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/throttle"
)

// sender is a RoundTripper that answers by a function, and remembers the requests that it gets.
type sender struct {
	answer func(attempt int, r *http.Request) (*http.Response, error)
	sent   []*http.Request
	bodies []string
}

func (s *sender) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
		_ = r.Body.Close()
	}
	s.sent, s.bodies = append(s.sent, r), append(s.bodies, body)
	return s.answer(len(s.sent)-1, r)
}

// say is an answer with a status, a body, and headers: name, value, …
func say(status int, body string, headers ...string) func(int, *http.Request) (*http.Response, error) {
	return func(_ int, r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		for i := 0; i < len(headers); i += 2 {
			w.Header().Add(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		resp := w.Result()
		resp.Request = r
		return resp, nil
	}
}

// refuse answers as a gate of weir does.
func refuse(rej weir.Rejection) func(int, *http.Request) (*http.Response, error) {
	return func(_ int, r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		WriteRejectionTo(w, r, &rej, nil)
		resp := w.Result()
		resp.Request = r
		return resp, nil
	}
}

// refuseTo is a refusal that tells a trusted client all it can.
func refuseTo(rej weir.Rejection) func(int, *http.Request) (*http.Response, error) {
	return func(_ int, r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		WriteRejectionTo(w, r, &rej, &weir.Work{Tenant: strings.Repeat("<", longestText)})
		resp := w.Result()
		resp.Request = r
		return resp, nil
	}
}

func transportOf(t testing.TB, s http.RoundTripper, cfg throttle.CallerConfig) *Transport {
	t.Helper()
	if cfg.Random == nil {
		cfg.Random = func() float64 { return 0.9 } // above the share of a few failures
	}
	caller, err := throttle.NewCaller(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &Transport{Base: s, Caller: caller}
}

func request(t testing.TB, method, body string) *http.Request {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://shop.example/cart", reader)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Each answer gives a number of attempts, counts of the throttle, and waits. The jitter is 0.9 of 100 and of
// 200 ms.
func TestTransportRetries(t *testing.T) {
	const jitter = 270 * time.Millisecond
	queueFull := weir.Rejection{Gate: "shop", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: 2 * time.Second}
	broken := func(int, *http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }
	lacking := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	for _, tt := range []struct {
		name          string
		method        string
		answer        func(int, *http.Request) (*http.Response, error)
		attempts      int
		waits         time.Duration
		requests, oks uint64 // as the throttle counts them
	}{
		{"success", "GET", say(200, "fine"), 1, 0, 1, 1},
		{"not found", "GET", say(404, ""), 1, 0, 1, 1},
		{"an error", "GET", say(500, ""), 1, 0, 1, 1},
		{"overload", "GET", say(503, ""), 3, jitter, 3, 0},
		{"overload of a POST", "POST", say(503, ""), 1, 0, 1, 0},
		{"a request time-out", "DELETE", say(408, ""), 3, jitter, 3, 0},
		{"a gateway's time-out", "HEAD", say(504, ""), 3, jitter, 3, 0},
		{"a gateway's time-out of a PATCH", "PATCH", say(504, ""), 1, 0, 1, 0},
		{"a bad gateway", "PUT", say(502, ""), 3, jitter, 3, 3},
		{"a bad gateway to a POST", "POST", say(502, ""), 1, 0, 1, 1},
		{"envoy is overloaded", "POST", say(503, "", "X-Envoy-Overloaded", "true"), 3, jitter, 3, 0},
		{"a success through an envoy that was overloaded before", "POST", say(200, "fine", "X-Envoy-Overloaded", "true"), 1, 0, 1, 1},
		{"an error behind an overloaded envoy", "POST", say(500, "", "X-Envoy-Overloaded", "true"), 1, 0, 1, 1},
		{"weir refused a POST", "POST", refuse(queueFull), 3, 4*time.Second + jitter, 3, 0},
		{"weir is draining", "POST", refuse(weir.Rejection{Reason: weir.ReasonDraining, Retryable: true, RetryAfter: time.Second}), 3, 2*time.Second + jitter, 3, 3},
		{"weir says no", "GET", refuse(weir.Rejection{Reason: weir.ReasonQueueFull}), 1, 0, 1, 0},
		{"weir says no to a HEAD", "HEAD", refuse(weir.Rejection{Reason: weir.ReasonQueueFull}), 1, 0, 1, 0},
		{"weir says no to a trusted POST, at length", "POST", refuseTo(weir.Rejection{Reason: weir.ReasonQueueFull, Bucket: strings.Repeat("&", longestText)}), 1, 0, 1, 0},
		{"weir refused a trusted POST, at length", "POST", refuseTo(weir.Rejection{Gate: "shop", Reason: weir.ReasonLimit, Retryable: true, RetryAfter: time.Second, Bucket: strings.Repeat("&", longestText)}), 3, 2*time.Second + jitter, 3, 0},
		{"a quota", "POST", refuse(weir.Rejection{Reason: weir.ReasonQuota, Retryable: true, RetryAfter: time.Second}), 3, 2*time.Second + jitter, 3, 3},
		{"too many requests", "GET", say(429, "", "Retry-After", "1"), 3, 2*time.Second + jitter, 3, 3},
		{"too many requests to a POST", "POST", say(429, "", "Retry-After", "1"), 1, 0, 1, 1},
		{"a time", "GET", say(503, "", "Retry-After", "3"), 3, 6*time.Second + jitter, 3, 0},
		{"a year", "GET", say(503, "", "Retry-After", "31536000"), 1, 0, 1, 0},
		{"two times", "GET", say(503, "", "Retry-After", "1", "Retry-After", "2"), 3, 4*time.Second + jitter, 3, 0},
		{"one of two", "GET", say(503, "", "Retry-After", "soon", "Retry-After", "2"), 3, 4*time.Second + jitter, 3, 0},
		{"now", "GET", say(503, "", "Retry-After", "0"), 3, jitter, 3, 0},
		{"a negative time", "GET", say(503, "", "Retry-After", "-5"), 3, jitter, 3, 0},
		{"a date that has passed", "GET", say(503, "", "Retry-After", "Mon, 01 Jan 1990 00:00:00 GMT"), 3, jitter, 3, 0},
		{"a date by a clock that is late", "GET", say(503, "", "Date", "Mon, 01 Jan 1990 00:00:00 GMT", "Retry-After", "Mon, 01 Jan 1990 00:00:02 GMT"), 3, 4*time.Second + jitter, 3, 0},
		{"a date by a clock that is early", "GET", say(503, "", "Date", "Sun, 01 Jan 2090 00:00:00 GMT", "Retry-After", "Sun, 01 Jan 2090 00:00:02 GMT"), 3, 4*time.Second + jitter, 3, 0},
		{"a date beside one that is none", "GET", say(503, "", "Date", "soon", "Retry-After", "Sat, 01 Jan 2000 00:00:00 GMT"), 3, jitter, 3, 0},
		{"a date in centuries", "GET", say(503, "", "Retry-After", "Tue, 23 Nov 9999 12:00:30 GMT"), 1, 0, 1, 0},
		{"a header of many bytes", "GET", say(503, "", "Retry-After", strings.Repeat("9", 1<<16)), 3, jitter, 3, 0},
		{"no time", "GET", say(503, "", "Retry-After", "NaN"), 3, jitter, 3, 0},
		{"another's problem", "POST", say(503, `{"type":"https://example.com/full"}`, "Content-Type", "application/problem+json"), 1, 0, 1, 0},
		{"another's problem with words of ours", "POST", say(503, `{"type":"https://example.com/full","reason":"limit","retryable":true}`, "Content-Type", "application/problem+json"), 1, 0, 1, 0},
		{"another's problem, without them", "GET", say(503, `{"type":"https://example.com/full"}`, "Content-Type", "application/problem+json"), 3, jitter, 3, 0},
		{"no JSON", "POST", say(503, `{`, "Content-Type", "application/problem+json"), 1, 0, 1, 0},
		{"an endless time", "POST", say(503, `{"type":"`+reasonDocs+`ReasonLimit","reason":"limit","retryable":true,"retry_after_ms":9000000000000000000}`,
			"Content-Type", "application/problem+json"), 1, 0, 1, 0},
		{"a broken connection", "GET", broken, 3, jitter, 3, 3},
		{"a broken connection of a POST", "POST", broken, 1, 0, 1, 1},
		{"no file descriptor here", "GET", func(int, *http.Request) (*http.Response, error) { return nil, lacking }, 1, 0, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &sender{answer: tt.answer}
			tr := transportOf(t, s, throttle.CallerConfig{})
			began := time.Now()
			resp, err := tr.RoundTrip(request(t, tt.method, "hello"))
			if took := time.Since(began); len(s.sent) != tt.attempts || took != tt.waits {
				t.Errorf("%s: %d attempts in %v, want %d in %v", tt.name, len(s.sent), took, tt.attempts, tt.waits)
			}
			for i, body := range s.bodies {
				if body != "hello" {
					t.Errorf("%s: attempt %d was sent %q", tt.name, i, body)
				}
			}
			want, wantErr := tt.answer(0, request(t, tt.method, ""))
			if !errors.Is(err, wantErr) {
				t.Errorf("%s: %v, want %v", tt.name, err, wantErr)
			}
			if want != nil {
				got, _ := io.ReadAll(resp.Body)
				wanted, _ := io.ReadAll(want.Body)
				if resp.StatusCode != want.StatusCode || !bytes.Equal(got, wanted) {
					t.Errorf("%s: %d %q, want the last answer as it came: %d %q", tt.name, resp.StatusCode, got, want.StatusCode, wanted)
				}
			}
			guard := tr.Caller.Targets()[0].Guard
			var requests uint64
			for o, n := range guard.Outcomes {
				if o != weir.Abandoned && o != weir.NoSample {
					requests += n
				}
			}
			if oks := guard.Outcomes[weir.OK] + guard.Outcomes[weir.Failed]; guard.InFlight != 0 || requests != tt.requests || oks != tt.oks {
				t.Errorf("%s: %d in flight, %d requests of which %d were accepted; want 0, %d, %d", tt.name, guard.InFlight, requests, oks, tt.requests, tt.oks)
			}
		})
	}
}

// A POST may be declared safe to do twice, and a GET unsafe.
func TestTransportSafe(t *testing.T) {
	for _, tt := range []struct {
		name, method, header string
		safe                 func(*http.Request) bool
		attempts             int
	}{
		{"a POST", "POST", "", nil, 1},
		{"a key", "POST", "Idempotency-Key", nil, 3},
		{"a key by its other name", "PATCH", "X-Idempotency-Key", nil, 3},
		{"declared safe", "POST", "", func(*http.Request) bool { return true }, 3},
		{"declared unsafe, with a key", "GET", "Idempotency-Key", func(*http.Request) bool { return false }, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &sender{answer: say(503, "")}
			tr := transportOf(t, s, throttle.CallerConfig{})
			tr.Safe = tt.safe
			r := request(t, tt.method, "hello")
			if tt.header != "" {
				r.Header.Set(tt.header, "one")
			}
			if _, err := tr.RoundTrip(r); err != nil || len(s.sent) != tt.attempts {
				t.Errorf("%s: %d attempts, %v; want %d", tt.name, len(s.sent), err, tt.attempts)
			}
		})
	}
}

// A body that cannot be read again is sent once. A body that is not sent is closed.
func TestTransportBodies(t *testing.T) {
	s := &sender{answer: say(503, "")}
	tr := transportOf(t, s, throttle.CallerConfig{})
	r := request(t, "PUT", "hello")
	r.GetBody = nil
	if resp, err := tr.RoundTrip(r); err != nil || resp.StatusCode != 503 || len(s.sent) != 1 {
		t.Errorf("%d attempts, %v", len(s.sent), err)
	}
	r = request(t, "PUT", "hello")
	r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("the file is gone") }
	tr = transportOf(t, s, throttle.CallerConfig{})
	if _, err := tr.RoundTrip(r); err == nil || !strings.Contains(err.Error(), "the file is gone") {
		t.Errorf("%v", err)
	}
	if guard := tr.Caller.Targets()[0].Guard; guard.InFlight != 0 || guard.Admitted != 1 {
		t.Errorf("the guard counts an attempt without a body: %+v", guard)
	}
	r = request(t, "PUT", "hello")
	r.GetBody = func() (io.ReadCloser, error) { return nil, nil }
	if resp, err := tr.RoundTrip(r); err != nil || resp.StatusCode != 503 {
		t.Errorf("a body that comes back as nothing: %v", err)
	}
	body := &watched{Reader: strings.NewReader("hello")}
	r = request(t, "PUT", "hello")
	r.Body = body
	full := newFakeGate(0)
	full.refuse = &weir.Rejection{Gate: "own", Reason: weir.ReasonLimit, Retryable: true}
	tr = transportOf(t, s, throttle.CallerConfig{Limit: full})
	client := &http.Client{Transport: tr}
	_, err := client.Do(r)
	if rej := weir.AsRejection(err); rej == nil || rej.Gate != "own" || !body.closed {
		t.Errorf("%v; the body is closed: %v", err, body.closed)
	}
	if guard := tr.Caller.Targets()[0].Guard; guard.InFlight != 0 || guard.Admitted != 0 {
		t.Errorf("the guard counts what was never sent: %+v", guard)
	}
}

type watched struct {
	io.Reader
	closed bool
}

func (w *watched) Close() error {
	w.closed = true
	return nil
}

// The slot of the client's own limit is held until the body ends, and not during a back-off.
func TestTransportHoldsTheSlot(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*http.Response)
	}{
		{"read to its end", func(r *http.Response) { _, _ = io.Copy(io.Discard, r.Body) }},
		{"closed", func(r *http.Response) { _ = r.Body.Close() }},
		{"both", func(r *http.Response) { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() }},
	} {
		own := newFakeGate(1)
		tr := transportOf(t, &sender{answer: say(200, "a long answer")}, throttle.CallerConfig{Limit: own})
		resp, err := tr.RoundTrip(request(t, "GET", ""))
		if err != nil {
			t.Fatal(err)
		}
		if own.held() != 1 || !slices.Equal(own.outcomes(), []weir.Outcome{weir.OK}) {
			t.Errorf("%s: %d slots held with %v, want 1, sampled as OK", tt.name, own.held(), own.outcomes())
		}
		if tt.end(resp); own.held() != 0 {
			t.Errorf("%s: %d slots held", tt.name, own.held())
		}
	}
	synctest.Test(t, func(t *testing.T) {
		own := newFakeGate(1)
		s := &sender{answer: say(503, "", "Retry-After", "10")}
		tr := transportOf(t, s, throttle.CallerConfig{Limit: own})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := tr.RoundTrip(request(t, "GET", "").WithContext(ctx))
			done <- err
		}()
		time.Sleep(time.Second)
		if own.held() != 0 {
			t.Errorf("%d slots held during the back-off", own.held())
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || len(s.sent) != 1 {
			t.Errorf("%v after %d attempts", err, len(s.sent))
		}
		if left := tr.Caller.Targets()[0].RetriesLeft; left != 5 {
			t.Errorf("%d retries left: the one that was not sent is not given back", left)
		}
	})
}

// socket is the body of a response whose connection was switched to another protocol.
type socket struct {
	io.Reader
	bytes.Buffer
	closed, ended bool
}

func (s *socket) Read(b []byte) (int, error) { return s.Reader.Read(b) }

func (s *socket) Close() error {
	s.closed = true
	return nil
}

func (s *socket) CloseWrite() error {
	s.ended = true
	return nil
}

// A connection that was switched to another protocol can be written to, and keeps its slot until it is closed.
func TestTransportSwitchesProtocols(t *testing.T) {
	own, conn := newFakeGate(1), &socket{Reader: strings.NewReader("hello")}
	tr := transportOf(t, &sender{answer: func(int, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: conn}, nil
	}}, throttle.CallerConfig{Limit: own})
	resp, err := tr.RoundTrip(request(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	both, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("the body is a %T, which cannot be written to", resp.Body)
	}
	if _, err := io.WriteString(both, "ping"); err != nil || conn.String() != "ping" {
		t.Errorf("wrote %q, %v", &conn.Buffer, err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(both, got); err != nil || string(got) != "hello" || own.held() != 1 {
		t.Errorf("read %q, %v, with %d slots held", got, err, own.held())
	}
	half, ok := both.(interface{ CloseWrite() error })
	if !ok {
		t.Fatalf("a %T cannot be closed by half", both)
	}
	if err := half.CloseWrite(); err != nil || !conn.ended || own.held() != 1 {
		t.Errorf("%v, ended %v, %d slots held", err, conn.ended, own.held())
	}
	if err := both.Close(); err != nil || !conn.closed || own.held() != 0 {
		t.Errorf("%v, closed %v, %d slots held", err, conn.closed, own.held())
	}
}

// The end of a context decides about an attempt without an answer. A caller that has left says nothing about
// the server; a deadline that has passed says that the server was slow. An answer that has arrived is returned
// all the same.
func TestTransportWhenTheContextEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(context.Context) (context.Context, context.CancelFunc)
		want weir.Outcome
	}{
		{"cancelled", context.WithCancel, weir.Abandoned},
		{"late", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			return ctx, func() { <-ctx.Done(); cancel() }
		}, weir.Overload},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := tt.end(t.Context())
			s := &sender{answer: func(int, *http.Request) (*http.Response, error) {
				end()
				return nil, io.ErrUnexpectedEOF
			}}
			tr := transportOf(t, s, throttle.CallerConfig{})
			_, err := tr.RoundTrip(request(t, "GET", "").WithContext(ctx))
			if guard := tr.Caller.Targets()[0].Guard; err == nil || len(s.sent) != 1 || guard.Outcomes[tt.want] != 1 {
				t.Errorf("%s: %v after %d attempts, outcomes %v; want one %v", tt.name, err, len(s.sent), guard.Outcomes, tt.want)
			}
			ctx, end = tt.end(t.Context())
			s.answer = func(n int, r *http.Request) (*http.Response, error) {
				end()
				return say(503, "")(n, r)
			}
			if resp, err := tr.RoundTrip(request(t, "GET", "").WithContext(ctx)); err != nil || resp.StatusCode != 503 || len(s.sent) != 2 {
				t.Errorf("%s: %v after %d attempts, want the answer", tt.name, err, len(s.sent)-1)
			}
		})
	}
}

// A request that its caller has cancelled by the channel in it is abandoned, too. It is not sent again.
func TestTransportWhenTheRequestIsCancelled(t *testing.T) {
	arrived := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	tr := transportOf(t, new(http.Transport), throttle.CallerConfig{})
	cancel := make(chan struct{})
	r := request(t, "GET", "")
	r.URL.Host = server.Listener.Addr().String()
	//lint:ignore SA1019 callers may still set it
	r.Cancel = cancel
	go func() {
		<-arrived
		close(cancel)
	}()
	_, err := tr.RoundTrip(r)
	if guard := tr.Caller.Targets()[0].Guard; err == nil || guard.Outcomes[weir.Abandoned] != 1 || guard.Outcomes[weir.Failed] != 0 {
		t.Errorf("%v, outcomes %v; want one abandoned", err, guard.Outcomes)
	}
}

// A base that breaks the rules of RoundTrippers causes no further harm.
func TestTransportOverAPoorBase(t *testing.T) {
	for name, answer := range map[string]func(int, *http.Request) (*http.Response, error){
		"nothing": func(int, *http.Request) (*http.Response, error) { return nil, nil },
		"no body": func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{"Content-Type": {"application/problem+json"}}}, nil
		},
	} {
		own := newFakeGate(1)
		tr := transportOf(t, &sender{answer: answer}, throttle.CallerConfig{Limit: own, Retry: throttle.Retry{Attempts: 1}})
		resp, err := tr.RoundTrip(request(t, "GET", ""))
		if (resp == nil) == (err == nil) || resp != nil && resp.Body == nil || own.held() != 0 {
			t.Errorf("%s: %v, %v, %d slots held", name, resp, err, own.held())
		}
	}
}

// stalled is a body that the server never sends.
type stalled struct {
	closed chan struct{}
	once   sync.Once
}

func newStalled() *stalled { return &stalled{closed: make(chan struct{})} }

func (s *stalled) Read([]byte) (int, error) {
	<-s.closed
	return 0, http.ErrBodyReadAfterClose
}

func (s *stalled) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// A refusal whose body does not arrive is tried again all the same, and its slot is given back. A body that
// arrives late can be read.
func TestTransportStalledBodies(t *testing.T) {
	for kind, want := range map[string]time.Duration{
		"text/plain":   2 * patience, // two of the three answers are thrown away, in the waits of 90 and 180 ms
		problemType[0]: 5 * patience, // and all three are read ahead
	} {
		synctest.Test(t, func(t *testing.T) {
			own := newFakeGate(1)
			s := &sender{answer: func(int, *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 503, ContentLength: 10, Header: http.Header{"Content-Type": {kind}}, Body: newStalled()}, nil
			}}
			tr := transportOf(t, s, throttle.CallerConfig{Limit: own})
			began := time.Now()
			resp, err := tr.RoundTrip(request(t, "GET", ""))
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); len(s.sent) != 3 || took != want || own.held() != 1 {
				t.Errorf("%s: %d attempts in %v with %d slots held, want 3 in %v with 1", kind, len(s.sent), took, own.held(), want)
			}
			if _ = resp.Body.Close(); own.held() != 0 {
				t.Errorf("%s: %d slots held", kind, own.held())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // the wait of 90 ms fits the deadline, and patience does not
		s := &sender{answer: func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, ContentLength: 10, Body: newStalled()}, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 240*time.Millisecond)
		defer cancel()
		began := time.Now()
		resp, err := transportOf(t, s, throttle.CallerConfig{}).RoundTrip(request(t, "GET", "").WithContext(ctx))
		if took := time.Since(began); err != nil || len(s.sent) != 2 || took != 165*time.Millisecond {
			t.Fatalf("%v after %d attempts in %v, want two in 165 ms", err, len(s.sent), took)
		}
		_ = resp.Body.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		text := strings.Repeat("late ", longestProblem)
		r, w := io.Pipe()
		go func() {
			time.Sleep(time.Minute)
			_, _ = io.WriteString(w, text)
			w.Close()
		}()
		s := &sender{answer: func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, ContentLength: -1, Header: http.Header{"Content-Type": problemType}, Body: r}, nil
		}}
		resp, err := transportOf(t, s, throttle.CallerConfig{}).RoundTrip(request(t, "POST", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != text || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// A host is one target, however it is written.
func TestTransportTargets(t *testing.T) {
	for url, want := range map[string]string{
		"http://shop.example/cart":      "shop.example",
		"http://Shop.Example:80/":       "shop.example",
		"https://SHOP.example:443/cart": "shop.example",
		"https://shop.example:80/":      "shop.example:80",
		"http://shop.example:443/":      "shop.example:443",
		"http://shop.example:8080/":     "shop.example:8080",
		"http://[::1]:80/":              "[::1]",
		"http://[fe80::80]/":            "[fe80::80]",
	} {
		tr := transportOf(t, &sender{answer: say(200, "")}, throttle.CallerConfig{})
		r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if got := tr.Caller.Targets()[0].Target; got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

// Of ten thousand hosts, those called last are kept, and of a long name its beginning.
func TestTransportTargetsAreBounded(t *testing.T) {
	tr := transportOf(t, &sender{answer: say(200, "")}, throttle.CallerConfig{})
	tr.Base = roundTripperFunc(say(200, ""))
	r := request(t, "GET", "")
	var host string
	tr.Target = func(*http.Request) string { return host }
	for i := range 10_000 {
		host = fmt.Sprint("host-", i, strings.Repeat("-", 300))
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
	}
	if list := tr.Caller.Targets(); len(list) != 1000 || list[0].Target != host[:300] || tr.Caller.Evicted() != 9_000 {
		t.Errorf("%d targets, the last %s, %d forgotten", len(list), list[0].Target, tr.Caller.Evicted())
	}
}

type roundTripperFunc func(int, *http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(0, r) }

// A panic of the base goes on, and the slot is given back. So it is with a body that is read ahead, in another goroutine.
func TestTransportPanics(t *testing.T) {
	for name, answer := range map[string]func(int, *http.Request) (*http.Response, error){
		"base": func(int, *http.Request) (*http.Response, error) { panic("base") },
		"body": func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{"Content-Type": problemType}, Body: panickingBody{}}, nil
		},
	} {
		own := newFakeGate(1)
		tr := transportOf(t, &sender{answer: answer}, throttle.CallerConfig{Limit: own})
		func() {
			defer func() {
				if got := recover(); got != name {
					t.Errorf("%s: a panic of %v", name, got)
				}
			}()
			_, _ = tr.RoundTrip(request(t, "GET", ""))
		}()
		if own.held() != 0 {
			t.Errorf("%s: %d slots held", name, own.held())
		}
	}
}

type panickingBody struct{}

func (panickingBody) Read([]byte) (int, error) { panic("body") }
func (panickingBody) Close() error             { return nil }

// The server gets the right headers.
func TestTransportTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{answer: say(503, "")}
		tr := transportOf(t, s, throttle.CallerConfig{})
		tr.Work = func(_ *http.Request, w *weir.Work) { w.Priority = weir.Background }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := request(t, "GET", "").WithContext(ctx)
		r.Header.Set(AttemptHeader, "17") // nobody else's
		r.Header.Set("X-Envoy-Attempt-Count", "18")
		r.Header.Set("Grpc-Previous-Rpc-Attempts", "19")
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range s.sent {
			got = append(got, fmt.Sprint(r.Header[AttemptHeader], r.Header[TimeoutHeader], r.Header[PriorityHeader]))
			if n := len(r.Header["X-Envoy-Attempt-Count"]) + len(r.Header["Grpc-Previous-Rpc-Attempts"]); n != 0 {
				t.Errorf("somebody else's attempts went on: %v", r.Header)
			}
		}
		want := []string{"[] [1] [background]", "[1] [0.91] [background]", "[2] [0.73] [background]"}
		if !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		if r.Header.Get(AttemptHeader) != "17" || len(r.Header) != 3 {
			t.Errorf("the caller's request was changed: %v", r.Header)
		}
		moment, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
		defer cancel()
		if _, err := tr.RoundTrip(request(t, "GET", "").WithContext(moment)); err != nil {
			t.Fatal(err)
		}
		if got := s.sent[len(s.sent)-1].Header.Get(TimeoutHeader); got != "0.001" {
			t.Errorf("told %q with half a millisecond left", got)
		}
		tr.Quiet = true
		sent := len(s.sent)
		if _, err := tr.RoundTrip(request(t, "PUT", "hello")); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.sent[sent:] {
			if len(r.Header) != 0 {
				t.Errorf("told quietly: %v", r.Header)
			}
		}
		if n := len(s.sent) - sent; n != 3 {
			t.Errorf("%d attempts quietly", n)
		}
	})
}

// The server is never told of more time than there is, whatever the request or the hook says.
func TestTransportTellsNoMoreTime(t *testing.T) {
	for _, tt := range []struct{ said, want string }{
		{"", "2"}, {"1.5", "1.5"}, {"500ms", "500ms"}, {"30", "2"}, {"1m", "2"}, {"0", "2"}, {"-1", "2"}, {"NaN", "2"}, {"soon", "2"},
	} {
		t.Run(tt.said, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sender{answer: say(200, "")}
				tr := transportOf(t, s, throttle.CallerConfig{})
				tr.Work = func(_ *http.Request, w *weir.Work) { w.Deadline = time.Now().Add(time.Hour) }
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				r := request(t, "GET", "").WithContext(ctx)
				if tt.said != "" {
					r.Header.Set(TimeoutHeader, tt.said)
				}
				if _, err := tr.RoundTrip(r); err != nil {
					t.Fatal(err)
				}
				if got := s.sent[0].Header[TimeoutHeader]; !slices.Equal(got, []string{tt.want}) {
					t.Errorf("told %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A hook cannot remove the deadline: a wait beyond it ends the call at once.
func TestTransportKeepsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{answer: say(503, "", "Retry-After", "10")}
		tr := transportOf(t, s, throttle.CallerConfig{})
		tr.Work = func(_ *http.Request, w *weir.Work) { *w = weir.Work{} }
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		resp, err := tr.RoundTrip(request(t, "GET", "").WithContext(ctx))
		if err != nil || resp.StatusCode != 503 || time.Since(began) != 0 {
			t.Errorf("%v, %v after %v", resp, err, time.Since(began))
		}
	})
}

// An earlier deadline of the work ends the request in flight, and its body too. The context ends with the body.
func TestTransportEndsAtItsDeadline(t *testing.T) {
	bodies := map[string]func(*http.Request) io.ReadCloser{
		"empty": func(*http.Request) io.ReadCloser { return http.NoBody },
		"body":  func(r *http.Request) io.ReadCloser { return &endless{ctx: r.Context()} },
		"connection": func(r *http.Request) io.ReadCloser {
			return struct {
				io.ReadCloser
				io.Writer
			}{&endless{ctx: r.Context()}, io.Discard}
		},
	}
	for name, body := range bodies {
		for _, end := range []string{"no answer", "failure", "closed", "deadline"} {
			synctest.Test(t, func(t *testing.T) {
				s := &sender{answer: func(_ int, r *http.Request) (*http.Response, error) {
					switch end {
					case "no answer":
						<-r.Context().Done()
						return nil, r.Context().Err()
					case "failure":
						return nil, io.ErrUnexpectedEOF
					}
					return &http.Response{StatusCode: 200, Body: body(r)}, nil
				}}
				tr := transportOf(t, s, throttle.CallerConfig{})
				tr.Work = func(_ *http.Request, w *weir.Work) { w.Deadline = time.Now().Add(time.Second) }
				began := time.Now()
				resp, err := tr.RoundTrip(request(t, "POST", "")) // a POST is not tried again
				switch {
				case end == "no answer":
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s, %s: %v", name, end, err)
					}
				case end == "failure":
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("%s, %s: %v", name, end, err)
					}
				case err != nil:
					t.Fatalf("%s, %s: %v", name, end, err)
				case end == "deadline" && name != "empty":
					if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s, %s: the body ended with %v", name, end, err)
					}
				default:
					_ = resp.Body.Close()
				}
				want := time.Second
				if end == "closed" || end == "failure" || end == "deadline" && name == "empty" {
					want = 0
				}
				if took := time.Since(began); took != want || s.sent[0].Context().Err() == nil {
					t.Errorf("%s, %s: it took %v, want %v, and the context ended with %v", name, end, took, want, s.sent[0].Context().Err())
				}
			})
		}
	}
}

// The type of a context may not be comparable.
func TestTransportComparesNoContexts(t *testing.T) {
	type labelled struct {
		context.Context
		labels map[string]string
	}
	tr := transportOf(t, &sender{answer: func(_ int, r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	}}, throttle.CallerConfig{})
	r := request(t, "GET", "")
	if _, err := tr.RoundTrip(r.WithContext(labelled{r.Context(), map[string]string{}})); err != nil {
		t.Error(err)
	}
}

// endless is a body that ends with its context.
type endless struct{ ctx context.Context }

func (e *endless) Read([]byte) (int, error) { <-e.ctx.Done(); return 0, e.ctx.Err() }
func (e *endless) Close() error             { return nil }

// In a handler, calls have the deadline and at most the priority of the request that the handler serves.
func TestTransportInAHandler(t *testing.T) {
	for _, tt := range []struct {
		came, wanted weir.Priority
		want         string
	}{
		{weir.Normal, weir.Critical, "normal"},
		{weir.Background, weir.Normal, "background"},
		{weir.High, weir.Background, "background"},
		{weir.High, weir.Normal, "normal"},
		{weir.Critical, weir.Critical, "critical"},
	} {
		s, own := &sender{answer: say(200, "")}, newFakeGate(1)
		tr := transportOf(t, s, throttle.CallerConfig{Limit: own})
		tr.Work = func(_ *http.Request, w *weir.Work) { w.Priority = tt.wanted }
		deadline := time.Now().Add(time.Minute)
		h := Middleware(newFakeGate(1), WithWork(func(_ *http.Request, w *weir.Work) {
			w.Priority, w.Deadline = tt.came, deadline
		}))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, err := tr.RoundTrip(request(t, "GET", "").WithContext(r.Context())); err != nil {
				t.Error(err)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if got := s.sent[0].Header.Get(PriorityHeader); got != tt.want {
			t.Errorf("%v came in and %v is wanted: sent %q, want %q", tt.came, tt.wanted, got, tt.want)
		}
		if got := own.works[0].Priority.String(); got != tt.want {
			t.Errorf("%v came in and %v is wanted: the client's own gate was told %q, want %q", tt.came, tt.wanted, got, tt.want)
		}
		if s.sent[0].Header.Get(TimeoutHeader) == "" {
			t.Error("the deadline that came in is not told")
		}
	}
}

// The handler's context carries the priority of the request and the scope of the handler: to gates of this
// process, to a client's own gates and to the server. A stranger's work never has a higher priority than it
// came with.
func TestHandlersPassOn(t *testing.T) {
	same := func(ctx context.Context) context.Context { return ctx }
	at := func(p weir.Priority) func(context.Context) context.Context {
		return func(ctx context.Context) context.Context { return weir.WithPriority(ctx, p) }
	}
	for _, tt := range []struct {
		name   string
		came   weir.Priority
		scope  func(context.Context) context.Context
		want   weir.Priority
		exempt bool
	}{
		{"nothing said", weir.Normal, same, weir.Normal, false},
		{"important", weir.Critical, same, weir.Critical, false},
		{"unimportant", weir.Background, same, weir.Background, false},
		{"lowered for a scope", weir.High, at(weir.Background), weir.Background, false},
		{"raised for a scope", weir.Normal, at(weir.Critical), weir.Normal, false},
		{"exempt for a scope", weir.Normal, weir.WithExempt, weir.Normal, true},
	} {
		nested, own := newFakeGate(1), newFakeGate(1)
		s := &sender{answer: say(200, "")}
		tr := transportOf(t, s, throttle.CallerConfig{Limit: own})
		deadline := time.Now().Add(time.Minute)
		h := Middleware(newFakeGate(1), WithWork(func(_ *http.Request, w *weir.Work) {
			w.Priority, w.Deadline, w.Exempt = tt.came, deadline, true
		}))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ctx := tt.scope(r.Context())
			_, nestedErr := weir.All(nested, weir.All()).Admit(ctx, weir.Work{})
			if _, err := tr.RoundTrip(request(t, "GET", "").WithContext(ctx)); err != nil || nestedErr != nil {
				t.Error(err, nestedErr)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		for where, g := range map[string]*fakeGate{"nested": nested, "the client's own": own} {
			if w := g.works[0]; w.Priority != tt.want || w.Exempt != tt.exempt || !w.Deadline.Equal(deadline) {
				t.Errorf("%s, %s: %v, exempt %v, until %v; want %v, %v, %v", tt.name, where, w.Priority, w.Exempt, w.Deadline, tt.want, tt.exempt, deadline)
			}
		}
		if got := s.sent[0].Header; got.Get(PriorityHeader) != tt.want.String() || len(got) != 2 || got.Get(TimeoutHeader) == "" {
			t.Errorf("%s: sent %v, want priority %v and a time-out, and nothing else", tt.name, got, tt.want)
		}
	}
}

// A scope outside of any request is sent as it is.
func TestTransportInAScope(t *testing.T) {
	s := &sender{answer: say(200, "")}
	tr := transportOf(t, s, throttle.CallerConfig{})
	if _, err := tr.RoundTrip(request(t, "GET", "").WithContext(weir.WithPriority(t.Context(), weir.Critical))); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.RoundTrip(request(t, "GET", "").WithContext(weir.WithPriority(t.Context(), 127))); err != nil {
		t.Fatal(err)
	}
	for _, r := range s.sent {
		if got := r.Header.Get(PriorityHeader); got != "critical" {
			t.Errorf("sent %q", got)
		}
	}
}

// The hook is told which address has refused.
func TestTransportNamesTheRefuser(t *testing.T) {
	var heard []string
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		WriteRejectionTo(w, r, &weir.Rejection{Reason: weir.ReasonShed}, nil)
	})
	srv := serve(t, "HTTP/1.1", h)
	tr := transportOf(t, nil, throttle.CallerConfig{})
	tr.Base = srv.Client().Transport
	tr.Refused = func(_ *http.Request, address string) { heard = append(heard, address) }
	defer tr.CloseIdleConnections()
	read(&http.Client{Transport: tr}, srv.URL)
	if want := strings.TrimPrefix(srv.URL, "http://"); !slices.Equal(heard, []string{want}) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// The zero Transport calls a real server with a gate. Requests that are refused at first are served in the end,
// and the attempts are counted.
func TestTransportBeforeMiddleware(t *testing.T) {
	for _, protocol := range protocols {
		gate := newFakeGate(1)
		gate.refuse = &weir.Rejection{Gate: "shop", Reason: weir.ReasonQueueFull, Retryable: true}
		var told []string
		mw := Middleware(gate, WithWork(func(r *http.Request, _ *weir.Work) {
			if told = append(told, r.Header.Get(AttemptHeader)); len(told) == 2 {
				gate.mu.Lock()
				defer gate.mu.Unlock()
				gate.refuse = nil
			}
		}))
		srv := serve(t, protocol, mw(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
		caller, err := throttle.NewCaller(throttle.CallerConfig{Retry: throttle.Retry{Backoff: time.Millisecond}, Guard: throttle.NoGuard})
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &Transport{Base: srv.Client().Transport, Caller: caller}}
		resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "hello" || !slices.Equal(told, []string{"", "1"}) {
			t.Errorf("%s: %q, %v, attempts %q", protocol, body, err, told)
		}
		client.CloseIdleConnections()
	}
	srv := serve(t, "HTTP/1.1", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	client := &http.Client{Transport: &Transport{}}
	mustGet(t, client, srv.URL)
	client.CloseIdleConnections()
}

// If a handler passes on the refusal of a gate that it called, its work has begun, and a POST is not done
// twice. If a gate before the handler refuses, the work has not begun.
func TestTransportKnowsWhatHasBegun(t *testing.T) {
	full := newFakeGate(0)
	full.refuse = &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: time.Millisecond}
	var done int
	byHandler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done++ // what must not be done twice
		_, err := full.Admit(r.Context(), weir.Work{})
		WriteRejection(w, r, weir.AsRejection(err))
	})
	toPeer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done++
		WriteRejectionTo(w, r, weir.AsRejection(full.refuse), &weir.Work{})
	})
	open := newFakeGate(1)
	guard, selects := NewGuard(), WithSelect(func(*http.Request) (weir.Gate, weir.Work) { return open, weir.Work{} })
	noTarget := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guard.Serve(w, r, open, weir.Work{}, func(w http.ResponseWriter, r *http.Request, _ *Request) {
			WriteRejectionTo(w, r, weir.AsRejection(full.refuse), nil)
		})
	})
	front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		WriteRejectionTo(w, r, weir.AsRejection(full.refuse), nil)
	})
	for _, tt := range []struct {
		name, method string
		handler      http.Handler
		attempts     int
		done         int
	}{
		{"the handler, a POST", "POST", Middleware(open)(byHandler), 1, 1},
		{"the handler, a GET", "GET", Middleware(open)(byHandler), 3, 3},
		{"the handler to a trusted peer, a POST", "POST", Middleware(open)(toPeer), 1, 1},
		{"the handler, with a gate that was selected", "POST", Middleware(nil, selects)(byHandler), 1, 1},
		{"a proxy without a free target", "POST", noTarget, 3, 0},
		{"a gate before the handler", "POST", Middleware(full)(byHandler), 3, 0},
		{"a gate before the handler, behind another", "POST", Middleware(open)(Middleware(full)(byHandler)), 3, 0},
		{"a handler without a middleware", "POST", byHandler, 1, 1},
		{"a front of one's own", "POST", front, 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done = 0
				s := &sender{answer: func(int, *http.Request) (*http.Response, error) {
					w := httptest.NewRecorder()
					tt.handler.ServeHTTP(w, httptest.NewRequest(tt.method, "/", nil))
					return w.Result(), nil
				}}
				tr := transportOf(t, s, throttle.CallerConfig{})
				if _, err := tr.RoundTrip(request(t, tt.method, "")); err != nil || len(s.sent) != tt.attempts || done != tt.done {
					t.Errorf("%v: %d attempts, done %d times; want %d and %d", err, len(s.sent), done, tt.attempts, tt.done)
				}
			})
		})
	}
}

// A server that cannot be reached is overload, and safe to try again.
func TestTransportWithoutAServer(t *testing.T) {
	const url = "http://127.0.0.1:1" // a port that no test gets
	caller, err := throttle.NewCaller(throttle.CallerConfig{Retry: throttle.Retry{Backoff: time.Millisecond}, Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 3}})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &Transport{Caller: caller}}
	if _, err := client.Post(url, "text/plain", strings.NewReader("hello")); err == nil || weir.AsRejection(err) != nil {
		t.Errorf("%v", err)
	}
	if _, err := client.Get(url); weir.AsRejection(err) == nil {
		t.Errorf("%v, want a refusal by the breaker after three attempts", err)
	}
}

// A stream that the server has refused is overload, and was not begun. Another reset is a broken connection.
func TestTransportOfRefusedStreams(t *testing.T) {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	resets := func(c net.Conn, code byte) { // a server that resets each stream
		frames := make(chan []byte, 100) // a pipe has no buffer
		go func() {
			for f := range frames {
				_, _ = c.Write(f)
			}
		}()
		defer close(frames)
		frames <- []byte{0, 0, 0, 4, 0, 0, 0, 0, 0} // its settings
		_, err := io.ReadFull(c, make([]byte, len(preface)))
		for err == nil {
			var head [9]byte
			if _, err = io.ReadFull(c, head[:]); err != nil {
				return
			}
			if head[3] == 1 { // the header of a request
				frames <- []byte{0, 0, 4, 3, 0, head[5], head[6], head[7], head[8], 0, 0, 0, code}
			}
			_, err = io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		}
	}
	for code, want := range map[byte]throttle.Answer{
		7: {Outcome: weir.Overload, Transient: true, Unstarted: true, Final: true}, // net/http has tried again, and often
		8: {Outcome: weir.Failed, Transient: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var both http.Protocols
			both.SetUnencryptedHTTP2(true)
			base := &http.Transport{Protocols: &both, DialContext: func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				go resets(server, code)
				return client, nil
			}}
			r := request(t, "POST", "hello")
			resp, err := base.RoundTrip(r)
			if err == nil {
				t.Fatalf("reset with %d: %s", code, resp.Status)
			}
			if got := answerTo(t.Context(), r, nil, fmt.Errorf("traced: %w", err)); got != want {
				t.Errorf("reset with %d: %v gives %+v, want %+v", code, err, got, want)
			}
			base.CloseIdleConnections()
		})
	}
}

// An untrusted certificate, and a server without TLS, stay so on the next connection. A connection that breaks
// in the handshake may succeed next time.
func TestTransportTrustsNobodyLater(t *testing.T) {
	const behindProxy = "shop.invalid"
	quiet := log.New(io.Discard, "", 0) // the servers log each failed handshake
	secure, plain := httptest.NewUnstartedServer(http.NotFoundHandler()), httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	says := func(greeting string) string { // the address of a server that sends this to each client
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 1)) // of the handshake
				_, _ = io.WriteString(c, greeting)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
		return "https://" + l.Addr().String()
	}
	for _, tt := range []struct {
		name, url string
		config    *tls.Config
		dials     int32
	}{
		{"an authority that nobody knows", secure.URL, &tls.Config{}, 1},
		{"another name", secure.URL, &tls.Config{RootCAs: roots, ServerName: "shop.invalid"}, 1},
		{"expired", secure.URL, &tls.Config{RootCAs: roots, Time: func() time.Time { return time.Now().AddDate(200, 0, 0) }}, 1},
		{"a check of the user's", secure.URL, &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: x509.NewCertPool()})
			return err
		}}, 1},
		{"HTTP", strings.Replace(plain.URL, "http:", "https:", 1), &tls.Config{}, 1},
		{"SSH", says("SSH-2.0-OpenSSH_9.2\r\n"), &tls.Config{}, 1},
		{"a proxy", "http://" + behindProxy, &tls.Config{}, 1},
		{"a connection that breaks", says(""), &tls.Config{}, 3},
	} {
		var dials atomic.Int32
		base := &http.Transport{TLSClientConfig: tt.config, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}, Proxy: func(r *http.Request) (*url.URL, error) {
			if r.URL.Host == behindProxy {
				return url.Parse(secure.URL)
			}
			return nil, nil
		}}
		client := &http.Client{Transport: transportOf(t, base, throttle.CallerConfig{Retry: throttle.Retry{Backoff: time.Millisecond}})}
		if resp, err := client.Get(tt.url); err == nil {
			t.Errorf("%s: %s", tt.name, resp.Status)
		}
		if got := dials.Load(); got != tt.dials {
			t.Errorf("%s: %d connections, want %d", tt.name, got, tt.dials)
		}
		base.CloseIdleConnections()
	}
}

// If net/http does not send a request because of its content, there is no second attempt, and the server is not
// blamed. Where net/http has a connection by then, its error may be that the connection is closed.
func TestTransportOfWhatCannotBeSent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	modern := serve(t, "HTTP/2.0", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	sent := func(r *http.Request) error {
		_, err := base.RoundTrip(r)
		return err
	}
	traced := func(r *http.Request) error { return fmt.Errorf("traced: %w", sent(r)) }
	joined := func(r *http.Request) error { return errors.Join(errors.New("traced"), sent(r)) }
	closed := func(*http.Request) error { return fmt.Errorf("read tcp: %w", net.ErrClosed) }
	hello := func(url string, length int64) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = length
		return r
	}
	says := func(length int64) func(*http.Request) error {
		return func(*http.Request) error { return hello(server.URL, length).Write(io.Discard) }
	}
	saysOverHTTP2 := func(*http.Request) error {
		_, err := modern.Client().Transport.RoundTrip(hello(modern.URL, 3))
		return err
	}
	proxied := func(r *http.Request) error { return r.WriteProxy(io.Discard) }
	for _, tt := range []struct {
		name   string
		spoil  func(*http.Request)
		answer func(*http.Request) error
		blamed bool
	}{
		{"a scheme", func(r *http.Request) { r.URL.Scheme = "rstp" }, joined, false},
		{"no host", func(r *http.Request) { r.URL.Host = "" }, traced, false},
		{"no URL", func(r *http.Request) { r.URL = nil }, joined, false},
		{"a method", func(r *http.Request) { r.Method = "GE T" }, traced, false},
		{"a header's name", func(r *http.Request) { r.Header["X A"] = []string{"a"} }, joined, false},
		{"a header's value", func(r *http.Request) { r.Header["X-A"] = []string{"a\nb"} }, traced, false},
		{"a path", func(r *http.Request) { r.URL.Opaque = "/a\nb" }, joined, false},
		{"a path, closed", func(r *http.Request) { r.URL.Opaque = "/a\nb" }, closed, false},
		{"a query, closed", func(r *http.Request) { r.URL.RawQuery = "\x7f" }, closed, false},
		{"a length without a body", func(r *http.Request) { r.ContentLength = 7 }, traced, false},
		{"a length without a body, closed", func(r *http.Request) { r.ContentLength = 7 }, closed, false},
		{"a trailer", func(r *http.Request) { r.Trailer = http.Header{"X-A": {"a\nb"}} }, traced, false},
		{"a host for a proxy", func(r *http.Request) { r.Host = "a b" }, proxied, false},
		{"a body that is too short", func(*http.Request) {}, says(7), false},
		{"a body that is too long", func(*http.Request) {}, says(3), false},
		{"a body that is too long, over HTTP/2", func(*http.Request) {}, saysOverHTTP2, false},
		{"nothing, closed", func(*http.Request) {}, closed, true},
	} {
		s := &sender{answer: func(_ int, r *http.Request) (*http.Response, error) { return nil, tt.answer(r) }}
		tr := transportOf(t, s, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}, Retry: throttle.Retry{Backoff: time.Millisecond}})
		tr.Safe = func(*http.Request) bool { return true }
		r, to := request(t, "GET", ""), *at
		r.URL = &to
		tt.spoil(r)
		_, err := tr.RoundTrip(r)
		guard := tr.Caller.Targets()[0].Guard
		if blamed := guard.Limit != -1; blamed != tt.blamed || len(s.sent) != 1 || guard.InFlight != 0 || !blamed && guard.Outcomes[weir.NoSample] != 1 {
			t.Errorf("%s: %v after %d attempts, the guard %+v", tt.name, err, len(s.sent), guard)
		}
	}
}

// If the body of a request cannot be read, that is no fault of the server: it may be a stranger's body, which is
// passed on. After the body was closed, or if the server fails in another way, it is.
func TestTransportOfABodyThatFails(t *testing.T) {
	leave := func() {}
	fails := func(fail func(*http.Request, error) error) http.RoundTripper {
		return roundTripperFunc(func(_ int, r *http.Request) (*http.Response, error) {
			_, err := io.ReadAll(r.Body)
			return nil, fail(r, err)
		})
	}
	bodies := map[string]func() io.ReadCloser{
		"too large": func() io.ReadCloser { return http.MaxBytesReader(nil, io.NopCloser(strings.NewReader("hello")), 3) },
		"late": func() io.ReadCloser {
			return io.NopCloser(failing{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}})
		},
	}
	readsAll := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	over := func(protocol string) http.RoundTripper {
		srv := serve(t, protocol, readsAll)
		at, err := url.Parse(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		return roundTripperFunc(func(_ int, r *http.Request) (*http.Response, error) {
			there := *r
			there.URL = at
			return srv.Client().Transport.RoundTrip(&there)
		})
	}
	for _, tt := range []struct {
		name string
		base http.RoundTripper
		want weir.Outcome
	}{
		{"HTTP/1.1", over("HTTP/1.1"), weir.NoSample},
		{"HTTP/2.0", over("HTTP/2.0"), weir.NoSample},
		{"a wrapped error", fails(func(_ *http.Request, err error) error { return fmt.Errorf("traced: %w", err) }), weir.NoSample},
		{"another error", fails(func(*http.Request, error) error { return io.ErrUnexpectedEOF }), weir.Failed},
		{"a caller who leaves", fails(func(_ *http.Request, err error) error { leave(); return err }), weir.Abandoned},
		{"a body that was closed", roundTripperFunc(func(_ int, r *http.Request) (*http.Response, error) {
			_ = r.Body.Close()
			_, err := io.ReadAll(r.Body)
			return nil, err
		}), weir.Failed},
	} {
		for name, body := range bodies {
			for _, quiet := range []bool{false, true} {
				tr := transportOf(t, tt.base, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}})
				tr.Quiet = quiet
				tr.Safe = func(*http.Request) bool { return true }
				var ctx context.Context
				ctx, leave = context.WithCancel(t.Context())
				r, own := request(t, "POST", "").WithContext(ctx), body()
				r.Body = own
				_, err := tr.RoundTrip(r)
				guard, blamed := tr.Caller.Targets()[0].Guard, tt.want == weir.Failed
				if err == nil || guard.Limit != -1 != blamed || !blamed && guard.Outcomes[tt.want] != 1 || r.Body != own {
					t.Errorf("%s, %s, quiet %v: %v, outcomes %v, %s; want %v. The caller's body is the same: %v", tt.name, name, quiet, err, guard.Outcomes, guard.LimitReason, tt.want, r.Body == own)
				}
				leave()
			}
		}
	}
}

// strange is a body that does not come to an end before its deadline. As the body of a request that came in, it is
// closed only once its Read has ended.
type strange struct {
	comes, begun chan struct{}
	reads        sync.Mutex
}

func (b *strange) Read([]byte) (int, error) {
	b.reads.Lock()
	defer b.reads.Unlock()
	if b.begun != nil {
		close(b.begun)
	}
	<-b.comes
	return 0, os.ErrDeadlineExceeded
}

func (b *strange) Close() error {
	b.reads.Lock()
	defer b.reads.Unlock()
	return nil
}

// A stranger who does not send the rest of a body makes the call late. That is no fault of the server, and the
// permit does not wait for it. A server that does not read is at fault.
func TestTransportOfABodyThatDoesNotCome(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reads bool
		want  weir.Outcome
	}{{"the server reads", true, weir.NoSample}, {"the server does not read", false, weir.Overload}} {
		synctest.Test(t, func(t *testing.T) {
			tr := transportOf(t, roundTripperFunc(func(_ int, r *http.Request) (*http.Response, error) {
				if tt.reads {
					go func() { _, _ = io.ReadAll(r.Body) }()
				}
				<-r.Context().Done()
				_ = r.Body.Close()
				return nil, r.Context().Err()
			}), throttle.CallerConfig{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			body := &strange{comes: make(chan struct{})}
			r := request(t, "POST", "").WithContext(ctx)
			r.Body = body
			began := time.Now()
			_, err := tr.RoundTrip(r)
			guard := tr.Caller.Targets()[0].Guard
			if took := time.Since(began); err == nil || took != time.Second || guard.Outcomes[tt.want] != 1 || guard.InFlight != 0 {
				t.Errorf("%s: %v after %v, outcomes %v, %d in flight; want %v", tt.name, err, took, guard.Outcomes, guard.InFlight, tt.want)
			}
			close(body.comes)
		})
	}
}

// Over real connections, too, an attempt ends with its context, whoever still sends the body.
func TestTransportDoesNotWaitForABody(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		srv := serve(t, protocol, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		for _, length := range []int64{-1, 10} {
			tr := transportOf(t, srv.Client().Transport, throttle.CallerConfig{})
			ctx, leave := context.WithCancel(t.Context())
			body := &strange{comes: make(chan struct{}), begun: make(chan struct{})}
			r, err := http.NewRequestWithContext(ctx, "POST", srv.URL, body)
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = length
			returned := make(chan error, 1)
			go func() {
				_, err := tr.RoundTrip(r)
				returned <- err
			}()
			<-body.begun
			leave()
			select {
			case err := <-returned:
				if guard := tr.Caller.Targets()[0].Guard; !errors.Is(err, context.Canceled) || guard.InFlight != 0 {
					t.Errorf("%s, length %d: %v, %d in flight", protocol, length, err, guard.InFlight)
				}
			case <-time.After(time.Minute):
				t.Errorf("%s, length %d: it waits for the body", protocol, length)
			}
			close(body.comes)
		}
	}
}

// A panic of a body is one of whoever reads it, and what is read is what comes. After it was closed in a Read, it fails.
func TestOwnBody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	text := strings.Repeat("hello, ", 20_000)
	b := newOwnBody(ctx, &http.Request{Body: io.NopCloser(strings.NewReader(text))})
	if got, err := io.ReadAll(b); err != nil || string(got) != text {
		t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
	}
	comes, begun := make(chan struct{}), make(chan struct{})
	b = newOwnBody(ctx, &http.Request{Body: io.NopCloser(readerFunc(func(to []byte) (int, error) { close(begun); <-comes; return copy(to, "x"), nil }))})
	read := make(chan error)
	go func() {
		_, err := b.Read(make([]byte, 1))
		read <- err
	}()
	<-begun
	_ = b.Close()
	close(comes)
	if err := <-read; err != nil {
		t.Error(err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v from a body that is closed", n, err)
	}
	b = newOwnBody(ctx, &http.Request{Body: io.NopCloser(readerFunc(func([]byte) (int, error) { panic("body") }))})
	func() {
		defer func() {
			if p := recover(); p != "body" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = b.Read(make([]byte, 1))
	}()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(to []byte) (int, error) { return f(to) }

// If Refused panics, the response is closed.
func TestTransportWhoseRefusedPanics(t *testing.T) {
	body := &socket{Reader: strings.NewReader("")}
	tr := transportOf(t, roundTripperFunc(func(_ int, r *http.Request) (*http.Response, error) {
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{}) // a base of one's own may know no connection
		return &http.Response{StatusCode: 503, Header: http.Header{"X-Envoy-Overloaded": {"true"}}, Body: body}, nil
	}), throttle.CallerConfig{})
	tr.Refused = func(*http.Request, string) { panic("a hook's own") }
	func() {
		defer func() { _ = recover() }()
		_, _ = tr.RoundTrip(request(t, "GET", ""))
	}()
	if guard := tr.Caller.Targets()[0].Guard; guard.InFlight != 0 || !body.closed {
		t.Errorf("%d in flight, closed %v", guard.InFlight, body.closed)
	}
}

// In a handler, a priority in the headers may be a stranger's, which a proxy passes on. A client's own is left alone.
func TestTransportOfAStrangersPriority(t *testing.T) {
	for _, tt := range []struct {
		name string
		ctx  context.Context
		want string
	}{
		{"in a handler", context.WithValue(t.Context(), http.ServerContextKey, &http.Server{}), "normal"},
		{"a client", t.Context(), "critical"},
	} {
		s := &sender{answer: say(200, "")}
		r := request(t, "GET", "").WithContext(tt.ctx)
		r.Header.Set(PriorityHeader, "critical")
		if _, err := transportOf(t, s, throttle.CallerConfig{}).RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if got := s.sent[0].Header.Get(PriorityHeader); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// The end of its only probe decides about a breaker.
func TestTransportProbes(t *testing.T) {
	const open, halfOpen, closed = 0, 1, -1
	fails := func(err error) func(context.CancelFunc) (*http.Response, error) {
		return func(context.CancelFunc) (*http.Response, error) { return nil, err }
	}
	answers := func(status int, body io.ReadCloser) func(context.CancelFunc) (*http.Response, error) {
		return func(context.CancelFunc) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: body}, nil
		}
	}
	for _, tt := range []struct {
		name  string
		probe func(leave context.CancelFunc) (*http.Response, error)
		want  int64
	}{
		{"an answer, whose body nobody closes", answers(200, io.NopCloser(strings.NewReader("hello"))), closed},
		{"a quota", answers(429, http.NoBody), closed},
		{"overload", answers(503, http.NoBody), open},
		{"a broken connection", fails(io.ErrUnexpectedEOF), open},
		{"a time-out", fails(context.DeadlineExceeded), open},
		{"a connection that is switched to another protocol", answers(101, &socket{Reader: strings.NewReader("hello")}), closed},
		{"a caller who leaves", func(leave context.CancelFunc) (*http.Response, error) { leave(); return nil, io.ErrUnexpectedEOF }, halfOpen},
		{"a caller of the server's who has left", answers(499, http.NoBody), halfOpen},
		{"a panic", func(context.CancelFunc) (*http.Response, error) { panic("base") }, halfOpen},
	} {
		var now time.Duration
		probe := answers(503, http.NoBody)
		ctx, leave := context.WithCancel(t.Context())
		tr := transportOf(t, roundTripperFunc(func(int, *http.Request) (*http.Response, error) { return probe(leave) }), throttle.CallerConfig{
			Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1, Probes: 1}, Retry: throttle.Retry{Attempts: 1}, Now: func() time.Duration { return now },
		})
		send := func(ctx context.Context) {
			defer func() { _ = recover() }()
			_, _ = tr.RoundTrip(request(t, "GET", "").WithContext(ctx))
		}
		send(ctx)
		now, probe = 5*time.Second, tt.probe
		send(ctx)
		leave()
		guard := tr.Caller.Targets()[0].Guard
		if guard.Limit != tt.want {
			t.Errorf("%s: %s", tt.name, guard.LimitReason)
		}
		probe = answers(200, http.NoBody)
		if send(t.Context()); tt.want == halfOpen && tr.Caller.Targets()[0].Guard.Limit != closed {
			t.Errorf("%s: no place for another probe: %s", tt.name, tr.Caller.Targets()[0].Guard.LimitReason)
		}
	}
}

// Many calls at once reach a server that refuses, stalls and hangs up, and many callers give up. No slot is
// lost, and no retry stays charged that was not sent.
func TestTransportStorm(t *testing.T) {
	for _, protocol := range protocols {
		var n atomic.Int32
		srv := serve(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch n.Add(1) % 6 {
			case 0:
				WriteRejectionTo(w, r, &weir.Rejection{Gate: "shop", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: time.Millisecond}, nil)
			case 1:
				w.Header()["Content-Type"] = problemType
				w.WriteHeader(http.StatusServiceUnavailable)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done() // the document never comes
			case 2:
				panic(http.ErrAbortHandler)
			case 3:
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			default:
				_, _ = io.Copy(w, r.Body)
			}
		}))
		own := newFakeGate(8)
		caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Limit: own, Guard: throttle.NoGuard,
			Budget: throttle.BudgetConfig{Ratio: 1}, Retry: throttle.Retry{Backoff: time.Millisecond, MaxBackoff: time.Millisecond}}))
		client := &http.Client{Transport: &Transport{Base: srv.Client().Transport, Caller: caller}}
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if i%4 == 0 {
					time.AfterFunc(time.Duration(i)*100*time.Microsecond, leave)
				}
				r, err := http.NewRequestWithContext(ctx, http.MethodPut, srv.URL, strings.NewReader("hello"))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := client.Do(r)
				if err != nil {
					return
				}
				if i%3 > 0 {
					late := time.AfterFunc(patience, leave) // a document that never comes
					_, _ = io.Copy(io.Discard, resp.Body)
					late.Stop()
				}
				_ = resp.Body.Close()
			})
		}
		callers.Wait()
		if own.held() != 0 {
			t.Errorf("%s: %d slots held", protocol, own.held())
		}
		client.CloseIdleConnections()
	}
}

// A scope within the handler of a request lowers what is told to the server, too.
func TestTransportInANarrowerScope(t *testing.T) {
	for _, tt := range []struct {
		ctx  context.Context
		want string
	}{
		{weir.WithPriority(t.Context(), weir.Background), "background"},
		{weir.WithPriority(weir.WithReceived(t.Context(), weir.Work{Priority: weir.High}), weir.Background), "background"},
		{weir.WithPriority(t.Context(), weir.Critical), "high"},
	} {
		s, own := &sender{answer: say(200, "")}, newFakeGate(1)
		tr := transportOf(t, s, throttle.CallerConfig{Limit: own})
		tr.Work = func(_ *http.Request, w *weir.Work) { w.Priority = weir.High }
		if _, err := tr.RoundTrip(request(t, "GET", "").WithContext(tt.ctx)); err != nil {
			t.Fatal(err)
		}
		if got, told := s.sent[0].Header.Get(PriorityHeader), own.works[0].Priority.String(); got != tt.want || told != tt.want {
			t.Errorf("sent %q, and the client's own gate was told %q, want %q", got, told, tt.want)
		}
	}
}

// A body that is dropped is found, and named by the line that made the request.
func TestTransportFindsLeaks(t *testing.T) {
	found := make(chan string, 1)
	own := weir.Must(limit.New(limit.Config{Limit: 1, FindLeaks: true, Hooks: weir.Hooks{Leaked: func(_, site string) { found <- site }}}))
	defer own.Close()
	client := &http.Client{Transport: transportOf(t, &sender{answer: say(200, "a body")}, throttle.CallerConfig{Limit: own})}
	drop(t, client)
	var site string
	for site == "" {
		runtime.GC()
		select {
		case site = <-found:
		default:
		}
	}
	if !strings.Contains(site, "weirhttp.drop") {
		t.Errorf("leaked at %s", site)
	}
}

//go:noinline
func drop(t *testing.T, c *http.Client) {
	if _, err := c.Get("http://shop.test/"); err != nil {
		t.Error(err)
	}
}

// A time-out of http.Client is overload, also where its timer is ahead of the context's. None counts as accepted.
func TestTransportUnderAClientsTimeout(t *testing.T) {
	hangs := make(chan struct{})
	srv := serve(t, "HTTP/1.1", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-hangs:
		}
	}))
	defer close(hangs)
	outcomes := map[weir.Outcome]int{}
	tr := transportOf(t, srv.Client().Transport, throttle.CallerConfig{Retry: throttle.Retry{Attempts: 1}, Random: func() float64 { return 1 },
		Hooks: weir.Hooks{Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes[o]++ }}})
	client := &http.Client{Transport: tr, Timeout: 5 * time.Millisecond}
	for range 50 {
		if resp, err := client.Get(srv.URL); err == nil {
			t.Fatal(resp.Status)
		}
	}
	if outcomes[weir.Failed] != 0 || outcomes[weir.OK] != 0 {
		t.Errorf("outcomes %v", outcomes)
	}
}

// If this process refuses a retry, the error says what became of the attempt before.
func TestTransportSaysWhatWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportOf(t, &sender{answer: say(503, "")}, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}})
		_, err := tr.RoundTrip(request(t, "GET", ""))
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonThrottled || !strings.Contains(err.Error(), "attempt 1: was answered 503") {
			t.Error(err)
		}
		tr = transportOf(t, &sender{answer: func(int, *http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }}, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}})
		_, err = tr.RoundTrip(request(t, "GET", ""))
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonThrottled || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	})
}
