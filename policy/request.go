package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
)

// charging names two headers: the cost that a request brings, and the real cost in its answer. An
// empty name means none.
type charging struct {
	from    HeaderName
	settle  string // in canonical form
	event   eventField
	keep    bool // the answer's goes on to the client
	billed  bool // a quota is charged what requests bring
	ignored *ignored
}

// longestNumber bounds the text of a number.
const longestNumber = 64

// largestCost bounds costs. No quota holds more, and up to there a float64 tells one token from the
// next. A gate with a limit clamps it to its slots itself.
const largestCost = int64(quota.MaxTokens)

// noCost is a cost that every gate refuses.
const noCost = -1

// readCost sets w.Cost to the cost that the request brings, if it brings one. If a quota would charge
// a cost that cannot be read, the work gets noCost: any guess could be too cheap. If only slots are
// taken, the cost of the route stays.
func (c *charging) readCost(w *weir.Work, h Header) {
	if c.from == (HeaderName{}) {
		return
	}
	units, said, bad := greatest(h.Values(c.from), 1)
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

// greatest returns the largest number of at least least in the lines of a cost header. Proxies may
// have joined lines with commas. So a client that adds to the line of a proxy makes its request
// dearer, never cheaper. said reports whether there is a number, bad whether there is anything
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
// [Policy.SetCost]. bad reports that there is something else than a number. An answer of which anything
// was bad is counted by one [Route.Unsettled], however often it is read.
func (rt *Route) Settle(answer http.Header) (units int64, ok, bad bool) {
	if rt == nil || rt.charging.settle == "" {
		return 0, false, false
	}
	c := &rt.charging
	values := answer[c.settle]
	if !c.keep {
		delete(answer, c.settle)
	}
	if len(values) == 0 {
		return 0, false, false
	}
	units, ok, bad = greatest(values, 0)
	return units, ok, bad || !ok
}

// Settles reports whether the answers to the route's work say what it has really cost. Without that
// [Route.Settle] finds nothing.
func (rt *Route) Settles() bool { return rt != nil && rt.charging.settle != "" }

// eventField is where the data of an event has the real cost.
type eventField struct {
	path []string // nil: nowhere
	key  []byte   // the last name of path, in quotes: data without it need not be decoded
}

// eventName is a name in a path to a number.
var eventName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// deepestEvent bounds the names in a path to a number.
const deepestEvent = 8

func (c *compiler) checkEventField(at fault.Path, text string) eventField {
	if text == "" {
		return eventField{}
	}
	path := strings.Split(text, ".")
	if len(path) > deepestEvent || slices.ContainsFunc(path, func(name string) bool { return !eventName.MatchString(name) }) {
		c.Add(at, fmt.Sprintf("%.80q is not a path to a number in JSON", text), "write names with dots between, at most eight, such as usage.total_tokens")
		return eventField{}
	}
	return eventField{path: path, key: []byte(`"` + path[len(path)-1] + `"`)}
}

// SettlesByEvent reports whether server-sent events, or JSON, say what the route's work has really cost.
func (rt *Route) SettlesByEvent() bool { return rt != nil && rt.charging.event.path != nil }

// SettleEvent returns the real cost of a piece of the route's work, from the data of a server-sent event,
// or from an answer in JSON.
// It reports false if the data is not JSON with a number in the field that the route names.
func (rt *Route) SettleEvent(data []byte) (units int64, ok bool) {
	if !rt.SettlesByEvent() || !bytes.Contains(data, rt.charging.event.key) {
		return 0, false
	}
	value := json.RawMessage(data)
	for _, name := range rt.charging.event.path {
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) != nil {
			return 0, false
		}
		value = object[name]
	}
	return parseUnits(string(value))
}

// Unsettled counts an answer that should have said what it has cost, and said nothing, or what cannot be read.
func (rt *Route) Unsettled() { rt.charging.ignored.settled.Add(1) }

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

// costed returns the gates that use the real cost, nil if all of them do. This matters for limits
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
		if from := rt.charging.from.Canonical; from != "" && !slices.Contains(names, from) {
			names = append(names, from)
		}
	}
	return names
}

