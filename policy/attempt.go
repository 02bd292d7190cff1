package policy

import "github.com/weir-go/weir"

// attemptHeaders say which attempt a request is, and what the first one is called there.
var attemptHeaders = [...]struct {
	name  HeaderName
	first int64
}{
	{NewHeaderName("X-Weir-Attempt"), 0},             // of weirhttp.Transport
	{NewHeaderName("Grpc-Previous-Rpc-Attempts"), 0}, // of the retries that gRPC makes by itself
	{NewHeaderName("X-Envoy-Attempt-Count"), 1},
}

// MaxAttempt is the largest number of an attempt. A request that says more counts as this one.
const MaxAttempt = 1000

// countAttempt sets the attempt of w to the largest number that the request brings. Anybody may say it, because
// it only counts against the caller. What is no number counts as nothing said.
func countAttempt(w *weir.Work, h Header) {
	for i := range attemptHeaders {
		values := h.Values(attemptHeaders[i].name)
		if len(values) == 0 {
			continue
		}
		n, said, _ := greatest(values, attemptHeaders[i].first)
		if said {
			w.Attempt = max(w.Attempt, int(min(n-attemptHeaders[i].first, MaxAttempt)))
		}
	}
}
