package weirhttp_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttle"
	"github.com/weir-go/weir/weirhttp"
)

func Example() {
	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 1, Queue: limit.Queue{Len: -1}}))
	defer api.Close()
	guard := weirhttp.Middleware(api)
	srv := httptest.NewServer(guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello")
	})))
	defer srv.Close()

	get := func() {
		resp, err := http.Get(srv.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer resp.Body.Close()
		fmt.Println(resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("Retry-After") != "")
	}
	get()
	p, _ := api.TryAdmit(weir.Work{}) // the one slot is taken
	get()
	p.Done(weir.NoSample)
	get()
	// Output:
	// 200 text/plain; charset=utf-8 false
	// 503 application/problem+json true
	// 200 text/plain; charset=utf-8 false
}

func ExampleMiddleware() {
	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
	defer api.Close()

	guard := weirhttp.Middleware(api, weirhttp.WithWork(func(r *http.Request, w *weir.Work) {
		w.Tenant = r.PathValue("tenant")
		w.MaxWait = 200 * time.Millisecond
		fmt.Println(w.Op, w.Tenant)
	}))

	mux := http.NewServeMux()
	mux.Handle("GET /v1/{tenant}/orders", guard(http.NotFoundHandler()))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {}) // not guarded

	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/acme/orders", nil))
	// Output: GET /v1/{tenant}/orders acme
}

// A server of HTTP/2 whose requests wait with their bodies unread. The window of a connection is as large as
// those of all its streams, so what was admitted still gets its body.
func ExampleMiddleware_http2() {
	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
	defer api.Close()

	const streams, window = 100, 64 << 10 // at most 6.25 MiB of unread bodies for each connection
	server := &http.Server{
		Addr:    ":8443",
		Handler: weirhttp.Middleware(api)(http.NotFoundHandler()),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          streams,
			MaxReceiveBufferPerStream:     window,
			MaxReceiveBufferPerConnection: streams * window,
		},
	}
	log.Print(server.ListenAndServeTLS("cert.pem", "key.pem"))
}

// Reads and writes have gates of their own; other requests have none.
func ExampleWithSelect() {
	reads := weir.Must(limit.New(limit.Config{Name: "reads", Limit: 50}))
	writes := weir.Must(limit.New(limit.Config{Name: "writes", Limit: 5}))
	defer reads.Close()
	defer writes.Close()

	guard := weirhttp.Middleware(nil, weirhttp.WithSelect(func(r *http.Request) (weir.Gate, weir.Work) {
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			return reads, weir.Work{Op: "read"}
		case http.MethodPost, http.MethodPut, http.MethodDelete:
			return writes, weir.Work{Op: "write"}
		}
		return nil, weir.Work{}
	}))
	h := guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		fmt.Println(reads.Snapshot().InFlight, writes.Snapshot().InFlight)
	}))
	for _, method := range []string{"GET", "POST", "OPTIONS"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/", nil))
	}
	// Output:
	// 1 0
	// 0 1
	// 0 0
}

// One pool bounds the streams of the whole service.
func ExampleNewStreams() {
	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
	defer api.Close()
	streams := weirhttp.NewStreams(weirhttp.StreamsConfig{Max: 1000})

	guard := weirhttp.Middleware(api, weirhttp.WithStreams(streams), weirhttp.WithWriteTimeout(30*time.Second))
	h := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: hello\n\n")
		http.NewResponseController(w).Flush()
		fmt.Println("in flight", api.Snapshot().InFlight, "streams", streams.Snapshot().Open)
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/events", nil))
	fmt.Println("in flight", api.Snapshot().InFlight, "streams", streams.Snapshot().Open)
	// Output:
	// in flight 0 streams 1
	// in flight 0 streams 0
}

// When a client has left, a proxy keeps the slot until the upstream is done with the request.
func ExampleRequest_Detach() {
	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
	defer api.Close()
	upstream := make(chan struct{}) // closed when the upstream has answered
	ctx, leave := context.WithCancel(context.Background())

	guard := weirhttp.Middleware(api)
	h := guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		go leave() // the client has waited for long enough
		select {
		case <-upstream:
		case <-r.Context().Done():
			permits := weirhttp.FromContext(r.Context()).Detach()
			go func() {
				<-upstream
				permits.Done(weir.Abandoned)
			}()
		}
	}))

	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	fmt.Println("in flight", api.Snapshot().InFlight)
	close(upstream)
	fmt.Println(api.Drain(context.Background()))
	// Output:
	// in flight 1
	// <nil>
}

func ExampleWriteRejection() {
	w := httptest.NewRecorder()
	weirhttp.WriteRejection(w, httptest.NewRequest("GET", "/", nil), &weir.Rejection{
		Gate: "writes", Rule: "per user", Reason: weir.ReasonQuota,
		Value: 101, Limit: 100, RetryAfter: 1250 * time.Millisecond, Retryable: true,
	})
	fmt.Println(w.Code, w.Header().Get("Retry-After"))
	fmt.Print(w.Body)
	// Output:
	// 429 2
	// {"type":"https://pkg.go.dev/github.com/weir-go/weir#ReasonQuota","title":"The quota is used up","status":429,"gate":"writes","rule":"per user","reason":"quota","value":101,"limit":100,"remaining":0,"retryable":true,"retry_after_ms":1250,"relayed":true}
}

