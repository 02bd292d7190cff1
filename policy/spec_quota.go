package policy

import (
	"slices"

	"github.com/weir-go/weir/quota"
)

// QuotaSpec is a gate that limits what is used up and comes back with time: requests,
// bytes, tokens, so many a second or a day. See package quota. Nothing is held in it,
// so it stands before the gate with a limit; work that a later gate refuses gets back
// what it has been charged.
type QuotaSpec struct {
	QuotaLimitSpec
	// By says whom the limits are for: each user, client, tenant, route, priority or
	// address has buckets of its own, and with several words each combination. Left out,
	// all work shares one. It is short for a rule with "*" for each word.
	By []string `json:"by,omitempty"`
	// Rules are quotas of some, instead of or beside that. The most exact one that matches
	// counts, whatever their order: see quota.Rule.
	Rules []QuotaRuleSpec `json:"rules,omitempty"`
	// Count says what a token is: cost (default), what work costs by its route, settled when
	// it is known; or requests: each is one, whatever it costs to other gates.
	Count string `json:"count,omitempty"`
	// Debt lets work through iff its bucket is not in debt, whatever the work costs, as
	// Kafka does. Without it there have to be as many tokens as it costs.
	Debt bool `json:"debt,omitempty"`
	// Permissive refuses nothing: all is charged, into debt if need be.
	Permissive bool `json:"permissive,omitempty"`
	// Queue lets work wait for its tokens, where the gate is the last of its route. By
	// default nothing waits.
	Queue QuotaQueueSpec `json:"queue,omitzero"`
	// Store names one of Options.Stores, which keeps the buckets. Left out, they are in
	// the memory of the process.
	Store string `json:"store,omitempty"`
	// OnStoreError says what to do when that store cannot tell: local (default) goes by
	// buckets in the memory of the process, open lets everything through, closed refuses.
	OnStoreError string `json:"on_store_error,omitempty"`
	// MaxKeys bounds the buckets in memory, without a Store: quota.MemoryConfig.MaxKeys. A
	// gate whose bound is changed begins anew, with full buckets.
	MaxKeys int `json:"max_keys,omitempty"`
	// Headers are those in which answers tell the client about its quota: ratelimit
	// (default; RateLimit and RateLimit-Policy), legacy (X-RateLimit-Limit and its
	// like), both or none. Policy only keeps it for whoever answers: [Gate.QuotaHeaders].
	Headers string `json:"headers,omitempty"`
	// Unit is what RateLimit-Policy says that a token is: requests (default), which goes
	// without saying, or content-bytes. It changes nothing of what is counted, and is kept
	// for whoever answers: [Gate.QuotaUnit].
	Unit string `json:"unit,omitempty"`
}

// QuotaLimitSpec is the limits of a bucket: one, written as Rate and Burst, or several
// Limits, of which tokens are taken from all or none.
type QuotaLimitSpec struct {
	// Rate and Burst are one limit: "10/s", and the most that may come at once. Rate is
	// whatever [ParseLimit] reads. Burst is 0 where Rate says all.
	Rate  string  `json:"rate,omitempty"`
	Burst float64 `json:"burst,omitempty"`
	// Limits are several, each as ParseLimit reads it: "10/s burst 20", "1000/h",
	// "5000 a day Europe/Berlin". A window is known by its place: leave them in order.
	Limits []string `json:"limits,omitempty"`
}

// QuotaRuleSpec is a rule of a quota. Each part that it names must match: a value, or
// "*" for each value there is, which gives each a bucket of its own.
type QuotaRuleSpec struct {
	// Name is what rejections call the rule. Default: what it matches.
	Name     string `json:"name,omitempty"`
	User     string `json:"user,omitempty"`
	Client   string `json:"client,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Route    string `json:"route,omitempty"`
	Priority string `json:"priority,omitempty"`
	// Address is a network in CIDR notation, such as 10.0.0.0/8 or 192.0.2.7/32, or "*".
	// One of IdentitySpec's sources must be peer.
	Address string `json:"address,omitempty"`
	QuotaLimitSpec
	// Exempt lets those whom the rule matches through without counting, Blocked refuses
	// them all; either stands instead of limits.
	Exempt  bool `json:"exempt,omitempty"`
	Blocked bool `json:"blocked,omitempty"`
}

// QuotaQueueSpec is the wait for tokens to come back.
type QuotaQueueSpec struct {
	// Len is how many may wait. 0 means that nothing waits.
	Len int `json:"len,omitempty"`
	// MaxWait bounds the time spent waiting. 0 means quota.DefaultMaxWait (2s), -1 only
	// the work's own bounds.
	MaxWait Duration `json:"max_wait,omitempty"`
}

// The words of a quota, the defaults first.
var (
	quotaParts   = quota.Parts()
	counts       = []string{"cost", "requests"}
	storeErrors  = []string{"local", "open", "closed"}
	quotaHeaders = []string{"ratelimit", "legacy", "both", "none"}
	quotaUnits   = []string{"requests", "content-bytes"} // of the fields' registry; its third, concurrent-requests, is no quota's
)

// Part returns what the rule says of a part, one of [quota.Parts], to be read or set;
// nil for any other word.
func (r *QuotaRuleSpec) Part(word string) *string {
	switch word {
	case "user":
		return &r.User
	case "client":
		return &r.Client
	case "tenant":
		return &r.Tenant
	case "route":
		return &r.Route
	case "priority":
		return &r.Priority
	case "address":
		return &r.Address
	}
	return nil
}

// says returns what the rule says of a part, nothing of one that there is not.
func (r *QuotaRuleSpec) says(part string) string {
	if p := r.Part(part); p != nil {
		return *p
	}
	return ""
}

// isSet reports whether there is any limit.
func (l *QuotaLimitSpec) isSet() bool { return l.Rate != "" || l.Burst != 0 || len(l.Limits) > 0 }

// Parse returns the limits, or what is wrong with one of them.
func (l *QuotaLimitSpec) Parse() ([]quota.Limit, error) {
	texts := l.Limits
	if l.Rate != "" {
		texts = append([]string{l.Rate}, texts...)
	}
	var limits []quota.Limit
	for i, text := range texts {
		parsed, err := ParseLimit(text)
		if err != nil {
			return nil, err
		}
		if i == 0 && l.Burst != 0 {
			parsed.Burst = l.Burst
		}
		limits = append(limits, parsed)
	}
	return limits, nil
}

// base is the rule that By and the quota's own limits stand for, false if there is none.
func (s *QuotaSpec) base() (QuotaRuleSpec, bool) {
	r := QuotaRuleSpec{QuotaLimitSpec: s.QuotaLimitSpec}
	for _, word := range s.By {
		if p := r.Part(word); p != nil {
			*p = "*"
		}
	}
	return r, s.isSet()
}

// all returns the rules in the order of the file, the base last.
func (s *QuotaSpec) all() []QuotaRuleSpec {
	rules := slices.Clone(s.Rules)
	if base, ok := s.base(); ok {
		rules = append(rules, base)
	}
	return rules
}

// LooksAt reports whether any rule looks at a part, a word of By.
func (s *QuotaSpec) LooksAt(part string) bool {
	return slices.ContainsFunc(s.all(), func(r QuotaRuleSpec) bool { return r.says(part) != "" })
}

// Each reports whether some rule gives each value of a part a bucket of its own.
func (s *QuotaSpec) Each(part string) bool {
	return slices.ContainsFunc(s.all(), func(r QuotaRuleSpec) bool { return r.says(part) == "*" })
}
