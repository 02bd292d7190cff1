package weirhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

func TestOutcomes(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    weir.Outcome
	}{
		{"nothing written", func(http.ResponseWriter, *http.Request) {}, weir.OK},
		{"body only", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") }, weir.OK},
		{"404", status(404), weir.OK},
		{"500", status(500), weir.Failed},
		{"503", status(503), weir.Overload},
		{"early hints, then 502", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(502)
		}, weir.Failed},
		{"panic", func(http.ResponseWriter, *http.Request) { panic("on purpose") }, weir.Failed},
		{"abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, weir.Failed},
		{"goexit", func(http.ResponseWriter, *http.Request) { runtime.Goexit() }, weir.Failed},
		{"panic after the answer began", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			panic(http.ErrAbortHandler)
		}, weir.OK},
		{"sampled by the handler", func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).Sample(weir.Overload)
			w.WriteHeader(200)
		}, weir.Overload},
		{"held back", func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).HoldSample()
			io.WriteString(w, "hi")
			FromContext(r.Context()).Sample(weir.Overload)
		}, weir.Overload},
		{"held back for good", func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).HoldSample()
			w.WriteHeader(500)
		}, weir.OK},
		{"out of time", func(w http.ResponseWriter, r *http.Request) {
			panic(http.ErrAbortHandler) // the deadline below has passed by then
		}, weir.Overload},
	}
	for _, protocol := range protocols {
		for _, tt := range tests {
			t.Run(protocol+"/"+tt.name, func(t *testing.T) {
				g := newFakeGate(1)
				h := Middleware(g)(tt.handler)
				if tt.name == "out of time" {
					h = expired(h)
				}
				srv := serve(t, protocol, h)
				if resp, err := srv.Client().Get(srv.URL); err == nil {
					resp.Body.Close()
				}
				g.settled(1)
				if got := g.outcomes(); len(got) != 1 || got[0] != tt.want {
					t.Errorf("outcomes %v, want [%v]", got, tt.want)
				}
			})
		}
	}
}

// expired gives requests a deadline that passes once they are admitted.
func expired(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := &lateContext{Context: r.Context()}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// lateContext is a context past its deadline whose Done channel stays open.
type lateContext struct{ context.Context }

func (lateContext) Err() error { return context.DeadlineExceeded }

func TestClientThatLeavesBeforeTheAnswer(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			g := newFakeGate(1)
			entered := make(chan struct{})
			srv := serve(t, protocol, Middleware(g)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(entered)
				<-r.Context().Done()
				w.WriteHeader(http.StatusBadGateway) // as a proxy does
			})))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-entered
				cancel()
			}()
			req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
			if _, err := srv.Client().Do(req); !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v", err)
			}
			g.settled(1)
			if got := g.outcomes(); !slices.Equal(got, []weir.Outcome{weir.Abandoned}) {
				t.Errorf("outcomes %v", got)
			}
		})
	}
}

func TestClientThatLeavesTheWaitRoom(t *testing.T) {
	for _, protocol := range protocols {
		for _, body := range []string{"", "small"} {
			t.Run(protocol+"/body "+body, func(t *testing.T) {
				g := newFakeGate(0)
				refused := make(chan *weir.Rejection, 1)
				srv := serve(t, protocol, Middleware(g, WithBufferedBody(1<<10),
					WithRejection(func(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
						WriteRejection(w, r, rej)
						refused <- rej
					}))(http.NotFoundHandler()))
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					g.await(func() bool { return g.waiting == 1 })
					cancel()
				}()
				req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL, strings.NewReader(body))
				if _, err := srv.Client().Do(req); !errors.Is(err, context.Canceled) {
					t.Fatalf("got %v", err)
				}
				if rej := <-refused; rej.Reason != weir.ReasonCanceled || Status(rej) != StatusClientClosed {
					t.Errorf("rejection %v", rej)
				}
			})
		}
	}
}

func TestRefusalReachesTheClient(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			g := newFakeGate(0)
			g.refuse = fmt.Errorf("wrapped: %w", &weir.Rejection{Gate: "api", Reason: weir.ReasonShed, Retryable: true})
			srv := serve(t, protocol, Middleware(g)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				t.Error("the handler ran")
			})))
			resp, body := mustGet(t, srv.Client(), srv.URL)
			if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, `"reason":"shed"`) {
				t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
			}
		})
	}
}