// Refusals can be counted, or answered in another form.
func ExampleWithRejection() {
	full := weir.Must(limit.New(limit.Config{Name: "api", Limit: 1, Queue: limit.Queue{Len: -1}}))
	defer full.Close()
	p, _ := full.TryAdmit(weir.Work{})
	defer p.Done(weir.NoSample)

	guard := weirhttp.Middleware(full, weirhttp.WithRejection(
		func(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
			fmt.Println("refused:", rej.Gate, rej.Reason)
			weirhttp.WriteRejectionTo(w, r, rej, nil)
		}))
	guard(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	// Output: refused: api limit
}

// Clients are told not to come back while retries are common among the refusals.
func ExampleWithAttempts() {
	full := weir.Must(limit.New(limit.Config{Name: "api", Limit: 1, Queue: limit.Queue{Len: -1}}))
	defer full.Close()
	p, _ := full.TryAdmit(weir.Work{})
	defer p.Done(weir.NoSample)

	all := func(*http.Request) bool { return true } // in this example all clients are trusted
	guard := weirhttp.Middleware(full, weirhttp.WithAttempts(nil, all))
	h := guard(http.NotFoundHandler())
	for i := range 12 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(weirhttp.AttemptHeader, "1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if i == 0 || i == 11 {
			fmt.Println(w.Code, "come back:", w.Header().Get("Retry-After") != "")
		}
	}
	// Output:
	// 503 come back: true
	// 503 come back: false
}

// This server tells each user how much is left. The example sets the clock; leave Now nil.
func ExampleSetRateLimit() {
	api := weir.Must(quota.New(quota.Config{
		Name:  "api",
		Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{{Rate: 2, Burst: 3}}}},
		Now:   func() time.Duration { return 0 },
	}))
	defer api.Close()

	handler := func(w http.ResponseWriter, r *http.Request) {
		d, err := api.Charge(context.Background(), weir.Work{User: r.Header.Get("X-User")})
		if !d.Free && len(d.Windows) > 0 {
			window := d.Windows[d.Window]
			reset := d.Wait // refused: the time until it is admitted
			if err == nil {
				reset = window.Refill(d.Remaining, weir.VirtualEpoch)
			}
			policy := weirhttp.BucketPolicy(d.Rule, window.Rate, window.Burst)
			weirhttp.SetRateLimit(w.Header(), []weirhttp.RateLimitPolicy{policy},
				weirhttp.RateLimit{Name: d.Rule, Remaining: d.Remaining, Reset: reset})
		}
		if err != nil {
			weirhttp.WriteRejection(w, r, weir.AsRejection(err))
			return
		}
		fmt.Fprintln(w, "hello")
	}

	for range 4 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "alice")
		w := httptest.NewRecorder()
		handler(w, r)
		h := w.Header()
		fmt.Printf("%d %s %s %q\n", w.Code, h.Get("RateLimit-Policy"), h.Get("RateLimit"), h.Get("Retry-After"))
	}
	// Output:
	// 200 "user=*";q=3;w=2 "user=*";r=2;t=1 ""
	// 200 "user=*";q=3;w=2 "user=*";r=1;t=1 ""
	// 200 "user=*";q=3;w=2 "user=*";r=0;t=2 ""
	// 429 "user=*";q=3;w=2 "user=*";r=0;t=1 "1"
}

// This client spares an overloaded server. It tries again if that is safe and within its budget, and refuses
// locally what the server would refuse.
func ExampleTransport() {
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(weirhttp.AttemptHeader) == "" { // the first attempt
			weirhttp.WriteRejectionTo(w, r, &weir.Rejection{Gate: "shop", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: time.Millisecond}, nil)
			return
		}
		fmt.Fprint(w, "paid")
	}))
	defer shop.Close()

	// The random number is fixed here, so that the example is the same every time.
	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Name: "web", Random: func() float64 { return 0.5 }}))
	client := &http.Client{Transport: &weirhttp.Transport{Caller: caller}, Timeout: 5 * time.Second}
	resp, err := client.Post(shop.URL, "text/plain", strings.NewReader("42 EUR"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	fmt.Println(string(answer), err)
	// Output: paid <nil>
}

// A gate without settings needs two lines and two imports. It finds by itself how many requests at a time are
// best.
func ExampleMiddleware_auto() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

	api := limit.Auto("api")
	guarded := weirhttp.Middleware(api)(mux) // for http.ListenAndServe

	w := httptest.NewRecorder()
	guarded.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/hello", nil))
	fmt.Println(w.Code, w.Body, api.Snapshot().Limit > 0)
	// Output: 200 hello true
}