// checkCharging compiles where costs come from.
func (c *compiler) checkCharging(at fault.Path, r *RouteSpec) charging {
	ch := charging{
		from:   c.checkCostSource(at.At("cost_from"), r.CostFrom),
		settle: c.checkCostSource(at.At("settle"), r.Settle).Canonical,
		event:  c.checkEventField(at.At("settle_event"), r.SettleEvent),
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
func (c *compiler) checkCostSource(at fault.Path, text string) HeaderName {
	if text == "" {
		return HeaderName{}
	}
	s := c.checkSource(at, text, sourceForms)
	switch s.kind {
	case headerSource:
		return s.header()
	case noSource: // the check has reported it
	default:
		c.Add(at, "a cost comes from a header only", "write header:NAME, such as header:X-Cost")
	}
	return HeaderName{}
}

// An operation of many requests, for example an export page by page, can keep out operations of one
// request. The sender of the requests counts them in a header, and trusted peers pass it on. A
// route says after how many admissions the work becomes background work. MongoDB's execution
// control does the same with the admissions of an operation. [weir.Operation] is the same for work
// that asks a gate in the same process.

// admissionsOf returns how often the operation of a request has been admitted before. It is 0 if no trusted
// peer says. It reports false if the header is no count.
func (p *Policy) admissionsOf(h Header, trusted bool) (int64, bool) {
	if !p.countsAdmissions() || !trusted {
		return 0, true
	}
	values := h.Values(p.admissions)
	if len(values) == 0 {
		return 0, true
	}
	n, ok := parseUnits(single(values))
	return min(n, limit.MaxLimit), ok
}

// countsAdmissions reports whether a header says how often an operation has been admitted.
func (p *Policy) countsAdmissions() bool { return p.admissions != (HeaderName{}) }

// demote turns w into background work if its operation has been admitted as often as the route
// allows.
func (p *Policy) demote(rt *Route, w *weir.Work, h Header, trusted bool) {
	if rt == nil || rt.demoteAfter == 0 || w.Exempt || w.Priority <= weir.Background || w.Priority >= weir.Critical {
		return
	}
	switch n, ok := p.admissionsOf(h, trusted); {
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
	switch s := c.checkSource(at, text, sourceForms); s.kind {
	case headerSource:
		p.admissions = s.header()
	case noSource: // left out, or a fault
	default:
		c.Add(at, "admissions are counted in a header only", "write header:NAME, such as header:X-Admissions")
	}
	if s := p.admissions.Canonical; s != "" && slices.Contains(p.understoodHeaders(), s) {
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

// understoodHeaders returns the headers that have a meaning already.
func (p *Policy) understoodHeaders() []string {
	names := append(p.identity.headers(), p.costHeaders()...)
	for _, h := range p.timeouts {
		names = append(names, h.name.Canonical)
	}
	return names
}

// grpcTimeout is the header of gRPC over HTTP/2. Its form is fixed: at most eight digits and a unit.
const grpcTimeout = "Grpc-Timeout"

// timeoutHeaders are read where the spec does not say which.
var timeoutHeaders = []string{"grpc-timeout", "X-Request-Timeout"}

// longestTimeout is the longest timeout; a longer one counts as this one. It keeps sums of times in
// range.
const longestTimeout = 365 * 24 * time.Hour

// longestTimeoutText bounds what is parsed.
const longestTimeoutText = 32

// timeoutHeader is a header that timeouts are read from.
type timeoutHeader struct {
	name HeaderName
	// parse reads a value, and reports false for one that is to be ignored.
	parse func(string) (time.Duration, bool)
	// format writes the time left in the form of the value that was sent, empty
	// if none was.
	format func(left time.Duration, sent string) string
}

func newTimeoutHeader(name string) timeoutHeader {
	key := NewHeaderName(name)
	switch {
	case key.Canonical == grpcTimeout:
		return timeoutHeader{key, parseGRPCTimeout, formatGRPCTimeout}
	case strings.HasSuffix(key.Canonical, "-Ms"):
		return timeoutHeader{key, parseMillis, formatMillis}
	}
	return timeoutHeader{key, parseSeconds, formatSeconds}
}

// sent returns the shortest timeout that a request brings in the header, and its value. bad counts
// the values that cannot be parsed.
func (h *timeoutHeader) sent(header Header) (d time.Duration, value string, bad int) {
	for _, v := range header.Values(h.name) {
		v = strings.TrimSpace(v)
		t, ok := time.Duration(0), false
		if len(v) <= longestTimeoutText {
			t, ok = h.parse(v)
		}
		switch {
		case !ok:
			bad++
		case value == "" || t < d:
			d, value = t, v
		}
	}
	return d, value, bad
}

// timeoutOf returns the shortest timeout that a request brings, false if it brings
// none, and how many values were not understood.
func timeoutOf(headers []timeoutHeader, header Header) (d time.Duration, found bool, bad int) {
	for i := range headers {
		t, value, n := headers[i].sent(header)
		bad += n
		if value != "" && (!found || t < d) {
			d, found = t, true
		}
	}
	return d, found, bad
}

var grpcUnits = []struct {
	letter byte
	unit   time.Duration
}{
	{'n', time.Nanosecond}, {'u', time.Microsecond}, {'m', time.Millisecond},
	{'S', time.Second}, {'M', time.Minute}, {'H', time.Hour},
}

// parseGRPCTimeout reads up to eight digits and a unit. The grammar asks for a positive integer,
// but clients with no time left send 0.
func parseGRPCTimeout(v string) (time.Duration, bool) {
	if len(v) < 2 || len(v) > 9 || strings.Trim(v[:len(v)-1], "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(v[:len(v)-1], 10, 64)
	if err != nil {
		return 0, false
	}
	for _, u := range grpcUnits {
		if u.letter == v[len(v)-1] {
			if n > int64(longestTimeout/u.unit) {
				return longestTimeout, true
			}
			return time.Duration(n) * u.unit, true
		}
	}
	return 0, false
}

// formatGRPCTimeout writes the time in the smallest unit that has room for it,
// rounded down.
func formatGRPCTimeout(left time.Duration, _ string) string {
	for _, u := range grpcUnits {
		if n := int64(left / u.unit); n < 1e8 {
			return strconv.FormatInt(n, 10) + string(u.letter)
		}
	}
	return "99999999H"
}

// parseSeconds reads a number of seconds, or a duration with units.
func parseSeconds(v string) (time.Duration, bool) {
	if isNumber(v) {
		f, err := strconv.ParseFloat(v, 64)
		return positive(f*float64(time.Second), err)
	}
	d, err := time.ParseDuration(v)
	return positive(float64(d), err)
}

// formatSeconds writes milliseconds, in seconds or with a unit as they came.
func formatSeconds(left time.Duration, sent string) string {
	ms := wholeMillis(left)
	if sent != "" && !isNumber(sent) {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64)
}

func parseMillis(v string) (time.Duration, bool) {
	if !isNumber(v) {
		return 0, false
	}
	f, err := strconv.ParseFloat(v, 64)
	return positive(f*float64(time.Millisecond), err)
}

func formatMillis(left time.Duration, _ string) string {
	return strconv.FormatInt(wholeMillis(left), 10)
}

// wholeMillis rounds down, but not to 0, which to many means no bound at all.
func wholeMillis(d time.Duration) int64 { return max(1, int64(d/time.Millisecond)) }

// isNumber reports whether v is a plain decimal number: no sign, exponent or
// digits of another base.
func isNumber(v string) bool {
	return v != "" && strings.Trim(v, "0123456789.") == ""
}

// positive returns ns as a time, at most longestTimeout.
func positive(ns float64, err error) (time.Duration, bool) {
	switch {
	case err != nil || !(ns >= 1):
		return 0, false
	case ns >= float64(longestTimeout):
		return longestTimeout, true
	}
	return time.Duration(ns), true
}

func (c *compiler) checkTimeouts() []timeoutHeader {
	names := c.spec.Deadline.Headers
	if names == nil {
		names = timeoutHeaders
	}
	at := fault.Path{"deadline", "headers"}
	var headers []timeoutHeader
	for i, name := range names {
		if !isToken(name) {
			c.Add(at.Index(i), strconv.Quote(name)+" is not a header name", "write letters, digits and dashes, such as X-Request-Timeout")
			continue
		}
		h := newTimeoutHeader(name)
		for _, earlier := range headers {
			if earlier.name == h.name {
				c.Add(at.Index(i), strconv.Quote(name)+" is in the list already", "name each header once")
			}
		}
		headers = append(headers, h)
	}
	return headers
}

// Forward writes the policy's decisions about the request in into out, the header that a proxy
// sends to its upstream. w is the work of in, and arrived is the time when in came.
//
// Headers with tenant, user and client are passed on if the peer is trusted and does not contradict
// itself. Otherwise they are removed. The priority header says the priority of w, by the word that
// the request brought or else by its name. An address that stands in for a user is not passed on:
// it is no proof of identity.
//
// Forward writes the time that is left until the earliest deadline into each header that brought a
// deadline, or that cannot be read. If none did and the route has a Timeout, it adds a header. That is
// grpc-timeout for requests of gRPC, and the first other header of [DeadlineSpec] for the rest. Without
// a deadline, values that cannot be read go on unchanged.
func (p *Policy) Forward(out http.Header, in *http.Request, w *weir.Work, arrived time.Time) {
	v := ViewHTTP(in)
	p.ForwardView(out, &v, w, arrived)
}

// ForwardView is [Policy.Forward] for a request of any protocol. The names in out are in canonical
// form.
func (p *Policy) ForwardView(out http.Header, in *View, w *weir.Work, arrived time.Time) {
	p.identity.forward(out, in, w)
	p.forwardAdmissions(out, in, w)
	p.forwardDeadline(out, in, w, arrived)
}

func (id *identity) forward(out http.Header, in *View, w *weir.Work) {
	trusted := id.trustsPeer(in)
	for _, s := range [3]source{id.tenant, id.user, id.client} {
		if s.kind != headerSource {
			continue
		}
		delete(out, s.key)
		if values := in.Header.Values(s.header()); trusted && single(values) != "" {
			out[s.key] = values[:1:1]
		}
	}
	if s := id.priority; s.kind == headerSource {
		values := in.Header.Values(s.header())
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
	v := ViewHTTP(in)
	p.forwardDeadline(out, &v, w, arrived)
}

func (p *Policy) forwardDeadline(out http.Header, in *View, w *weir.Work, arrived time.Time) {
	if len(p.timeouts) == 0 {
		return
	}
	header := in.Header
	left, sent := p.timeLeft(header, w, arrived)
	if left == noDeadline {
		return
	}
	left = max(left, time.Millisecond)
	var added *timeoutHeader
	if !sent {
		added = p.timeoutFor(header)
	}
	for i := range p.timeouts {
		h := &p.timeouts[i]
		if _, value, bad := h.sent(header); value != "" || bad > 0 || h == added {
			out[h.name.Canonical] = []string{h.format(left, value)}
		}
	}
}

// DeadlinePassed reports whether the client of a request waits no more. It is for a proxy whose
// upstream has ended an exchange: servers of gRPC end a call at its deadline by a reset.
func (p *Policy) DeadlinePassed(in *http.Request, w *weir.Work, arrived time.Time) bool {
	v := ViewHTTP(in)
	left, _ := p.timeLeft(v.Header, w, arrived)
	return left <= 0
}

// noDeadline is the time that is left where there is no deadline.
const noDeadline = time.Duration(math.MaxInt64)

// timeLeft returns how long the client still waits, and whether it sent a deadline itself.
func (p *Policy) timeLeft(in Header, w *weir.Work, arrived time.Time) (left time.Duration, sent bool) {
	timeout, sent, _ := timeoutOf(p.timeouts, in)
	now, left := p.time(), noDeadline
	if !w.Deadline.IsZero() {
		left = w.Deadline.Sub(now)
	}
	if sent {
		left = min(left, longestTimeout, timeout-now.Sub(arrived))
	}
	return left, sent
}

// timeoutFor returns the header that tells an upstream of a deadline which the request did not
// bring, nil if there is none for its kind.
func (p *Policy) timeoutFor(in Header) *timeoutHeader {
	grpc := false
	if values := in.Values(contentType); len(values) > 0 {
		grpc = strings.HasPrefix(values[0], "application/grpc")
	}
	for i := range p.timeouts {
		if h := &p.timeouts[i]; (h.name.Canonical == grpcTimeout) == grpc {
			return h
		}
	}
	return nil
}

var contentType = NewHeaderName("Content-Type")

// forwardAdmissions tells the next server how often the operation has been admitted,
// this time included.
func (p *Policy) forwardAdmissions(out http.Header, in *View, w *weir.Work) {
	if !p.countsAdmissions() {
		return
	}
	n, _ := p.admissionsOf(in.Header, p.TrustedView(in))
	if rt := p.byName[w.Op]; rt != nil && len(rt.gates) > 0 {
		n++
	}
	delete(out, p.admissions.Canonical)
	if n > 0 {
		out[p.admissions.Canonical] = []string{strconv.FormatInt(n, 10)}
	}
}
