// Package attempt reads which attempt a request is, for policies and for the adapters of HTTP and gRPC. It has the words
// for people whose attempt should be the last. And it bounds what the attempts of a client may claim, and knows those that
// fail for want of means of this process.
package attempt

import (
	"context"
	"strings"
	"time"

	"github.com/weir-go/weir"
)

// NoRetry is what people read in a refusal for overload that asks for no further attempt.
const NoRetry = "overloaded, do not retry"

// Final reports whether r is such a refusal. By itself no overload is final: while retries are common, a
// throttle.Attempts makes it so.
func Final(r *weir.Rejection) bool {
	switch r.Reason {
	case weir.ReasonLimit, weir.ReasonQueueFull, weir.ReasonQueueTimeout, weir.ReasonShed:
		return !r.Retryable
	}
	return false
}

// Header says which attempt a request is, and what the first one is called there.
type Header struct {
	Name, Lower string // canonical, and as HTTP/2 has it
	First       int
}

// Headers are those that say it. The largest number holds.
var Headers = [...]Header{
	{"X-Weir-Attempt", "x-weir-attempt", 0},                         // of weirhttp.Transport and weirgrpc.Client
	{"Grpc-Previous-Rpc-Attempts", "grpc-previous-rpc-attempts", 0}, // of the retries that gRPC makes by itself
	{"X-Envoy-Attempt-Count", "x-envoy-attempt-count", 1},
}

// Max is the largest number of an attempt. A request that says more counts as this one.
const Max = 1000

// Of returns the number of the attempt that is in a request's headers. values returns the lines of one.
func Of(values func(Header) []string) int {
	most := 0
	for _, h := range Headers {
		most = max(most, h.In(values(h)))
	}
	return most
}

// In returns the number of the attempt that the lines of the header say, the largest of them. It is 0 for the first, and
// where they say nothing of use. Anybody may say it, because it only counts against the caller.
func (h Header) In(lines []string) int {
	most := 0
	for _, line := range lines {
		for text := range strings.SplitSeq(line, ",") { // proxies may have joined lines
			most = max(most, min(number(strings.TrimSpace(text))-h.First, Max))
		}
	}
	return most
}

// number reads a whole number in digits, and says Max+1 of larger ones. What is none is 0. It allocates nothing, because
// strangers write these headers, and gates are asked later.
func number(text string) int {
	n := 0
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0
		}
		n = min(n*10+int(c-'0'), Max+1)
	}
	return n
}

// Bound takes back what the user's description of a call has claimed for w beyond its context. The deadline is at the
// latest the one that the call had before; 0 is none. The priority is at most that of the context's scope, and of the
// request that the call is made for.
func Bound(ctx context.Context, w *weir.Work, latest time.Time) {
	if !latest.IsZero() && (w.Deadline.IsZero() || w.Deadline.After(latest)) {
		w.Deadline = latest
	}
	scope := weir.Work{Priority: w.Priority}
	scope.Inherit(ctx)
	w.Priority = min(w.Priority, scope.Priority)
	if most, _, ok := weir.Received(ctx); ok {
		w.Priority = min(w.Priority, most)
	}
}
