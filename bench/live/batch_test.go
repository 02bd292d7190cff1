package live

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// Each client of a batch has one request under way at a time, and rests after a
// refusal.
func TestBatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var served atomic.Int64
	inside := make(chan struct{}, 3)
	refuse := make(chan struct{}, 1)
	refuse <- struct{}{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case inside <- struct{}{}:
			defer func() { <-inside }()
		default:
			t.Error("more requests than clients at a time")
		}
		if served.Add(1) == 20 {
			cancel()
		}
		select {
		case <-refuse:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
		}
	}))
	defer srv.Close()
	b := batch{addr: srv.Listener.Addr().String(), head: head("/", ""), clients: 3, patience: time.Minute, mean: ms(1), seed: 1}
	records := b.run(ctx, time.Now(), 0, time.Minute)
	refused, calls := 0, 0
	for _, r := range records {
		calls += int(r.Calls)
		if r.Answer == Refused {
			refused++
		}
	}
	if refused != 1 || calls != len(records)-1 || len(records) < 20 {
		t.Errorf("%d refused and %d answered of %d", refused, calls, len(records))
	}
	if !slices.IsSortedFunc(records, func(a, b Record) int { return int(a.Due - b.Due) }) {
		t.Error("not in the order in which they were sent")
	}
}
