package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/quota"
)

// mostQuotaRules is far above what is of use.
const mostQuotaRules = 10_000

// checkQuota checks a gate with a quota.
func (c *compiler) checkQuota(at fault.Path, name string, s *QuotaSpec) {
	c.checkBase(at, s)
	c.checkQuotaRules(at.At("rules"), name, s)
	c.checkQuotaRoom(at, s)
	c.checkStore(at, s)
	if s.Count == "requests" && s.Unit == "content-bytes" {
		c.Add(at.At("unit"), "each token is a request here", "leave it out, or count: requests")
	}
	if s.LooksAt("address") && c.spec.AddressPart(name) == "" {
		c.Add(at, noAddress, giveAddress)
	}
}

// noAddress is the fault of a quota or a rule for addresses where nothing is one.
const (
	noAddress   = "counts by addresses, but no part of the identity is one"
	giveAddress = "write identity: {client: address}, and by: [address], or a rule with address:"
)

// checkBase checks the limits of the quota itself, and the parts of the identity in By.
func (c *compiler) checkBase(at fault.Path, s *QuotaSpec) {
	if !s.isSet() {
		switch {
		case len(s.By) > 0:
			c.Add(at.At("by"), "says whom a limit is for, but there is none", "write rate: 10/s beside it")
		case len(s.Rules) == 0 && !c.spec.RuntimeRules:
			c.Add(at, "has neither a limit nor rules", "write rate: 10/s, or rules: [{user: alice, rate: 10/s}]")
		}
	}
	c.checkLimits(at, &s.QuotaLimitSpec, s.Debt)
	for i, word := range s.By {
		at := at.At("by").Index(i)
		if word == "" || !slices.Contains(quotaParts, word) {
			c.Add(at, fmt.Sprintf("%q is not a part of an identity", word), partMeant(word))
		} else if slices.Contains(s.By[:i], word) {
			c.Add(at, fmt.Sprintf("%q is written twice", word), "write it once")
		}
	}
}

// partMeant is what to write instead of a word that is no part. Users of the command line's --by
// may write ip, or the source of the user. In a file, the identity names that source.
func partMeant(word string) string {
	switch kind, of, _ := strings.Cut(word, ":"); {
	case isForeignAddress(word):
		return "write address"
	case word == "principal":
		return "write user"
	case strings.HasPrefix(sourceMeant(word), "header:"):
		return "write user, and identity: {user: " + sourceMeant(word) + "}"
	case of != "" && slices.Contains([]string{"header", "cert", "path"}, kind):
		return "write user, and identity: {user: " + word + "}"
	}
	return fault.Suggest(word, quotaParts, "parts")
}

// checkLimits checks the limits of one bucket.
func (c *compiler) checkLimits(at fault.Path, l *QuotaLimitSpec, debt bool) {
	if l.Rate != "" && len(l.Limits) > 0 {
		c.Add(at.At("rate"), "there are limits too", "write all of them as limits: [\"10/s burst 20\", 1000/h]")
	}
	switch {
	case l.Burst != 0 && l.Rate == "":
		c.Add(at.At("burst"), "means nothing without a rate", "write rate: 10/s beside it, or a limit such as \"10/s burst 20\"")
	case l.Burst != 0 && strings.Contains(l.Rate, "burst"):
		c.Add(at.At("burst"), "the rate says a burst too", "leave one of them out")
	case l.Burst != 0 && calendarForm.MatchString(l.Rate):
		c.Add(at.At("burst"), "means nothing for a calendar, where all comes back at once", "leave it out")
	}
	if len(l.Limits) > quota.MaxWindows {
		c.Add(at.At("limits"), fmt.Sprintf("%d limits", len(l.Limits)), fmt.Sprintf("write at most %d", quota.MaxWindows))
	}
	if l.Rate != "" {
		c.checkLimitText(at.At("rate"), l.Rate, l.Burst, debt)
	}
	for i, text := range l.Limits {
		c.checkLimitText(at.At("limits").Index(i), text, 0, debt)
	}
}

func (c *compiler) checkLimitText(at fault.Path, text string, burst float64, debt bool) {
	l, err := ParseLimit(text)
	if err != nil {
		c.AddError(at, err)
		return
	}
	if burst > 0 {
		l.Burst = burst
	}
	if l.Burst < 1 && !debt {
		c.Add(at, fmt.Sprintf("a burst of %g lets nothing through that costs 1", l.Burst), "write a burst of at least 1, or debt: true")
	}
}

