package quotas

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// Reset asks to fill one bucket, whatever its debt.
type Reset struct {
	Gate string
	// Whose names the owner of the bucket, in the parts that rules count by. It has nothing else.
	Whose quota.Rule
	// By says who asks, and Via how they are known: ViaSocket or ViaToken.
	By, Via string
}

// Refilled is a bucket that was filled.
type Refilled struct {
	Gate string `json:"gate"`
	// Whose is the owner that was named, as in "user=alice". Rule is the rule that counts for it,
	// and Bucket the key of its bucket, as weir explain shows both.
	Whose  string   `json:"whose"`
	Rule   string   `json:"rule"`
	Bucket string   `json:"bucket"`
	Limits []string `json:"limits"`
	// Held is what the bucket had before, in the window that bound most. Window says which
	// that is, from 1, if there are several.
	Held   float64 `json:"held"`
	Window int     `json:"window,omitempty"`
}

// Reset fills a bucket. It changes no rule and needs no store. Each reset is logged, and so
// is a refusal.
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
		return Refilled{}, Faults{{Op: -1, Fault: noQuota(&spec, r.Gate, g != nil), Missing: true}}
	}
	w, given, faults := workOf(spec.AddressPart(r.Gate), &r.Whose)
	if len(faults) == 0 {
		faults = missingParts(g.Quota(), w, given)
	}
	if len(faults) > 0 {
		return Refilled{}, faults
	}
	d, err := g.Quota().Reset(ctx, w)
	if errors.Is(err, quota.ErrNoBucket) {
		return Refilled{}, Faults{faultf("weir explain shows which rule counts", "%s", strings.TrimPrefix(err.Error(), "quota: "))}
	}
	if fault := new(weirredis.Error); errors.As(err, &fault) && fault.Key != "" {
		err = fmt.Errorf("%w; delete the key %s there", err, fault.Key)
	}
	res := Refilled{Gate: r.Gate, Whose: r.Whose.Pattern().String(), Rule: d.Rule, Bucket: d.Key, Held: Rounded(d.Remaining)}
	for _, l := range d.Windows {
		res.Limits = append(res.Limits, l.String())
	}
	if len(d.Windows) > 1 {
		res.Window = d.Window + 1
	}
	return res, err
}

// Rounded is tokens without the rounding errors of a float64.
func Rounded(tokens float64) float64 {
	if math.Abs(tokens) >= 1e6 {
		return math.Floor(tokens + 1e-6)
	}
	return math.Floor(tokens*1000+1e-6) / 1000
}

// workOf returns work of somebody, and which parts of an identity were named.
func workOf(peer string, whose *quota.Rule) (w weir.Work, given map[string]bool, faults Faults) {
	fault := func(part, problem, instead string) { faults = append(faults, faultAt(-1, part, problem, instead)) }
	given = map[string]bool{}
	fields := map[string]*string{"user": &w.User, "client": &w.Client, "tenant": &w.Tenant, "route": &w.Op, "descriptor": &w.Descriptor}
	fields["address"] = fields[peer]
	for _, part := range quota.Parts() {
		name := string(*whose.Part(part))
		switch {
		case name == "":
			continue
		case name == string(quota.Every):
			fault(part, `"*" is not a name`, "one bucket is filled at a time; name its owner")
		case part == "address" && peer == "":
			fault(part, "the configuration makes no part of an identity an address", "name the user, or another part that the rule counts by")
		case part == "address" && given[peer]:
			fault(part, "is the same as "+peer+" here", "leave one of them out")
		}
		given[part] = true
		if part == "address" || part == peer {
			given["address"], given[peer] = true, true
			name = policy.PeerName(name)
		}
		if field := fields[part]; field != nil {
			*field = name
		}
		if part == "descriptor" {
			var err error
			if w.Descriptor, err = quota.ParseDescriptor(name); err != nil {
				fault(part, err.Error(), "write it as in database=users,plan=free")
			}
		}
		if part == "priority" {
			p, ok := weir.ParsePriority(name)
			if w.Priority = p; !ok {
				fault(part, fmt.Sprintf("%.40q is not a priority", name), "write background, normal, high or critical")
			}
		}
	}
	if len(given) == 0 {
		fault("", "nobody is named", "name the owner by "+strings.Join(quota.Parts(), ", ")+"; if several share the bucket, any of them will do")
	}
	return w, given, faults
}

// missingParts returns a fault for each part that the rule for w counts by and that was not named.
// Without it, the reset would fill the bucket of work that has no such name.
func missingParts(q *quota.Quota, w weir.Work, given map[string]bool) (faults Faults) {
	matching := q.Explain(w)
	if len(matching) == 0 || matching[0].Exempt || matching[0].Blocked {
		return nil // Quota.Reset returns an error
	}
	rule := &matching[0]
	for _, part := range quota.Parts() {
		if *rule.Part(part) != "" && !given[part] {
			faults = append(faults, faultAt(-1, part, fmt.Sprintf("is missing, and the rule %.100s counts by it", rule.Name), "name it too"))
		}
	}
	return faults
}
