package policy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir"
)

// Forward makes out, the header of a request that a proxy passes on, say what the
// policy has decided about in, the request as it came. w is the work of in, and
// arrived when it came.
//
// Of the headers that identities are read from, tenant, user and client are passed
// on if the peer is trusted and does not contradict itself, and taken out
// otherwise; priority says what the work has, in the word that brought it or else
// by its name. Addresses that stand in for a user are told to nobody: they are no
// proof of who somebody is.
//
// Of the deadlines that the request and the route bring, the time that is left of
// the earliest is written into each header that brought one. If none did and the
// route has a Timeout, it is written into grpc-timeout for requests of gRPC, and
// into the first other header of [DeadlineSpec] for the rest. Values that were not
// understood go on as they came.
func (p *Policy) Forward(out http.Header, in *http.Request, w *weir.Work, arrived time.Time) {
	p.identity.forward(out, in, w)
	p.forwardAdmissions(out, in, w)
	p.ForwardDeadline(out, in, w, arrived)
}

func (id *identity) forward(out http.Header, in *http.Request, w *weir.Work) {
	trusted := id.trustsPeer(in)
	for _, s := range [3]source{id.tenant, id.user, id.client} {
		if s.kind != headerSource {
			continue
		}
		delete(out, s.key)
		if values := in.Header[s.key]; trusted && single(values) != "" {
			out[s.key] = values[:1:1]
		}
	}
	if s := id.priority; s.kind == headerSource {
		values := in.Header[s.key]
		if p, ok := id.parseClass(single(values)); ok && trusted && p == w.Priority {
			out[s.key] = values[:1:1]
		} else {
			out[s.key] = []string{w.Priority.String()}
		}
	}
}

// ForwardDeadline is the part of [Policy.Forward] that depends on the time, for a
// request that is sent again.
func (p *Policy) ForwardDeadline(out http.Header, in *http.Request, w *weir.Work, arrived time.Time) {
	if len(p.timeouts) == 0 {
		return
	}
	sent, found, _ := timeoutOf(p.timeouts, in)
	if !found && w.Deadline.IsZero() {
		return
	}
	now := p.time()
	left := longestTimeout
	if !w.Deadline.IsZero() {
		left = w.Deadline.Sub(now)
	}
	if found {
		left = min(left, sent-now.Sub(arrived))
	}
	left = max(left, time.Millisecond)
	if found {
		for _, h := range p.timeouts {
			if _, value, _ := h.sent(in); value != "" {
				out[h.key] = []string{h.format(left, value)}
			}
		}
		return
	}
	if h := p.timeoutFor(in); h != nil && len(in.Header[h.key]) == 0 {
		out[h.key] = []string{h.format(left, "")}
	}
}

// timeoutFor returns the header in which an upstream is told of a deadline that
// the request did not bring, nil if there is none for its kind.
func (p *Policy) timeoutFor(in *http.Request) *timeoutHeader {
	grpc := strings.HasPrefix(in.Header.Get("Content-Type"), "application/grpc")
	for i := range p.timeouts {
		if h := &p.timeouts[i]; (h.key == grpcTimeout) == grpc {
			return h
		}
	}
	return nil
}

// forwardAdmissions tells the next server how often the operation has been admitted,
// this time included.
func (p *Policy) forwardAdmissions(out http.Header, in *http.Request, w *weir.Work) {
	if p.admissions == "" {
		return
	}
	n, _ := p.admissionsOf(in, p.Trusted(in))
	if rt := p.byName[w.Op]; rt != nil && len(rt.gates) > 0 {
		n++
	}
	delete(out, p.admissions)
	if n > 0 {
		out[p.admissions] = []string{strconv.FormatInt(n, 10)}
	}
}
