package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// begin is ReverseProxy's ModifyResponse: an answer is about to be passed on.
func (u *Upstream) begin(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols && !strings.EqualFold(upgradeOf(res.Header), upgradeOf(res.Request.Header)) {
		return errUpgrade // ReverseProxy would find out later, and leave the connection open
	}
	call := res.Request.Context().Value(exchangeKey{}).(*exchange).call
	call.By, call.Status = ByUpstream, res.StatusCode // no WriteHeader follows a 101
	call.Quotas.SetHeaders(res.Header, call.Work, nil)
	if len(res.Trailer) > 0 {
		// HTTP/2 sends trailers after a body of announced length, HTTP/1 only
		// after chunks.
		res.Header.Del("Content-Length")
	}
	return nil
}

var errUpgrade = errors.New("the upstream has switched to another protocol than the request names")

// failed is ReverseProxy's ErrorHandler: no answer came, or none that can be passed on.
func (u *Upstream) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	x.call.By, x.call.Status = ByGateway, 0 // also where begin has seen a 101 that comes to nothing
	cause := x.cancelledBy()
	bodyErr := x.body.failure()
	switch {
	case cause == errResponseTimeout:
		u.problem(w, x.call, http.StatusGatewayTimeout, "the upstream did not answer within "+u.cfg.ResponseTimeout.String())
	case cause == errIdle:
		u.problem(w, x.call, http.StatusGatewayTimeout, u.idleText())
	case weir.AsRejection(bodyErr) != nil: // the body was complete, and was refused then
		u.answerUntaken(w, r, x.call, bodyErr)
	case bodyErr != nil:
		x.call.WriteBodyProblem(w, x.client, bodyErr)
	case cause != nil || x.client.Err() != nil:
		panic(http.ErrAbortHandler) // there is nobody to answer
	case weir.AsRejection(err) != nil && x.refusals > 0: // a target has seen the request, so quotas give nothing back
		x.call.WriteRejection(w, r, weir.AsRejection(err))
	case weir.AsRejection(err) != nil:
		u.answerUntaken(w, r, x.call, err)
	case errors.Is(err, errNotHTTP2):
		u.problem(w, x.call, http.StatusNotImplemented, noGRPC)
	case lacksMeans(err):
		x.call.Failure = "gateway_limits"
		u.events.UpstreamFailed(u.name, x.seat.key, x.call.Failure, err)
		u.problem(w, x.call, http.StatusServiceUnavailable, "the gateway has no file descriptor or memory left for a connection to the upstream")
	case err == errUpgrade:
		u.problem(w, x.call, http.StatusBadGateway, err.Error())
	case timedOut(err):
		u.problem(w, x.call, http.StatusGatewayTimeout, "no connection to the upstream within "+u.cfg.ConnectTimeout.String())
	case x.deadlinePassed():
		u.problem(w, x.call, http.StatusGatewayTimeout, textDeadline)
	default:
		u.log.Debug("bad gateway", "upstream", u.name, "target", x.seat.key, "error", err)
		u.problem(w, x.call, http.StatusBadGateway, "the upstream refused or broke the connection, or did not answer in HTTP")
	}
}

// textDeadline is what a call is told that has missed its deadline.
const textDeadline = "the call's deadline has passed"

// idleText is what a call is told that ends by grpc_idle_timeout.
func (u *Upstream) idleText() string {
	return "nothing has been sent in either direction for " + u.cfg.GRPCIdleTimeout.String()
}

// answerUntaken answers a request that no target took.
func (u *Upstream) answerUntaken(w http.ResponseWriter, r *http.Request, call *Call, err error) {
	if rej := weir.AsRejection(err); rej != nil {
		call.Quotas.refund(call.Request)
		call.WriteRejection(w, r, rej)
		return
	}
	u.problem(w, call, http.StatusBadGateway, err.Error())
}

// WriteRejection answers a request that a gate has refused, of the route or of a target. Only a trusted peer gets
// the class, tenant and bucket. A tenant may be somebody else's name, and a class would tell others what to
// claim.
func (c *Call) WriteRejection(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
	trusted := c.Policy != nil && c.Policy.Trusted(r)
	rej = c.Route.Told(&c.Work, trusted, rej)
	c.By, c.Rejection = ByGate, rej
	c.Quotas.SetHeaders(w.Header(), c.Work, rej)
	if c.GRPC {
		c.writeGRPCRejection(w, rej, weirhttp.Status(rej))
		return
	}
	boundAnswer(w)
	var work *weir.Work
	if trusted {
		work = &c.Work
	}
	weirhttp.WriteRejectionTo(w, r, rej, work)
}

