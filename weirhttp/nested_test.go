package weirhttp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// fresh says that the test runs in a process of its own, in which nothing was nested
// before.
const fresh = "WEIRHTTP_FRESH_PROCESS"

// The first nested call of a process rides on its permit as all others do, also when
// nobody has asked the request's context for anything: with one slot it would wait
// for itself.
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
