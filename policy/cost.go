package policy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
)

// charging says in which headers requests bring the cost of a route's work, and answers its real
// cost. An empty name means none.
type charging struct {
	from, settle string // headers, in canonical form
	keep         bool   // the answer's goes on to the client
	billed       bool   // a quota is charged what requests bring
	ignored      *ignored
}

// longestNumber bounds the text of a number.
const longestNumber = 64

// largestCost bounds costs. No quota holds more, and up to there a float64 tells one token from the
// next. A gate with a limit clamps it to its slots itself.
const largestCost = int64(quota.MaxTokens)

// noCost is a cost that every gate refuses.
const noCost = -1

// charge sets w.Cost to the cost that the request brings, if it brings one. If a quota would charge
// a cost that cannot be read, the work gets noCost: any guess could be too cheap. If only slots are
// taken, the cost of the route stays.
func (c *charging) charge(w *weir.Work, r *http.Request) {
	if c.from == "" {
		return
	}
	units, said, bad := greatest(r.Header[c.from], 1)
	if bad {
		c.ignored.costs.Add(1)
	}
	switch {
	case bad && c.billed: // also beside one that can be read: that may be the client's own
		w.Cost = noCost
	case said:
		w.Cost = units
	}
}

// greatest returns the largest number of at least least in the lines of a cost header, which proxies
// may have joined with commas. So a client that adds to the line of a proxy makes its request
// dearer, never cheaper. said reports whether there is such a number, bad whether there is anything
// else. An empty line is neither.
func greatest(lines []string, least int64) (units int64, said, bad bool) {
	for _, line := range lines {
		for text := range strings.SplitSeq(line, ",") {
			text = strings.TrimSpace(text)
			n, ok := parseUnits(text)
			switch {
			case ok && n >= least:
				units, said = max(units, n), true
			case text != "":
				bad = true
			}
		}
	}
	return units, said, bad
}

// parseUnits reads a cost: a whole number from 0 in digits, at most largestCost.
func parseUnits(text string) (int64, bool) {
	if text == "" || len(text) > longestNumber {
		return 0, false
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // the digits are digits: there are too many of them
		n = largestCost
	}
	return min(n, largestCost), true
}

// Settle returns the real cost of a piece of the route's work, from the header of the answer or from
// its trailer. It deletes the header unless the client is to see it. It reports false if the route
// names no header or the answer has no number; then the cost at admission stays. Hand the cost to
// [Policy.SetCost].
func (rt *Route) Settle(answer http.Header) (units int64, ok bool) {
	if rt == nil || rt.charging.settle == "" {
		return 0, false
	}
	c := &rt.charging
	values := answer[c.settle]
	if !c.keep {
		delete(answer, c.settle)
	}
	if len(values) == 0 {
		return 0, false
	}
	units, ok, bad := greatest(values, 0)
	if bad || !ok {
		c.ignored.settled.Add(1)
	}
	return units, ok
}

// SetCost tells the gates what a piece of work has really cost, except those that count requests.
// set is [weir.Permit.SetCost] of its permit.
func (p *Policy) SetCost(set func(gate string, units int64), units int64) {
	if p.costed == nil {
		set("", units)
		return
	}
	for _, gate := range p.costed {
		set(gate, units)
	}
}

// countsRequests reports whether every piece of work costs 1 at the gate.
func (g *GateSpec) countsRequests() bool {
	return g.Limit != nil && g.Limit.Count == "requests" || g.Quota != nil && g.Quota.Count == "requests"
}

// costed returns the gates that take a real cost, nil if all may be told. It matters for limits
// only: a quota that counts requests ignores costs by itself.
func (c *compiler) costed(names []string) []string {
	costed, some := []string{}, false
	for _, name := range names {
		g := c.spec.Gates[name]
		if !g.countsRequests() {
			costed = append(costed, name)
		}
		some = some || g.Limit != nil && g.countsRequests()
	}
	if !some {
		return nil
	}
	return costed
}

// costHeaders returns the headers that requests bring their costs in.
func (p *Policy) costHeaders() (names []string) {
	for _, rt := range p.routes {
		if from := rt.charging.from; from != "" && !slices.Contains(names, from) {
			names = append(names, from)
		}
	}
	return names
}

// checkCharging compiles where costs come from.
func (c *compiler) checkCharging(at fault.Path, r *RouteSpec) charging {
	ch := charging{
		from:   c.checkCostSource(at.At("cost_from"), r.CostFrom),
		settle: c.checkCostSource(at.At("settle"), r.Settle),
		keep:   r.SettleKeep,
		billed: slices.ContainsFunc(r.Gates, c.bills),
	}
	if r.SettleKeep && r.Settle == "" {
		c.Add(at.At("settle_keep"), "means nothing without settle", "write settle: header:NAME, or leave it out")
	}
	if r.Exempt && r.CostFrom != "" {
		c.Add(at.At("cost_from"), "means nothing to exempt work, which takes no slot", "leave one of the two out")
	}
	return ch
}

// bills reports whether the gate is a quota that charges costs and enforces its refusals.
func (c *compiler) bills(gate string) bool {
	g := c.spec.Gates[gate]
	return g.Quota != nil && g.Quota.Count != "requests" && !g.Quota.Permissive && g.Mode.level() == enforcing
}

// checkCostSource compiles the name of a header.
func (c *compiler) checkCostSource(at fault.Path, text string) string {
	if text == "" {
		return ""
	}
	s := c.checkSource(at, text)
	switch s.kind {
	case headerSource:
		return s.key
	case noSource: // a fault, which has been told
	default:
		c.Add(at, "a cost comes from a header only", "write header:NAME, such as header:X-Cost")
	}
	return ""
}

// An operation of many requests, such as an export page by page, can keep out operations of one
// request. Whoever sends the requests counts them in a header, which trusted peers pass on. A route
// says after how many admissions the work becomes background work. MongoDB's execution control does
// the same with the admissions of an operation. [weir.Operation] is the same for work that asks a
// gate in the same process.

// admissionsOf returns how often the operation of r has been admitted before, 0 if nobody who is
// trusted says. It reports false if the header is no count.
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

// demote turns w into background work if its operation has been admitted as often as the route
// allows.
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

// checkAdmissions compiles where admissions are counted, and after how many of them
// routes demote.
func (c *compiler) checkAdmissions(p *Policy) {
	text := c.spec.Identity.Admissions
	at := fault.Path{"identity", "admissions"}
	switch s := c.checkSource(at, text); s.kind {
	case headerSource:
		p.admissions = s.key
	case noSource: // left out, or a fault
	default:
		c.Add(at, "admissions are counted in a header only", "write header:NAME, such as header:X-Admissions")
	}
	if s := p.admissions; s != "" && slices.Contains(c.claimed(p), s) {
		c.Add(at, s+" says something else already", "name a header of its own")
	}
	for i, rt := range p.routes {
		r := &c.spec.Routes[i]
		switch at := (fault.Path{"routes"}).Index(i).At("demote_after"); {
		case r.DemoteAfter == 0:
		case text == "":
			c.Add(at, "nothing says how often an operation has been admitted", "write identity: {admissions: header:X-Admissions}")
		case r.Exempt || rt.work.Priority == weir.Critical:
			c.Add(at, "exempt and critical work is never demoted", "leave one of the two out")
		default:
			rt.demoteAfter = r.DemoteAfter
		}
	}
}

// claimed returns the headers that have another meaning already.
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