// checkQuotaRules checks the rules, and that no two match the same, the one that by
// stands for included.
func (c *compiler) checkQuotaRules(at fault.Path, gate string, s *QuotaSpec) {
	if len(s.Rules) > mostQuotaRules {
		c.Add(at, fmt.Sprintf("%d rules", len(s.Rules)), fmt.Sprintf("write at most %d", mostQuotaRules))
		return
	}
	names, patterns := map[string]int{}, map[quota.Pattern]int{}
	for i := range s.Rules {
		r, at := &s.Rules[i], at.Index(i)
		c.checkQuotaRule(at, gate, r, s.Debt)
		if first, ok := names[r.Name]; ok && r.Name != "" {
			c.Add(at.At("name"), fmt.Sprintf("%q is the name of rules[%d] too", r.Name, first), "give each rule a name of its own")
		}
		pattern := r.Pattern()
		if first, ok := patterns[pattern]; ok {
			c.Add(at, fmt.Sprintf("matches the same as rules[%d]", first), "leave one of them out")
			continue
		}
		names[r.Name], patterns[pattern] = i, i
	}
	if base, ok := s.base(); ok {
		if i, ok := patterns[base.Pattern()]; ok {
			c.Add(at.Index(i), "matches the same as by: and the limits beside it", "leave one of them out")
		}
	}
}

// CheckQuotaRule returns the faults that a rule would have in the quota of a gate. The path of each
// fault leads from the rule to the field. It is for rules that are set at run time.
func (s *Spec) CheckQuotaRule(gate string, r *QuotaRuleSpec) []Fault {
	c := &compiler{spec: s, opts: &Options{}}
	setting.Check(nil, *r, &c.List)
	c.checkQuotaRule(nil, gate, r, s.Gates[gate].Quota.Debt)
	if r.Address != "" && s.AddressPart(gate) == "" {
		c.Add(nil, noAddress, giveAddress)
	}
	if r.Name == "" {
		c.checkTitle(r, s.Gates[gate].Quota.Rules)
	}
	return c.All()
}

// checkTitle checks that no rule of the spec has as its name what a rule without one is called by: what it matches, as it
// is written. In the place of a rule that matches the same it has the name of that.
func (c *compiler) checkTitle(r *QuotaRuleSpec, rules []QuotaRuleSpec) {
	var written quota.Pattern
	for i, part := range quotaParts {
		written[i] = *r.Part(part)
	}
	title, pattern, other := written.String(), r.Pattern(), -1
	for i := range rules {
		if rules[i].Name == title && rules[i].Pattern() != pattern {
			other = i
		}
	}
	if other < 0 || slices.ContainsFunc(rules, func(s QuotaRuleSpec) bool { return s.Name != "" && s.Pattern() == pattern }) {
		return
	}
	c.Add(nil, fmt.Sprintf("would be called %.60q, which is the name of rules[%d]", title, other), "give that rule another name in the configuration")
}

func (c *compiler) checkQuotaRule(at fault.Path, gate string, r *QuotaRuleSpec, debt bool) {
	if r.Name != "" {
		c.checkName(at.At("name"), "rule", r.Name)
	}
	c.checkGives(at, r, debt)
	_, asTheyAre := c.spec.OtherWork[gate]
	for _, part := range []string{"user", "client", "tenant"} {
		if name := string(*r.Part(part)); !asTheyAre && bounded(name) != name {
			c.Add(at.At(part), fmt.Sprintf("no %s has this name: long names, and names with characters that cannot be printed, are replaced by a hash", part), fmt.Sprintf("write %q", bounded(name)))
		}
	}
	if err := quota.CheckDescriptor(string(r.Descriptor)); err != nil {
		c.Add(at.At("descriptor"), err.Error(), "")
	}
	if r.Route != "" && r.Route != quota.Every {
		c.checkWord(at.At("route"), "route", string(r.Route), c.routeNames())
	}
	if r.Priority != quota.Every {
		c.checkWord(at.At("priority"), "priority", string(r.Priority), priorities)
	}
	if r.Address != "" && r.Address != quota.Every {
		if p, err := parseNetwork(string(r.Address), peerBits); err != nil {
			c.AddError(at.At("address"), err)
		} else if p.Addr().Is6() && p.Bits() > peerBits {
			c.Add(at.At("address"), fmt.Sprintf("%s is a part of a /64, and a client of IPv6 counts as its whole /64", r.Address),
				fmt.Sprintf("write %v", smallest(p.Addr(), peerBits)))
		}
	}
}

