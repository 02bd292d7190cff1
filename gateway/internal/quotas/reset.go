package quotas

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Reset asks that the bucket of somebody be filled, whatever debt is in it.
type Reset struct {
	Gate string
	// Whose says who it is: names in the parts that rules look at, and nothing else.
	Whose policy.QuotaRuleSpec
	// By says who asks, and Via how they are known: ViaSocket or ViaToken.
	By, Via string
}

// Refilled is a bucket that is full again.
type Refilled struct {
	Gate string `json:"gate"`
	// Whose is who was named, as in "user=alice"; Rule which rule they go by, and Bucket
	// its key, as weir explain shows both.
	Whose  string   `json:"whose"`
	Rule   string   `json:"rule"`
	Bucket string   `json:"bucket"`
	Limits []string `json:"limits"`
	// Held is what was there before, of the limit that bound most: Window says which,
	// from 1, where there are several.
	Held   float64 `json:"held"`
	Window int     `json:"window,omitempty"`
}

// Reset fills a bucket. It changes no rule, and needs none to be kept anywhere. Each one is
// logged, and so is what was refused.
//
// The error is a [Faults] about what was asked for, or the store's.
func (b *Book) Reset(ctx context.Context, r Reset) (Refilled, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := b.reset(ctx, &r)
	b.auditReset(&r, &res, err)
	return res, err
}

func (b *Book) reset(ctx context.Context, r *Reset) (Refilled, error) {
	b.mu.Lock()
	spec, p := b.plan.spec, b.policy
	b.mu.Unlock()
	g := p.Gate(r.Gate)
	if g == nil || g.Quota() == nil {
		f := noQuota(&spec, r.Gate, g != nil)
		f.Op, f.Missing = -1, true
		return Refilled{}, Faults{f}
	}
	w, given, faults := whoIs(&spec.Identity, &r.Whose)
	if len(faults) == 0 {
		faults = unsaid(g.Quota(), w, given)
	}
	if len(faults) > 0 {
		return Refilled{}, faults
	}
	d, err := g.Quota().Reset(ctx, w)
	if errors.Is(err, quota.ErrNoBucket) {
		return Refilled{}, Faults{{Op: -1, Problem: strings.TrimPrefix(err.Error(), "quota: "), Instead: "weir explain says what counts for whom"}}
	}
	res := Refilled{Gate: r.Gate, Whose: Matches(&r.Whose), Rule: d.Rule, Bucket: d.Key, Held: plainly(d.Remaining)}
	for _, l := range d.Windows {
		res.Limits = append(res.Limits, l.String())
	}
	if len(d.Windows) > 1 {
		res.Window = d.Window + 1
	}
	return res, err
}

// plainly is tokens without the dust of a float64.
func plainly(tokens float64) float64 {
	if math.Abs(tokens) >= 1e6 {
		return math.Floor(tokens + 1e-6)
	}
	return math.Floor(tokens*1000+1e-6) / 1000
}

// whoIs is work of somebody, and which parts of an identity that says.
func whoIs(identity *policy.IdentitySpec, whose *policy.QuotaRuleSpec) (w weir.Work, given map[string]bool, faults Faults) {
	fault := func(part, problem, instead string) {
		faults = append(faults, Fault{Op: -1, Field: part, Problem: problem, Instead: instead})
	}
	given = map[string]bool{}
	peer := identity.AddressPart()
	for _, part := range quota.Parts() {
		name := *whose.Part(part)
		switch {
		case name == "":
			continue
		case name == "*":
			fault(part, `"*" is nobody's name`, "one bucket is filled at a time; name whose")
		case part == "address" && peer == "":
			fault(part, "no part of an identity is an address here", "name the user, or what else the rule looks at")
		case part == "address" && given[peer]:
			fault(part, "is the same as "+peer+" here", "leave one of them out")
		}
		given[part] = true
		if part == "address" || part == peer {
			given["address"], given[peer] = true, true
			name = network(name)
		}
		switch part {
		case "priority":
			p, ok := weir.ParsePriority(name)
			if w.Priority = p; !ok {
				fault(part, fmt.Sprintf("%.40q is none", name), "write background, normal, high or critical")
			}
		case "address":
			setPart(&w, peer, name)
		default:
			setPart(&w, part, name)
		}
	}
	if len(given) == 0 {
		fault("", "nobody is named", "say by "+strings.Join(quota.Parts(), ", ")+" whose bucket it is; of one that is shared, anybody will do")
	}
	return w, given, faults
}

// setPart sets a part of an identity that is a name.
func setPart(w *weir.Work, part, name string) {
	switch part {
	case "user":
		w.User = name
	case "client":
		w.Client = name
	case "tenant":
		w.Tenant = name
	case "route":
		w.Op = name
	}
}

// network returns what an address is called as part of an identity: of IPv6 its /64.
func network(name string) string {
	a, err := netip.ParseAddr(name)
	if err != nil {
		return name
	}
	if a = a.Unmap().WithZone(""); a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}

// unsaid returns the parts that the rule for w looks at and nobody has named: it would be
// the bucket of those who have no name that is filled.
func unsaid(q *quota.Quota, w weir.Work, given map[string]bool) (faults Faults) {
	matching := q.Explain(w)
	if len(matching) == 0 || matching[0].Exempt || matching[0].Blocked {
		return nil // the gate says so itself
	}
	rule := &matching[0]
	for _, part := range quota.Parts() {
		if *rule.Part(part) != (quota.Match{}) && !given[part] {
			faults = append(faults, Fault{Op: -1, Field: part,
				Problem: fmt.Sprintf("is not said, and the rule %.100s looks at it", rule.Name), Instead: "name it too"})
		}
	}
	return faults
}
