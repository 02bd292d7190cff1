package proxy_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// Two interchangeable servers, used in turn.
func Example() {
	server := func(name string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
	}
	a, b := server("a"), server("b")
	defer a.Close()
	defer b.Close()

	p, err := policy.Compile(policy.Spec{}, policy.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	log := slog.New(slog.DiscardHandler)
	up, err := proxy.New("app", config.Upstream{
		Targets:         []string{a.URL, b.URL},
		ConnectTimeout:  policy.Duration(time.Second),
		ResponseTimeout: policy.Duration(10 * time.Second),
	}, log, eventlog.New(log, nil))
	if err != nil {
		fmt.Println(err)
		return
	}
	up.Attach(p, nil)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up.Serve(w, r, &proxy.Call{})
	}))
	defer front.Close()
	for range 3 {
		res, err := http.Get(front.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		fmt.Println(res.StatusCode, string(body))
	}
	// Output:
	// 200 a
	// 200 b
	// 200 a
}
