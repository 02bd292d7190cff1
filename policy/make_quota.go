package policy

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// Quota returns the quota inside, nil for other mechanisms. What holds of
// [Gate.Limiter] holds of it.
func (g *Gate) Quota() *quota.Quota {
	q, _ := g.mechanism.(*quota.Quota)
	return q
}

// told is what answers tell clients of a quota, in the words of QuotaSpec.
type told struct{ headers, unit string }

// QuotaHeaders returns the headers in which answers tell about the quota, a word of
// QuotaSpec.Headers; empty for gates of other mechanisms.
func (g *Gate) QuotaHeaders() string { return g.told().headers }

// QuotaUnit returns what answers say that a token of the quota is, a word of
// QuotaSpec.Unit; empty for gates of other mechanisms.
func (g *Gate) QuotaUnit() string { return g.told().unit }

func (g *Gate) told() told {
	if t := g.tells.Load(); t != nil {
		return *t
	}
	return told{}
}

// told returns what answers tell of the quota, nothing without one.
func (g *GateSpec) told() told {
	if g.Quota == nil {
		return told{}
	}
	return told{cmp.Or(g.Quota.Headers, quotaHeaders[0]), cmp.Or(g.Quota.Unit, quotaUnits[0])}
}

// quotaKind names a quota with where its buckets are, which it keeps.
func (s *QuotaSpec) quotaKind() string { return fmt.Sprintf("quota %q %d", s.Store, s.MaxKeys) }

// newQuota makes the mechanism of a gate with a quota.
func (c *compiler) newQuota(name string) (mechanism, error) {
	cfg := c.quotaConfig(name)
	if cfg.Store == nil {
		m, err := quota.NewMemory(quota.MemoryConfig{MaxKeys: c.spec.Gates[name].Quota.MaxKeys, Now: c.opts.Now})
		if err != nil {
			return nil, err
		}
		cfg.Store = m
	}
	return orNone(quota.New(cfg))
}

var errOtherStore = errors.New("policy: the gate's buckets are in another store")

// reconfigureQuota makes a live quota take up the settings. It cannot move to another
// store of the same name.
func (c *compiler) reconfigureQuota(live *quota.Quota, name string) error {
	cfg := c.quotaConfig(name)
	if cfg.Store != nil && !(reflect.ValueOf(cfg.Store).Comparable() && cfg.Store == live.Store()) {
		return errOtherStore
	}
	return live.Reconfigure(cfg)
}

// quotaConfig returns the settings of a gate with a quota. Without a Store it is for
// the memory of the process.
func (c *compiler) quotaConfig(name string) quota.Config {
	s := c.spec.Gates[name].Quota
	cfg := quota.Config{
		Name: name, Debt: s.Debt, Store: c.opts.Stores[s.Store],
		Queue:    quota.Queue{Len: s.Queue.Len, MaxWait: time.Duration(s.Queue.MaxWait)},
		Identify: identifyWith(c.addressOf()), Hooks: c.hooks(), Now: c.opts.Now,
	}
	if s.Permissive {
		cfg.Mode = quota.Permissive
	}
	if s.Count == "requests" {
		cfg.Cost, cfg.Fixed = func(weir.Work) int64 { return 1 }, true
	}
	switch s.OnStoreError {
	case "open":
		cfg.OnStoreError = quota.Open
	case "closed":
		cfg.OnStoreError = quota.Closed
	}
	for _, r := range s.all() {
		cfg.Rules = append(cfg.Rules, r.rule())
	}
	if c.opts.QuotaRules != nil {
		cfg.Rules = c.opts.QuotaRules(name, cfg.Rules)
	}
	return cfg
}

// Rule returns the rule, or what is wrong with one of its limits.
func (r *QuotaRuleSpec) Rule() (quota.Rule, error) {
	if _, err := r.Parse(); err != nil {
		return quota.Rule{}, err
	}
	return r.rule(), nil
}

// rule is Rule for a spec that has been checked.
func (r *QuotaRuleSpec) rule() quota.Rule {
	limits, _ := r.Parse()
	rule := quota.Rule{Name: r.Name, Limits: limits, Exempt: r.Exempt, Blocked: r.Blocked}
	for _, part := range quotaParts {
		*rule.Part(part) = matchOf(r.says(part))
	}
	return rule
}

func matchOf(word string) quota.Match {
	switch word {
	case "":
		return quota.Match{}
	case "*":
		return quota.Every
	}
	return quota.Named(word)
}

// addressOf returns the part of the identity that is the address work comes from, empty
// if none is.
func (c *compiler) addressOf() string { return c.spec.Identity.AddressPart() }

// AddressPart returns the part of an identity that is the address which work comes from:
// client, user or tenant, empty if none is. It is what rules of a quota look at for an
// address.
func (id *IdentitySpec) AddressPart() string {
	switch {
	case id.Client == "peer":
		return "client"
	case id.User == "peer", id.User == "": // where nobody says it, the user is an address
		return "user"
	case id.Tenant == "peer":
		return "tenant"
	}
	return ""
}

// identifyWith says whom work is from, and its address if a part of that is one. An IPv6
// address is called by its network: 2001:db8::/64.
func identifyWith(addressOf string) func(weir.Work) quota.Identity {
	return func(w weir.Work) quota.Identity {
		id := quota.IdentityOf(w)
		switch addressOf {
		case "client":
			id.Address = w.Client
		case "user":
			id.Address = w.User
		case "tenant":
			id.Address = w.Tenant
		}
		id.Address, _, _ = strings.Cut(id.Address, "/")
		return id
	}
}
