package weirhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// A server that tells each user how much is left. The example owns the clock; leave
// Now nil.
func ExampleSetRateLimit() {
	api := weir.Must(quota.New(quota.Config{
		Name:  "api",
		Rules: []quota.Rule{{User: quota.Every, Limits: []quota.Limit{{Rate: 2, Burst: 3}}}},
		Now:   func() time.Duration { return 0 },
	}))
	defer api.Close()

	handler := func(w http.ResponseWriter, r *http.Request) {
		d, err := api.Charge(context.Background(), weir.Work{User: r.Header.Get("X-User")})
		if !d.Free && len(d.Limits) > 0 {
			window := d.Limits[d.Window]
			reset := d.Wait // refused: until it is let through
			if err == nil {
				reset = window.Refill(d.Remaining, quota.VirtualEpoch)
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