func TestErrorsOfForeignGates(t *testing.T) {
	tests := []struct {
		err    error
		status int
	}{
		{context.Canceled, StatusClientClosed},
		{context.DeadlineExceeded, 503},
		{errors.New("secret"), 503},
	}
	for _, tt := range tests {
		g := newFakeGate(0)
		g.refuse = tt.err
		srv := serve(t, "HTTP/1.1", Middleware(g)(http.NotFoundHandler()))
		resp, body := mustGet(t, srv.Client(), srv.URL)
		if resp.StatusCode != tt.status || strings.Contains(body, "secret") {
			t.Errorf("%v: %d %s", tt.err, resp.StatusCode, body)
		}
	}
}

func TestWorkAndSelect(t *testing.T) {
	byMethod, fallback := newFakeGate(1), newFakeGate(1)
	mux := http.NewServeMux()
	mux.Handle("GET /cart/{id}", Middleware(fallback, WithWork(func(r *http.Request, w *weir.Work) {
		w.Tenant = r.PathValue("id")
	}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != "7" {
			t.Errorf("path value %q", r.PathValue("id"))
		}
	})))
	selected := Middleware(fallback, WithSelect(func(r *http.Request) (weir.Gate, weir.Work) {
		if r.Method == "POST" {
			return byMethod, weir.Work{Op: "post"}
		}
		return nil, weir.Work{}
	}))
	mux.Handle("/selected", selected(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, FromContext(r.Context()) != nil)
	})))
	srv := serve(t, "HTTP/1.1", mux)
	mustGet(t, srv.Client(), srv.URL+"/cart/7")
	if _, body := mustGet(t, srv.Client(), srv.URL+"/selected"); body != "false" {
		t.Errorf("ungated request has a handle")
	}
	resp, err := srv.Client().Post(srv.URL+"/selected", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if w := fallback.works; len(w) != 1 || w[0].Op != "GET /cart/{id}" || w[0].Tenant != "7" {
		t.Errorf("works %+v", w)
	}
	if w := byMethod.works; len(w) != 1 || w[0].Op != "post" {
		t.Errorf("works %+v", w)
	}
}

// A handler that calls through the same gate would wait for itself.
func TestNestedCallTakesNoSecondSlot(t *testing.T) {
	g := newFakeGate(1)
	srv := serve(t, "HTTP/1.1", Middleware(g)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		err := weir.Do(ctx, g, weir.Work{}, func(context.Context) error {
			_, err := io.WriteString(w, "nested")
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})))
	if _, body := mustGet(t, srv.Client(), srv.URL); body != "nested" {
		t.Errorf("body %q", body)
	}
	g.settled(1)
}

func TestHandlersShareWhatTheyFoundOut(t *testing.T) {
	var file string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /form", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(0); err != nil {
			t.Error(err)
			return
		}
		f, err := r.MultipartForm.File["f"][0].Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		file = f.(*os.File).Name()
	})
	inner := Middleware(newFakeGate(1), WithBufferedBody(1<<20))(mux)
	patterns := make(chan string, 1)
	srv := serve(t, "HTTP/1.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		patterns <- r.Pattern
	}))
	var form strings.Builder
	m := multipart.NewWriter(&form)
	part, _ := m.CreateFormFile("f", "f")
	io.WriteString(part, strings.Repeat("x", 11<<20))
	m.Close()
	resp, err := srv.Client().Post(srv.URL+"/form", m.FormDataContentType(), strings.NewReader(form.String()))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if p := <-patterns; p != "POST /form" {
		t.Errorf("outer handlers see pattern %q", p)
	}
	srv.Close() // after it, no handler is running any more
	if _, err := os.Stat(file); file == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file %q of a form was left: %v", file, err)
	}
}

// rawExchange sends a request as it stands and returns the first response.
func rawExchange(t *testing.T, addr, request string) (*http.Response, *bufio.Reader, net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return resp, br, c
}

