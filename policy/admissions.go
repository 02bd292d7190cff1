package policy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// An operation that takes many requests, an export page by page, keeps out those
// that take one. Whoever makes the requests counts them, in a header that trusted
// peers pass on, and a route says from how many admissions on the operation's work
// is demoted: MongoDB's execution control does the same with the admissions of an
// operation, and tells other servers in the metadata of its requests. See
// [weir.Operation] for work that asks a gate in the same process.

// admissionsOf returns how often the operation that r is part of has been admitted
// before, 0 if nobody who is trusted says. It reports false for what is no count.
func (p *Policy) admissionsOf(r *http.Request, trusted bool) (int64, bool) {
	if p.admissions == "" || !trusted {
		return 0, true
	}
	values := r.Header[p.admissions]
	if len(values) == 0 {
		return 0, true
	}
	n, ok := parseUnits(single(values))
	return min(n, limit.MaxLimit), ok
}

// demote makes w background work if its operation has been admitted as often as the
// route puts up with.
func (p *Policy) demote(rt *Route, w *weir.Work, r *http.Request, trusted bool) {
	if rt == nil || rt.demoteAfter == 0 || w.Exempt || w.Priority <= weir.Background || w.Priority >= weir.Critical {
		return
	}
	switch n, ok := p.admissionsOf(r, trusted); {
	case !ok:
		p.identity.ignored.admissions.Add(1)
	case n >= rt.demoteAfter:
		w.Priority = weir.Background
		p.identity.ignored.demoted.Add(1)
	}
}

// Demoted counts the requests that were demoted (see [RouteSpec].DemoteAfter), also
// under the policies that this one has followed.
func (p *Policy) Demoted() uint64 { return p.identity.ignored.demoted.Load() }

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

// mostAdmissions bounds DemoteAfter: beyond it, it is a mistake.
const mostAdmissions = 1_000_000

// checkAdmissions compiles where admissions are counted, and after how many of them
// routes demote.
func (c *compiler) checkAdmissions(p *Policy) {
	text := c.spec.Identity.Admissions
	at := place{"identity", "admissions"}
	switch s := c.checkSource(at, text); s.kind {
	case headerSource:
		p.admissions = s.key
	case noSource: // left out, or a fault
	default:
		c.add(at, "admissions are counted in a header only", "write header:NAME, such as header:X-Admissions")
	}
	if s := p.admissions; s != "" && slices.Contains(c.claimed(p), s) {
		c.add(at, s+" says something else already", "name a header of its own")
	}
	for i, rt := range p.routes {
		r := &c.spec.Routes[i]
		switch at := (place{"routes"}).index(i).at("demote_after"); {
		case r.DemoteAfter == 0:
		case r.DemoteAfter < 0 || r.DemoteAfter > mostAdmissions:
			c.add(at, fmt.Sprintf("%d is out of range", r.DemoteAfter), fmt.Sprintf("write after how many admissions, from 1 to %d, or leave it out", mostAdmissions))
		case text == "":
			c.add(at, "nothing says how often an operation has been admitted", "write identity: {admissions: header:X-Admissions}")
		case r.Exempt || rt.work.Priority == weir.Critical:
			c.add(at, "exempt and critical work is never demoted", "leave one of the two out")
		default:
			rt.demoteAfter = r.DemoteAfter
		}
	}
}

// claimed returns the headers that say something else.
func (c *compiler) claimed(p *Policy) (names []string) {
	for _, s := range p.identity.sources() {
		if s.kind == headerSource {
			names = append(names, s.key)
		}
	}
	for _, h := range p.timeouts {
		names = append(names, h.key)
	}
	return append(names, p.costHeaders()...)
}