// shortAnswer bounds the time a client may take to read an answer of the gateway itself.
const shortAnswer = 5 * time.Second

// boundAnswer bounds the time a client may take to read an answer of the gateway itself. It
// also replaces a deadline that an earlier answer on the same connection has left behind.
func boundAnswer(w http.ResponseWriter) {
	// A writer without deadlines is no connection: there is nothing to bound.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shortAnswer))
}

func (u *Upstream) problem(w http.ResponseWriter, call *Call, status int, detail string) {
	call.Quotas.SetHeaders(w.Header(), call.Work, nil)
	call.writeProblem(w, status, detail, u.name)
}

// WriteProblem answers a request that goes no further with a problem document
// (application/problem+json, RFC 9457). No address and no error text of the operating system
// belongs in it: those are for the log. A call of gRPC gets a status of gRPC instead.
func (c *Call) WriteProblem(w http.ResponseWriter, status int, detail string) {
	c.writeProblem(w, status, detail, "")
}

func (c *Call) writeProblem(w http.ResponseWriter, status int, detail, upstream string) {
	if c.GRPC {
		c.writeGRPCProblem(w, status, detail, upstream)
		return
	}
	body, err := json.Marshal(struct {
		Title    string `json:"title"`
		Status   int    `json:"status"`
		Detail   string `json:"detail,omitempty"`
		Upstream string `json:"upstream,omitempty"`
	}{http.StatusText(status), status, detail, upstream})
	if err != nil { // cannot be: strings and an int
		body = nil
	}
	boundAnswer(w)
	// net/http reads the rest of a body before it answers, and somebody may never send that.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(shortAnswer))
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone; there is nobody else to tell
}