// A refused request's body is neither waited for nor read: the answer comes
// although the client never sends it.
func TestRefusalDoesNotWaitForTheBody(t *testing.T) {
	g := newFakeGate(0)
	g.refuse = &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Retryable: true}
	srv := serve(t, "HTTP/1.1", Middleware(g)(http.NotFoundHandler()))
	addr := srv.Listener.Addr().String()
	tests := []struct {
		name, request string
		closes        bool
	}{
		{"long", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nhello", true},
		{"chunked", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", true},
		{"expecting 100", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n", true},
		{"small and there", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", false},
		{"none", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", false},
		{"HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", true},
	}
	for _, tt := range tests {
		resp, br, c := rawExchange(t, addr, tt.request)
		if resp.StatusCode != 503 || resp.Close != tt.closes {
			t.Errorf("%s: status %d, close %v", tt.name, resp.StatusCode, resp.Close)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), "queue_full") {
			t.Errorf("%s: body %q, %v", tt.name, body, err)
		}
		if tt.closes {
			continue
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if again, err := http.ReadResponse(br, nil); err != nil || again.StatusCode != 503 {
			t.Errorf("%s: the connection was not kept: %v", tt.name, err)
		}
	}
}

// A client that never sends its body gets its refusal soon.
func TestRefusalIsPrompt(t *testing.T) {
	g := newFakeGate(0)
	g.refuse = &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Retryable: true}
	tests := []struct {
		head string
		want time.Duration
	}{
		{"Content-Length: 5000", 0},
		{"Transfer-Encoding: chunked", 0},
		{"Content-Length: 10", drainTime}, // as a rule it has come with the headers
	}
	for _, tt := range tests {
		inBubble(t, Middleware(g)(http.NotFoundHandler()), func(t *testing.T, _ *http.Client, dial func() net.Conn) {
			c := dial()
			defer c.Close()
			start := time.Now()
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: pipe\r\n"+tt.head+"\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != 503 || !resp.Close {
				t.Errorf("%s: %v, %v", tt.head, resp, err)
			}
			if got := time.Since(start); got != tt.want {
				t.Errorf("%s: refused after %v, want %v", tt.head, got, tt.want)
			}
		})
	}
}

// gateFunc is a gate of one function.
type gateFunc func() (weir.Permit, error)

func (f gateFunc) Admit(context.Context, weir.Work) (weir.Permit, error) { return f() }

// Requests that have arrived are counted before the handler of an admitted request takes the processor. Once in
// 61 turns the scheduler runs a goroutine that has yielded before the others, so a few may be ahead.
func TestAdmittedRequestYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const requests = 20
	ahead := 0
	for range requests {
		var arrived atomic.Bool
		gate := gateFunc(func() (weir.Permit, error) {
			go arrived.Store(true)
			return weir.Permit{}, nil
		})
		h := Middleware(gate)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if !arrived.Load() {
				ahead++
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	if ahead > requests/4 {
		t.Errorf("%d of %d handlers ran before what had arrived", ahead, requests)
	}
}

// On HTTP/2 a refusal must not close the connection that others use.
func TestRefusalKeepsAnHTTP2Connection(t *testing.T) {
	g := newFakeGate(0)
	g.refuse = &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Retryable: true}
	srv := serve(t, "HTTP/2.0", Middleware(g)(http.NotFoundHandler()))
	for range 3 {
		body, stop := io.Pipe()
		resp, err := srv.Client().Post(srv.URL, "text/plain", body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 503 || resp.ProtoMajor != 2 {
			t.Errorf("%s %s", resp.Proto, resp.Status)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		stop.Close()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.works) != 3 {
		t.Errorf("%d requests", len(g.works))
	}
}

// Requests that wait do not read their bodies. With the settings that the package docs advise, they leave enough of their
// connection's window for the body of the request that was admitted. By its docs, net/http need not take that window.
func TestWaitingBodiesOverHTTP2(t *testing.T) {
	const streams, window = 100, 64 << 10
	const size = 4 * window
	var h http.Handler // made in the bubble, as its gate must be
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerStream: window,
			MaxReceiveBufferPerConnection: streams * window},
	}
	inBubbleWith(t, "HTTP/2.0", srv, func(t *testing.T, client *http.Client, _ func() net.Conn) {
		g := newFakeGate(1)
		h = Middleware(g)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
				t.Errorf("%d bytes of the body came: %v", n, err)
			}
		}))
		client.Timeout = time.Minute // of virtual time, in which nothing happens unless all wait for each other
		var all sync.WaitGroup
		post := func(body io.Reader) {
			all.Go(func() {
				resp, err := client.Post("http://pipe/", "text/plain", body)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
		}
		admitted, rest := io.Pipe()
		post(admitted)
		g.await(func() bool { return g.admitted == 1 })
		for range streams - 1 {
			post(bytes.NewReader(make([]byte, size)))
		}
		synctest.Wait() // they have sent what the server takes of them
		_, _ = rest.Write(make([]byte, size))
		rest.Close()
		all.Wait()
		if g.settled(streams); len(g.outcomes()) != streams {
			t.Errorf("outcomes %v", g.outcomes())
		}
	})
}

// While retries are common among the refusals, nobody is told to come back. The numbers of strangers make no
// retries common, and count against the strangers.
func TestAttempts(t *testing.T) {
	for _, trusted := range []bool{true, false} {
		g := newFakeGate(0)
		g.refuse = &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Retryable: true}
		believed := WithAttempts(nil, func(r *http.Request) bool { return r.Header.Get("X-Peer") == "proxy" })
		h := Middleware(g, believed)(http.NotFoundHandler())
		guard := NewGuard(believed) // counts with it
		ask := func(attempt string) (comeBack bool) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set(AttemptHeader, attempt)
			if trusted {
				r.Header.Set("X-Peer", "proxy")
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Header().Get("Retry-After") != ""
		}
		if !ask("0") || !ask("1") {
			t.Errorf("trusted %v: told not to come back at first", trusted)
		}
		if got := ask("2"); got != trusted {
			t.Errorf("trusted %v: the third attempt of one is told to come back: %v", trusted, got)
		}
		for range 10 {
			ask("1")
		}
		if got := ask("0"); got == trusted {
			t.Errorf("trusted %v: after a dozen retries told to come back: %v", trusted, got)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/", nil)
		guard.Serve(w, r, g, weir.Work{}, nil)
		if comeBack := w.Header().Get("Retry-After") != ""; comeBack == trusted {
			t.Errorf("trusted %v: a guard that counts with the middleware tells to come back: %v", trusted, comeBack)
		}
		g.mu.Lock()
		if n := g.works[2].Attempt; n != 2 {
			t.Errorf("the gate hears of attempt %d, want 2", n)
		}
		g.mu.Unlock()
	}
	g := newFakeGate(0)
	g.refuse = &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Retryable: true}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set(AttemptHeader, "2")
	w := httptest.NewRecorder()
	Middleware(g, WithAttempts(nil, nil))(http.NotFoundHandler()).ServeHTTP(w, r)
	if w.Header().Get("Retry-After") != "" {
		t.Error("nobody is trusted, and the third attempt of one is told to come back")
	}
}

