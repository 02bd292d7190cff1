package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// rateOptions are the flags of a quota without a file.
type rateOptions struct {
	Rates    []string
	Burst    float64
	BurstSet bool
	By       string
}

// quotaGate is what the gate with the quota is called in a configuration of flags.
const quotaGate = "quota"

func (o *rateOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&o.Rates, "rate", nil, "a quota, for instance 10/s, 1000/h or \"5000 a day\"; may be repeated, then all of them hold together (only without a FILE)")
	flags.Float64Var(&o.Burst, "burst", 0, "how many may come at once, with one --rate (default: what it gives in a second, minute or hour)")
	flags.StringVar(&o.By, "by", "", "who gets a quota each: header:NAME, address, user or tenant (default: one quota for all)")
}

// given reports whether one of the flags is set.
func (o *rateOptions) given() bool { return len(o.Rates) > 0 || o.BurstSet || o.By != "" }

// spec returns the quota of the flags, nil if there is none, or everything that is wrong with them.
// It sets in id the source of the identity that has a quota each.
func (o *rateOptions) spec(id *policy.IdentitySpec) (*policy.QuotaSpec, []error) {
	if !o.given() {
		return nil, nil
	}
	wrong := o.faults()
	part, err := o.whose(id)
	if err != nil {
		wrong = append(wrong, err)
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	s := &policy.QuotaSpec{}
	if s.Limits = o.Rates; len(o.Rates) == 1 {
		s.Limits, s.Rate, s.Burst = nil, o.Rates[0], o.Burst
	}
	if part != "" {
		s.By = []string{part}
	}
	return s, nil
}

// faults returns what is wrong with rates and burst.
func (o *rateOptions) faults() (wrong []error) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	calendar := false
	for _, text := range o.Rates {
		l, err := policy.ParseLimit(text)
		if err != nil {
			problem, _, _ := strings.Cut(err.Error(), "; to refuse everything") // by a rule, which no flag has
			add("--rate: %s", problem)
			continue
		}
		calendar = l.Rate == 0
		if l.Burst < 1 {
			add("--rate %q has a burst of %g, which lets nothing through; write at least 1", text, l.Burst)
		}
		if o.BurstSet && strings.Contains(text, "burst") {
			add("--burst %g: --rate %q says a burst too; leave one of them out", o.Burst, text)
		}
	}
	switch {
	case len(o.Rates) > quota.MaxWindows:
		add("--rate is given %d times; at most %d can hold together", len(o.Rates), quota.MaxWindows)
	case o.BurstSet && len(o.Rates) == 0:
		add("--burst %g means nothing without a rate; write for instance --rate 10/s --burst %g", o.Burst, max(o.Burst, 1))
	case o.BurstSet && len(o.Rates) > 1:
		add("--burst %g: which of the %d rates is it for? Write it there, as in --rate \"%s burst %g\"", o.Burst, len(o.Rates), o.Rates[0], o.Burst)
	case o.BurstSet && calendar:
		add("--burst %g: all of --rate %q comes back at once; leave --burst out", o.Burst, o.Rates[0])
	case o.BurstSet && !(o.Burst >= 1 && o.Burst <= quota.MaxTokens):
		add("--burst %g is how many may come at once, from 1 to %g; leave it out for what the rate gives", o.Burst, float64(quota.MaxTokens))
	case o.By != "" && len(o.Rates) == 0:
		add("--by %s says whose a quota is, but there is no quota; write for instance --rate 10/s --by %s", o.By, o.By)
	}
	return wrong
}

// whose returns the part of an identity with a quota each. It is empty if all share one quota.
func (o *rateOptions) whose(id *policy.IdentitySpec) (part string, err error) {
	switch by := o.By; {
	case by == "":
		return "", nil
	case by == "ip" || by == "address" || by == "peer":
		if id.Client == "" {
			id.Client = "address"
		}
		return "address", nil
	case strings.HasPrefix(by, "header:"):
		if id.User != "" && id.User != by {
			return "", fmt.Errorf("--by %s and --user %s name two users; write --by user, or leave --user out", by, id.User)
		}
		id.User = by
		return "user", nil
	case by == "user" && id.User == "":
		return "", errors.New("--by user: nothing says who the user is; write --by header:X-User, or --by address")
	case by == "tenant" && id.Tenant == "":
		return "", errors.New("--by tenant: nothing says who the tenant is; write --tenant header:X-Tenant beside it")
	case by == "user" || by == "tenant":
		return by, nil
	}
	return "", fmt.Errorf("--by %q is unknown; write header:NAME, as in header:X-User, or address, user or tenant", o.By)
}

// guardBy puts the quota before the limit of a configuration of flags.
func guardBy(cfg *config.Config, s *policy.QuotaSpec) {
	if s == nil {
		return
	}
	cfg.Gates[quotaGate] = policy.GateSpec{Quota: s}
	for i := range cfg.Routes {
		cfg.Routes[i].Gates = append([]string{quotaGate}, cfg.Routes[i].Gates...)
	}
}
