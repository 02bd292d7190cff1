package attempt_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
)

func Example() {
	h := http.Header{"X-Envoy-Attempt-Count": {"3"}} // the first of Envoy is 1
	fmt.Println(attempt.Of(func(name attempt.Header) []string { return h[name.Name] }))
	// Output: 2
}

func TestOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		h    http.Header
		want int
	}{
		{"nothing", http.Header{}, 0},
		{"weir's own", http.Header{"X-Weir-Attempt": {"2"}}, 2},
		{"three digits", http.Header{"X-Weir-Attempt": {"123"}}, 123},
		{"two lines", http.Header{"X-Weir-Attempt": {"0", "2"}}, 2},
		{"the first of Envoy", http.Header{"X-Envoy-Attempt-Count": {"1"}}, 0},
		{"joined", http.Header{"X-Weir-Attempt": {"1, 3 ,2"}}, 3},
		{"no number beside one", http.Header{"X-Weir-Attempt": {"NaN,1"}}, 1},
		{"with a sign", http.Header{"X-Weir-Attempt": {"+1", "-1"}}, 0},
		{"a fraction", http.Header{"X-Weir-Attempt": {"1.5"}}, 0},
		{"2^63", http.Header{"X-Weir-Attempt": {"9223372036854775808"}}, attempt.Max},
		{"more than can be counted", http.Header{"X-Weir-Attempt": {"99999999999999999999"}}, attempt.Max},
		{"digits and then none", http.Header{"X-Weir-Attempt": {"99999999999999999999x"}}, 0},
		{"nothing between commas", http.Header{"X-Weir-Attempt": {",,", ""}}, 0},
		{"none of Envoy", http.Header{"X-Envoy-Attempt-Count": {"0"}}, 0},
		{"the largest of all", http.Header{"X-Weir-Attempt": {"1"}, "Grpc-Previous-Rpc-Attempts": {"2"}, "X-Envoy-Attempt-Count": {"5"}}, 4},
	} {
		if got := attempt.Of(func(name attempt.Header) []string { return tt.h[name.Name] }); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// A stranger's header costs no memory, however long it is.
func TestAllocatesNothing(t *testing.T) {
	lines := []string{strings.Repeat(",x", 1000), strings.Repeat("9", 1000), strings.Repeat("x", 1000)}
	if n := testing.AllocsPerRun(10, func() { attempt.Headers[0].In(lines) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What a user says of a call holds as far as its context allows it.
func TestBound(t *testing.T) {
	now := time.Now()
	came := func(p weir.Priority) context.Context { return weir.WithReceived(t.Context(), weir.Work{Priority: p}) }
	for _, tt := range []struct {
		name         string
		ctx          context.Context
		wanted, want weir.Priority
	}{
		{"nothing said", t.Context(), weir.High, weir.High},
		{"a scope above", weir.WithPriority(t.Context(), weir.Critical), weir.High, weir.High},
		{"a scope below", weir.WithPriority(t.Context(), weir.Background), weir.High, weir.Background},
		{"a scope of its own", weir.WithPriority(t.Context(), weir.Normal), weir.High, weir.Normal},
		{"normal in a scope below", weir.WithPriority(t.Context(), weir.Background), weir.Normal, weir.Background},
		{"lowered to normal", weir.WithPriority(t.Context(), weir.High), weir.Normal, weir.Normal},
		{"came without", came(weir.Normal), weir.Critical, weir.Normal},
		{"came with more", came(weir.High), weir.Background, weir.Background},
		{"came with less", came(weir.Background), weir.Normal, weir.Background},
		{"came with more, into a scope", weir.WithPriority(came(weir.High), weir.Background), weir.High, weir.Background},
	} {
		w := weir.Work{Priority: tt.wanted}
		attempt.Bound(tt.ctx, &w, time.Time{})
		if w.Priority != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, w.Priority, tt.want)
		}
	}
	for _, tt := range []struct{ said, latest, want time.Time }{
		{time.Time{}, time.Time{}, time.Time{}},
		{now, time.Time{}, now},
		{time.Time{}, now, now},
		{now.Add(time.Second), now, now},
		{now, now.Add(time.Second), now},
	} {
		w := weir.Work{Deadline: tt.said}
		attempt.Bound(t.Context(), &w, tt.latest)
		if !w.Deadline.Equal(tt.want) {
			t.Errorf("%v said, %v at the latest: %v, want %v", tt.said, tt.latest, w.Deadline, tt.want)
		}
	}
}
