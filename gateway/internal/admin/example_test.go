package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/weir-go/weir/gateway/internal/admin"
)

// A page that has had its own name pointed at this machine gets nothing.
func Example() {
	h := admin.Handler(admin.Options{
		Metrics: http.NotFoundHandler(),
		Gates:   func() any { return []string{} },
		Ready:   func() bool { return true },
	})
	for _, url := range []string{"http://127.0.0.1:8090/readyz", "http://evil.example:8090/readyz"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
		fmt.Println(url, w.Code)
	}
	// Output:
	// http://127.0.0.1:8090/readyz 200
	// http://evil.example:8090/readyz 421
}