// bodyStatus is the status of a request if reading its body failed with err. It is 408 if the body
// came too slowly, else 400.
func bodyStatus(err error) int {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

// disconnected is the error of net/http in the body of a request whose connection over HTTP/2 has ended. The
// context of the request ends a moment later.
const disconnected = "client disconnected"

// clientLeft reports whether a body has failed with err because its client left. The context of the request
// ends with its stream, or if its connection cannot be read. That is so at a deadline, too.
func clientLeft(request context.Context, err error) bool {
	return (request.Err() != nil || err.Error() == disconnected) && !errors.Is(err, os.ErrDeadlineExceeded)
}

// WriteBodyProblem answers a request if its body is not what its headers announced. net/http then
// ends the connection: the rest of the body cannot be told from the next request. If the client has
// left there is nobody to answer, and it panics with [http.ErrAbortHandler]. But over HTTP/1 one that has closed
// only its side looks the same, and still reads. Such a request is answered, and counts as one whose client left.
func (c *Call) WriteBodyProblem(w http.ResponseWriter, request context.Context, err error) {
	left := clientLeft(request, err)
	if left && !errors.Is(err, io.ErrUnexpectedEOF) {
		panic(http.ErrAbortHandler)
	}
	status, detail := bodyStatus(err), "the request body ended early or is malformed"
	if status == http.StatusRequestTimeout {
		detail = "the request body came too slowly"
	}
	c.WriteProblem(w, status, detail)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // nobody waits for the rest
	if left {
		c.Status = 0
	}
}

// Quotas are the gates with a quota on the way of a request. Every answer says what is left of
// them, also an answer of the upstream.
type Quotas []*policy.Gate

// NewQuotas returns the gates of a route that have a quota.
func NewQuotas(rt *policy.Route) (qs Quotas) {
	for _, g := range rt.Gates() {
		if g.Quota() != nil {
			qs = append(qs, g)
		}
	}
	return qs
}

// SetHeaders writes into the header of an answer what the quotas are, and what is left of one of
// them. That is the quota that refused with rej. Without a refusal it is the quota that can admit
// the fewest more requests like this one. If the upstream wrote RateLimit and RateLimit-Policy
// about quotas of its own, these stay, after the gateway's. The older fields have no names, so they
// have only one quota: the gateway's.
//
// Gates that do not enforce are not mentioned. A store on another machine is not asked a
// second time: its last answer about the bucket counts. That is its answer about this
// request, unless others of the same bucket came in between.
func (qs Quotas) SetHeaders(h http.Header, w weir.Work, rej *weir.Rejection) {
	if len(qs) == 0 {
		return
	}
	now := time.Now()
	w.Deadline = time.Time{} // it may have passed, which does not matter here
	var current, legacy fields
	for _, g := range qs {
		words := g.QuotaHeaders()
		if words == "none" || g.Mode() != policy.Enforce {
			continue
		}
		t := stateOf(g, w, rej, now)
		if t == nil {
			continue
		}
		t.setUnit(g.QuotaUnit())
		if words != "legacy" {
			current.add(t)
		}
		if words != "ratelimit" {
			legacy.add(t)
		}
	}
	if t := current.first; t != nil {
		policies, limits := h["Ratelimit-Policy"], h["Ratelimit"]
		weirhttp.SetRateLimit(h, current.policies, t.left)
		h["Ratelimit-Policy"] = append(h["Ratelimit-Policy"], policies...)
		h["Ratelimit"] = append(h["Ratelimit"], limits...)
	}
	if t := legacy.first; t != nil {
		weirhttp.SetLegacyRateLimit(h, t.policies[t.window], t.left)
	}
}

// refund gives back what a request was charged: the gate of a target, behind the quotas, has
// refused it.
func (qs Quotas) refund(r *weirhttp.Request) {
	for _, g := range qs {
		r.SetCost(g.Name(), 0) // named, a gate that counts requests obeys too
	}
}

// fields are what an answer says in one set of header fields.
type fields struct {
	policies []weirhttp.RateLimitPolicy
	first    *quotaState // the answer says what is left of it
}

func (s *fields) add(t *quotaState) {
	if s.policies == nil {
		s.policies = slices.Clip(t.policies) // mostly there is one quota
	} else {
		s.policies = append(s.policies, t.policies...)
	}
	if s.first == nil || t.before(s.first) {
		s.first = t
	}
}

// quotaState is what there is to say of one quota.
type quotaState struct {
	policies []weirhttp.RateLimitPolicy // its windows
	window   int                        // the one that left is about
	left     weirhttp.RateLimit
	refused  bool
	lasts    float64 // for how many more requests like this one it is enough
}

// setUnit says what is counted, if it is not requests.
func (t *quotaState) setUnit(unit string) {
	if unit == "requests" {
		return
	}
	for i := range t.policies {
		t.policies[i].Unit = unit
	}
}

// before reports whether t comes before u: t has refused, or is enough for fewer requests.
// One quota may count requests and the other tokens.
func (t *quotaState) before(u *quotaState) bool {
	if t.refused != u.refused {
		return t.refused
	}
	return t.lasts < u.lasts
}

// stateOf returns the state of a gate's quota. It is nil if w is not counted, or blocked.
func stateOf(g *policy.Gate, w weir.Work, rej *weir.Rejection, now time.Time) *quotaState {
	q := g.Quota()
	if rej != nil && rej.Gate == g.Name() && rej.Reason == weir.ReasonQuota {
		return refused(rej, q.Windows(rej.Rule), now)
	}
	d, ok := q.Last(context.Background(), w)
	if !ok {
		return nil
	}
	return passed(g.Name(), &d, now)
}

// passed describes a quota by its answer to one more request like this one.
func passed(gate string, d *quota.Answer, now time.Time) *quotaState {
	if len(d.Windows) == 0 {
		return nil
	}
	t := newQuotaState(gate, d.Rule, d.Windows, d.Window, now)
	t.left.Remaining, t.left.Reset, t.lasts = d.Remaining, d.Wait, d.Remaining/float64(max(d.Cost, 1))
	if d.OK || d.Remaining >= 1 {
		t.left.Reset = d.Windows[d.Window].Refill(d.Remaining, now)
	}
	return t
}

// refused describes a quota by a refusal.
func refused(rej *weir.Rejection, limits []quota.Window, now time.Time) *quotaState {
	window := max(rej.Window-1, 0)
	if window >= len(limits) {
		return nil // the rule has been changed since
	}
	t := newQuotaState(rej.Gate, rej.Rule, limits, window, now)
	t.refused, t.left.Remaining, t.left.Reset = true, rej.Remaining, rej.RetryAfter
	return t
}

func newQuotaState(gate, rule string, limits []quota.Window, window int, now time.Time) *quotaState {
	t := &quotaState{window: window, policies: make([]weirhttp.RateLimitPolicy, 0, len(limits))}
	for i := range limits {
		t.policies = append(t.policies, policyOf(policyName(gate, rule, i), &limits[i], now))
	}
	t.left.Name = t.policies[window].Name
	return t
}

// policyName is what the fields call a window of a rule of a gate.
func policyName(gate, rule string, window int) string {
	name := gate + "/" + rule
	if window > 0 {
		name += "#" + strconv.Itoa(window+1)
	}
	return name
}

func policyOf(name string, l *quota.Window, now time.Time) weirhttp.RateLimitPolicy {
	if l.Rate > 0 {
		return weirhttp.BucketPolicy(name, l.Rate, l.Burst)
	}
	start, end := l.Calendar.Current(now)
	return weirhttp.RateLimitPolicy{Name: name, Quota: l.Burst, Window: end.Sub(start)}
}
