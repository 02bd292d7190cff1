package explain

import (
	"context"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// Answer is what would become of a request.
type Answer struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	// Route is the name of the route, empty if none matches; Patterns, Upstream and
	// TimeoutMS are the route's.
	Route     string   `json:"route,omitempty"`
	Patterns  []string `json:"patterns,omitempty"`
	Upstream  string   `json:"upstream,omitempty"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"`

	User     string `json:"user"`
	Client   string `json:"client"`
	Tenant   string `json:"tenant"`
	Priority string `json:"priority"`
	Cost     int64  `json:"cost"`
	Exempt   bool   `json:"exempt,omitempty"`
	Trusted  bool   `json:"trusted"`

	Gates []Gate `json:"gates"`
	// Status is what the gateway itself would answer, 0 where the request goes on to
	// the upstream, and By the gate that refuses.
	Status int    `json:"status,omitempty"`
	By     string `json:"by,omitempty"`
	// AfterMS is when to come back, where that is known.
	AfterMS int64 `json:"retry_after_ms,omitempty"`
	// Notes say what the answer goes by, where that is not all there is.
	Notes []string `json:"notes,omitempty"`

	told *weir.Rejection // what the answer would say
}

// Gate is what a gate says.
type Gate struct {
	Name string      `json:"gate"`
	Kind string      `json:"kind"`
	Mode policy.Mode `json:"mode"`
	// Rule, Bucket and Limits are those of a quota; Bucket is also the key of a gate
	// with a pool for each.
	Rule   string   `json:"rule,omitempty"`
	Bucket string   `json:"bucket,omitempty"`
	Limits []string `json:"limits,omitempty"`
	// Left is the tokens of the limit that binds, nil where there is none. Rules are all
	// that match, the one that counts first.
	Left  *float64 `json:"left,omitempty"`
	Rules []Rule   `json:"rules,omitempty"`
	// Says is what would come of it: one of the constants.
	Says Verdict `json:"says"`
	Why  string  `json:"why,omitempty"`
}

// Verdict is what a gate says, in one word.
type Verdict string

// The verdicts.
const (
	Passes     Verdict = "passes"
	Waits      Verdict = "waits"       // until there is room, or until it is refused
	Refuses    Verdict = "refuses"     // and the request ends here
	Observes   Verdict = "observes"    // would refuse, in observe mode
	Off        Verdict = "off"         // is not asked
	NotReached Verdict = "not reached" // an earlier gate refuses
)

// View is what an answer goes by.
type View struct {
	Config *config.Config
	Policy *policy.Policy
	// From says where a rule of a gate's quota comes from, as in weir.yaml:12. It may be
	// nil.
	From func(gate string, r *quota.Rule) string
	// Notes go into the answer.
	Notes []string
}

// Of says what would become of a request. The error is for an Ask that makes no sense.
func Of(v View, ask Ask) (*Answer, error) {
	cfg, p := v.Config, v.Policy
	r, err := ask.request()
	if err != nil {
		return nil, err
	}
	rt, w := p.Match(r)
	if err := ask.rename(&w); err != nil {
		return nil, err
	}
	a := &Answer{
		Method: r.Method, Path: r.URL.RequestURI(), Gates: []Gate{},
		User: w.User, Client: w.Client, Tenant: w.Tenant, Priority: w.Priority.String(),
		Cost: w.Units(), Exempt: w.Exempt, Trusted: p.Trusted(r), Notes: v.Notes,
	}
	switch {
	case rt == nil:
		a.Status = 404
		return a, nil
	case policy.Ambiguous(r.URL):
		a.Status = 400
	}
	a.Route, a.Patterns, a.TimeoutMS = rt.Name(), rt.Patterns(), rt.Timeout().Milliseconds()
	a.Upstream = upstreamOf(cfg, p, rt)
	gates := rt.Gates()
	for i, g := range gates {
		a.ask(g, cfg.Gates[g.Name()].Quota, w, i == len(gates)-1)
		if q := g.Quota(); q != nil && !w.Exempt && g.Mode() != policy.Off {
			a.Gates[i].Rules = v.rules(q, w)
		}
	}
	return a, nil
}

// upstreamOf returns where a route leads: the configuration has them in the same order.
func upstreamOf(cfg *config.Config, p *policy.Policy, of *policy.Route) string {
	i := 0
	for rt := range p.Routes() {
		if rt == of && i < len(cfg.Routes) {
			return cfg.Routes[i].Upstream
		}
		i++
	}
	return ""
}

// ask adds what a gate says. Work may wait at the last one only.
func (a *Answer) ask(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) {
	look := Gate{Name: g.Name(), Kind: g.Snapshot().Kind, Mode: g.Mode(), Says: Passes}
	rej := look.describe(g, spec, w, last)
	if look.Says == Waits && !last {
		rej = &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	}
	switch {
	case g.Mode() == policy.Off:
		look.Says, look.Why = Off, ""
	case a.Status != 0:
		a.askToo(&look, g, w)
	case g.Mode() == policy.Observe && (rej != nil || look.Says == Waits):
		look.Says = Observes
	case rej != nil:
		look.Says = Refuses
		a.refuse(g, rej)
	}
	a.Gates = append(a.Gates, look)
}

// askToo adds what a gate says after another has refused: a quota that would refuse too
// is told of, if it is to be waited for longer; see [weir.All].
func (a *Answer) askToo(look *Gate, g *policy.Gate, w weir.Work) {
	var rej *weir.Rejection
	if a.told != nil && a.told.Reason == weir.ReasonQuota {
		rej = g.Foretell(context.Background(), w)
	}
	if rej == nil {
		look.Says, look.Why = NotReached, ""
		return
	}
	look.Says = Refuses
	if a.told.Retryable && (!rej.Retryable || rej.RetryAfter > a.told.RetryAfter) {
		a.refuse(g, rej)
	}
}

func (a *Answer) refuse(g *policy.Gate, rej *weir.Rejection) {
	a.Status, a.By, a.told = weirhttp.Status(rej), g.Name(), rej
	a.AfterMS = (rej.RetryAfter.Nanoseconds() + 999_999) / 1_000_000
}

// describe fills in what there is to say of a gate by itself, and returns the refusal
// that w would get.
func (look *Gate) describe(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) *weir.Rejection {
	switch {
	case g.Quota() != nil:
		return look.quota(g, spec, w, last)
	case g.Shedder() != nil:
		return look.shed(g, w)
	case w.Exempt:
		look.Why = "exempt: takes no slot"
	case g.Pools() != nil:
		look.pool(g.Pools(), w)
	default:
		look.limit(g.Snapshot(), w)
	}
	return nil
}