func TestGuard(t *testing.T) {
	g := newFakeGate(1)
	guard := NewGuard(WithBufferedBody(10), WithStreams(nil))
	r := httptest.NewRequest("POST", "/", strings.NewReader("hello"))
	serve := func(gate weir.Gate, next func(http.ResponseWriter, *http.Request, *Request)) int {
		w := httptest.NewRecorder()
		guard.Serve(w, r, gate, weir.Work{Op: "op"}, next)
		return w.Code
	}
	status := serve(g, func(w http.ResponseWriter, inner *http.Request, q *Request) {
		if body, err := io.ReadAll(inner.Body); string(body) != "hello" || err != nil {
			t.Errorf("body %q, %v", body, err)
		}
		if q == nil || FromContext(inner.Context()) != nil || inner.Context() != r.Context() {
			t.Errorf("handle %p; the context must be the request's own", q)
		}
		full := newFakeGate(0)
		full.refuse = &weir.Rejection{Reason: weir.ReasonDeadline}
		if got := serve(full, nil); got != http.StatusServiceUnavailable {
			t.Errorf("refused: %d, want 503", got)
		}
		q.Sample(weir.Overload)
		w.WriteHeader(http.StatusAccepted)
	})
	if status != http.StatusAccepted || len(g.works) != 1 || g.works[0].Op != "op" {
		t.Errorf("status %d, works %+v", status, g.works)
	}
	if got := serve(g, func(_ http.ResponseWriter, inner *http.Request, _ *Request) {}); got != http.StatusOK {
		t.Errorf("the slot did not come back: %d", got)
	}
	func() {
		defer func() { _ = recover() }()
		serve(g, func(http.ResponseWriter, *http.Request, *Request) { panic("on purpose") })
	}()
	if got := serve(nil, func(w http.ResponseWriter, inner *http.Request, q *Request) {
		if q != nil || inner != r {
			t.Error("no gate: the request must come untouched")
		}
		w.WriteHeader(http.StatusTeapot)
	}); got != http.StatusTeapot {
		t.Errorf("no gate: %d", got)
	}
	if got := serve(g, func(http.ResponseWriter, *http.Request, *Request) {}); got != http.StatusOK {
		t.Errorf("the slot did not come back after a panic: %d", got)
	}
}

// fresh says that the test runs in a process of its own, in which no call was nested
// before.
const fresh = "WEIRHTTP_FRESH_PROCESS"

// The first nested call of a process uses the request's permit, as all others do, also if nobody has asked the
// request's context for a value. Otherwise, with one slot, it would wait for itself.
func TestFirstNestedCallOfAProcess(t *testing.T) {
	if os.Getenv(fresh) == "" {
		test := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		test.Env = append(os.Environ(), fresh+"=1")
		if out, err := test.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	g := weir.Must(limit.New(limit.Config{Name: "one", Limit: 1, Queue: limit.Queue{MaxWait: time.Millisecond}}))
	type key struct{}
	h := Middleware(g)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, ctx := range []context.Context{r.Context(), context.WithValue(r.Context(), key{}, 1)} {
			if err := weir.Do(ctx, g, weir.Work{}, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		}
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
}
