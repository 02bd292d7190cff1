package policy

import (
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/throttle"
)

// MaxAttempt is the largest number of an attempt. A request that says more counts as this one.
const MaxAttempt = attempt.Max

// countAttempt sets the attempt of w to the largest number that the request brings.
func countAttempt(w *weir.Work, h Header) {
	for _, said := range attempt.Headers {
		w.Attempt = max(w.Attempt, said.In(h.Values(HeaderName{said.Name, said.Lower})))
	}
}

// Told returns a refusal of the route's work as its client should hear it. While retries are common
// among what the route refuses for overload, that is a copy which is not Retryable; see
// [throttle.Attempts.Told]. Call it once for each refusal, before it becomes an answer. trusted is
// what [Policy.Trusted] says of the peer.
func (rt *Route) Told(w *weir.Work, trusted bool, r *weir.Rejection) *weir.Rejection {
	if rt == nil || rt.attempts == nil || r == nil {
		return r
	}
	return rt.attempts.Told(w, trusted, r)
}

// attemptsOf returns the count of refused attempts of a route. It is that of the route with the same
// name in the policy before, or a new one. One with another share counts anew.
func (c *compiler) attemptsOf(rt *Route) *throttle.Attempts {
	if prev := c.opts.Previous; prev != nil && c.opts.Now == nil {
		if was := prev.byName[rt.name]; was != nil && was.retryShare == rt.retryShare {
			return was.attempts
		}
	}
	a, _ := throttle.NewAttempts(throttle.AttemptsConfig{Share: rt.retryShare}, c.opts.Now) // nil only with a fault that is told already
	return a
}