// Check returns what is wrong with the rule under any policy: with what it gives.
func (r *QuotaRuleSpec) Check() error {
	c := &compiler{}
	c.checkGives(nil, r, true)
	return c.Err("")
}

// checkGives checks what a rule gives.
func (c *compiler) checkGives(at fault.Path, r *QuotaRuleSpec, debt bool) {
	switch {
	case r.Exempt && r.Blocked:
		c.Add(at, "is exempt and blocked", "leave one of them out")
	case (r.Exempt || r.Blocked) && r.isSet():
		c.Add(at, "has a limit, but is exempt or blocked", "leave one of them out")
	case !r.Exempt && !r.Blocked && !r.isSet():
		c.Add(at, "gives no limit", "write rate: 10/s, exempt: true or blocked: true")
	}
	c.Require(len(r.Windows) == 0, at, "has Windows; a policy reads limits in words: Rate or Limits")
	c.checkLimits(at, &r.QuotaLimitSpec, debt)
}

// routeNames are the names of the routes of the spec.
func (c *compiler) routeNames() []string {
	names := make([]string, 0, len(c.spec.Routes))
	for _, r := range c.spec.Routes {
		switch {
		case r.Name != "":
			names = append(names, r.Name)
		case len(r.Match) > 0:
			names = append(names, r.Match[0])
		}
	}
	return names
}

func (c *compiler) checkQuotaRoom(at fault.Path, s *QuotaSpec) {
	q := &s.Queue
	switch {
	case q.Len > 0 && s.Permissive:
		c.Add(at.At("queue", "len"), "nothing waits where nothing is refused", "leave out permissive, or the queue")
	case q.Len <= 0 && q.MaxWait != 0:
		c.Add(at.At("queue", "max_wait"), "means nothing where nothing waits", "write len: 100 beside it, or leave it out")
	}
}

func (c *compiler) checkStore(at fault.Path, s *QuotaSpec) {
	if s.Store == "" {
		if s.OnStoreError != "" {
			c.Add(at.At("on_store_error"), "means nothing without a store: the memory of the process can always tell", "leave it out, or write store: and the name of one")
		}
		return
	}
	if s.MaxKeys > 0 {
		c.Add(at.At("max_keys"), "means nothing with a store: it bounds buckets in memory", "leave it out")
	}
	if c.opts.Stores[s.Store] == nil {
		c.Add(at.At("store"), fmt.Sprintf("there is no store %q", s.Store), fault.Suggest(s.Store, slices.Sorted(maps.Keys(c.opts.Stores)), "stores"))
	}
}

// quotaFormat returns how answers report the quota. It is empty for a gate without one.
func (g *GateSpec) quotaFormat() quotaFormat {
	if g.Quota == nil {
		return quotaFormat{}
	}
	return quotaFormat{cmp.Or(g.Quota.Headers, "ratelimit"), cmp.Or(g.Quota.Unit, "requests")}
}

// quotaKind names a quota with where its buckets are, which it keeps.
func (s *QuotaSpec) quotaKind() string { return fmt.Sprintf("quota %q %d", s.Store, s.MaxKeys) }

var errOtherStore = errors.New("policy: the gate's buckets are in another store")

// quota makes the mechanism of a gate with a quota, or lets a live one take up the settings. A live
// one cannot move to another store of the same name.
func (c *compiler) quota(name string, live mechanism) (mechanism, error) {
	cfg := c.quotaConfig(name)
	var err error
	switch {
	case live != nil && cfg.Store != nil && !same(cfg.Store, live.(*quota.Quota).Store()):
		err = errOtherStore
	case live == nil && cfg.Store == nil:
		cfg.Store, err = quota.NewMemory(quota.MemoryConfig{MaxKeys: c.spec.Gates[name].Quota.MaxKeys, Now: c.opts.Now})
	}
	return build(live, quota.New, cfg, err)
}

