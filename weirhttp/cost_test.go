package weirhttp_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/weirhttp"
)

// What a request has cost is told to all of its permits while they are held, to one
// gate by its name, and to nobody once they are given back.
func TestSetCost(t *testing.T) {
	pools := weir.Must(keyed.New(keyed.Config{Name: "pools", Limit: 50}))
	defer pools.Close()
	target := weir.Must(keyed.New(keyed.Config{Name: "target", Limit: 50}))
	defer target.Close()
	held := func() [2]int64 { return [2]int64{pools.Snapshot().InFlight, target.Snapshot().InFlight} }
	var kept *weirhttp.Request
	h := weirhttp.Middleware(pools)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := weirhttp.FromContext(r.Context())
		kept = q
		p, err := target.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		q.Attach(target, p)
		q.SetCost("", 7)
		if got := held(); got != [2]int64{7, 7} {
			t.Errorf("of both: %v", got)
		}
		q.SetCost("target", 3)
		if got := held(); got != [2]int64{7, 3} {
			t.Errorf("of one: %v", got)
		}
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	kept.SetCost("", 9)
	if got := held(); got != [2]int64{} {
		t.Errorf("after the request: %v", got)
	}
	(*weirhttp.Request)(nil).SetCost("", 9)
}
