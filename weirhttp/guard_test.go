package weirhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirhttp"
)

// A guard of which nothing is chosen: two lines, two imports. The gate finds out how
// many requests at a time are best.
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
