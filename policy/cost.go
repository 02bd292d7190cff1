package policy

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// charging says where a route's work brings its cost, and its answers what the work
// has really cost. Empty names mean nowhere.
type charging struct {
	from, settle string // headers, in canonical form
	keep         bool   // the answer's goes on to the client
	ignored      *ignored
}

// longestNumber bounds the text of a number.
const longestNumber = 64

// charge gives w the cost that the request brings, if it brings one.
func (c *charging) charge(w *weir.Work, r *http.Request) {
	if c.from == "" {
		return
	}
	values := r.Header[c.from]
	if len(values) == 0 {
		return
	}
	if units, ok := parseUnits(single(values)); ok && units > 0 {
		w.Cost = units
	} else {
		c.ignored.costs.Add(1)
	}
}

// parseUnits reads a cost: a whole number from 0, where what is too large for any
// gate is the most that one takes.
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
		n = limit.MaxLimit
	}
	return min(n, limit.MaxLimit), true
}

// Settle reads from the header of an answer, or from its trailer, what a piece of the
// route's work has really cost, and takes it out unless the client is to see it. It reports false if
// the route does not look, or the answer does not say: then what the work was
// admitted with stays. Whoever gets a cost hands it to [weir.Permit.SetCost].
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
	units, ok = parseUnits(single(values))
	if !ok {
		c.ignored.settled.Add(1)
	}
	return units, ok
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
func (c *compiler) checkCharging(at place, r *RouteSpec) charging {
	ch := charging{
		from:   c.checkCostSource(at.at("cost_from"), r.CostFrom),
		settle: c.checkCostSource(at.at("settle"), r.Settle),
		keep:   r.SettleKeep,
	}
	if r.SettleKeep && r.Settle == "" {
		c.add(at.at("settle_keep"), "means nothing without settle", "write settle: header:NAME, or leave it out")
	}
	if r.Exempt && r.CostFrom != "" {
		c.add(at.at("cost_from"), "means nothing to exempt work, which takes no slot", "leave one of the two out")
	}
	return ch
}

// checkCostSource compiles the name of a header.
func (c *compiler) checkCostSource(at place, text string) string {
	if text == "" {
		return ""
	}
	s := c.checkSource(at, text)
	switch s.kind {
	case headerSource:
		return s.key
	case noSource: // a fault, which has been told
	default:
		c.add(at, "a cost comes from a header only", "write header:NAME, such as header:X-Cost")
	}
	return ""
}
