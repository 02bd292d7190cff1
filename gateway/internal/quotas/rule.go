package quotas

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/policy"
)

// Rule is a rule of the quota of one gate, with when and by whom it was set. It has no
// name of its own: where it takes the place of a rule of the file, it is called as
// that one is.
type Rule struct {
	Gate string `json:"gate"`
	policy.QuotaRuleSpec
	SetAt time.Time `json:"set_at,omitzero"`
	SetBy string    `json:"set_by,omitempty"`
}

// parts are what a rule says of each part of an identity; rules with the same are one
// rule.
type parts struct{ user, client, tenant, route, priority, address string }

// partsOf returns the parts of a rule. A network is the same however it is written.
func partsOf(r *policy.QuotaRuleSpec) parts {
	p := parts{r.User, r.Client, r.Tenant, r.Route, r.Priority, r.Address}
	if r.Address != "" {
		if n, err := policy.ParseNetwork(r.Address); err == nil {
			p.address = n.Masked().String()
		}
	}
	return p
}

// String returns what the rule matches, as in "user=alice,client=*"; "all" if it looks
// at nothing.
func (p parts) String() string {
	var words []string
	for _, w := range [...]struct{ name, value string }{
		{"user", p.user}, {"client", p.client}, {"tenant", p.tenant},
		{"route", p.route}, {"priority", p.priority}, {"address", p.address},
	} {
		if w.value != "" {
			words = append(words, w.name+"="+w.value)
		}
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, ",")
}

// Matches returns what a rule matches, as in "user=alice,client=*".
func Matches(r *policy.QuotaRuleSpec) string { return partsOf(r).String() }

// Gives returns what a rule gives, as it was written: "100/s burst 200, 1000/h",
// "exempt" or "blocked".
func Gives(r *policy.QuotaRuleSpec) string {
	switch {
	case r.Exempt:
		return "exempt"
	case r.Blocked:
		return "blocked"
	}
	words := slices.Clone(r.Limits)
	if r.Rate != "" {
		words = append(words, r.Rate)
	}
	if r.Burst != 0 && len(words) > 0 {
		words[len(words)-1] += " burst " + strconv.FormatFloat(r.Burst, 'f', -1, 64)
	}
	return strings.Join(words, ", ")
}

// InFull is Gives with each burst, also where the rule leaves it to be the default: a rule
// is replaced as a whole, and that its burst went with it is to be seen.
func InFull(r *policy.QuotaRuleSpec) string {
	limits, err := r.Parse()
	if err != nil || r.Exempt || r.Blocked {
		return Gives(r)
	}
	words := slices.Clone(r.Limits)
	if r.Rate != "" {
		words = append([]string{r.Rate}, words...)
	}
	for i, l := range limits {
		if l.Calendar.Period == 0 && !strings.Contains(words[i], "burst") {
			words[i] += " burst " + strconv.FormatFloat(l.Burst, 'f', -1, 64)
		}
	}
	return strings.Join(words, ", ")
}

// sound reports what is wrong with a rule whatever the configuration: what no
// configuration can be the reason for. The rest is found by fitting it to one.
func (r *Rule) sound() error {
	limited := r.Rate != "" || r.Burst != 0 || len(r.Limits) > 0
	switch {
	case r.Gate == "":
		return errors.New("names no gate; add gate:")
	case r.Name != "":
		return errors.New("has a name; leave it out, a rule set at run time is called by what it matches")
	case r.Exempt && r.Blocked:
		return errors.New("is exempt and blocked; leave one of them out")
	case (r.Exempt || r.Blocked) && limited:
		return errors.New("has a limit, but is exempt or blocked; leave one of them out")
	case !r.Exempt && !r.Blocked && !limited:
		return errors.New("gives no limit; give a rate such as 10/s, exempt or blocked")
	}
	_, err := r.Rule()
	return err
}