// quotaConfig returns the settings of a gate with a quota. Without a Store it is for
// the memory of the process.
func (c *compiler) quotaConfig(name string) quota.Config {
	s := c.spec.Gates[name].Quota
	cfg := quota.Config{
		Name: name, Debt: s.Debt, Store: c.opts.Stores[s.Store],
		Queue:    quota.Queue{Len: s.Queue.Len, MaxWait: time.Duration(s.Queue.MaxWait)},
		Identify: identifyWith(c.spec.AddressPart(name)), Hooks: c.hooks(), Now: c.opts.Now,
	}
	if _, ok := c.spec.OtherWork[name]; ok {
		cfg.Identify = withoutClient(cfg.Identify)
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
	for _, r := range s.All() {
		rule, _ := r.Compiled() // it has been checked
		cfg.Rules = append(cfg.Rules, rule)
	}
	if c.opts.QuotaRules != nil {
		cfg.Rules = c.opts.QuotaRules(name, cfg.Rules)
	}
	return cfg
}

// Compiled returns the rule with its limits as windows, or what is wrong with one of them.
func (r *QuotaRuleSpec) Compiled() (quota.Rule, error) {
	rule := r.Rule
	windows, err := r.Parse()
	rule.Windows = windows
	return rule, err
}

// AddressPart returns the part of the identity of a gate's work that is the address it comes from: client, user or tenant. It is
// empty if none is.
func (s *Spec) AddressPart(gate string) string {
	if part, ok := s.OtherWork[gate]; ok {
		return part
	}
	return s.Identity.AddressPart()
}

// AddressPart returns the part of the identity of a request that is the address of the sender: client, user or
// tenant. It is empty if none is. Rules of a quota for an address use this part.
func (id *IdentitySpec) AddressPart() string {
	switch {
	case isAddress(id.Client):
		return "client"
	case isAddress(id.User), id.User == "": // an empty user becomes an address
		return "user"
	case isAddress(id.Tenant):
		return "tenant"
	}
	return ""
}

// identifyWith returns the identity of work for a quota. addressOf names the part that is an
// address, if there is one. An IPv6 address stands for its network: 2001:db8::/64.
func identifyWith(addressOf string) func(weir.Work) quota.Identity {
	return func(w weir.Work) quota.Identity {
		id := quota.IdentityOf(w)
		switch addressOf {
		case "client":
			id.Address = id.Client
		case "user":
			id.Address = id.User
		case "tenant":
			id.Address = id.Tenant
		}
		id.Address, _, _ = strings.Cut(id.Address, "/")
		return id
	}
}

// withoutClient says that work which names no client has none. So no rule about clients matches it, not even one for every client.
func withoutClient(identify func(weir.Work) quota.Identity) func(weir.Work) quota.Identity {
	return func(w weir.Work) quota.Identity {
		id := identify(w)
		id.Client = cmp.Or(id.Client, quota.Absent)
		return id
	}
}

// quotaParts are the words of QuotaSpec.By.
var quotaParts = quota.Parts()

// isSet reports whether there is any limit.
func (l *QuotaLimitSpec) isSet() bool { return l.Rate != "" || l.Burst != 0 || len(l.Limits) > 0 }

// Parse returns the limits, or what is wrong with one of them.
func (l *QuotaLimitSpec) Parse() ([]quota.Window, error) {
	texts := l.Limits
	if l.Rate != "" {
		texts = append([]string{l.Rate}, texts...)
	}
	var limits []quota.Window
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
			*p = quota.Every
		}
	}
	return r, s.isSet()
}

// All returns the rules in the order of the file. If the quota has limits of its own, the rule for
// them and By comes last.
func (s *QuotaSpec) All() []QuotaRuleSpec {
	rules := slices.Clone(s.Rules)
	if base, ok := s.base(); ok {
		rules = append(rules, base)
	}
	return rules
}

// LooksAt reports whether any rule counts by a part, a word of By.
func (s *QuotaSpec) LooksAt(part string) bool {
	return slices.ContainsFunc(s.All(), func(r QuotaRuleSpec) bool { return *r.Part(part) != "" })
}

// Each reports whether some rule gives each value of a part a bucket of its own.
func (s *QuotaSpec) Each(part string) bool {
	return slices.ContainsFunc(s.All(), func(r QuotaRuleSpec) bool { return *r.Part(part) == quota.Every })
}
