package quota

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
)

// Rule gives a quota to the callers that it matches, exempts them, or blocks them.
//
// If several rules match, one counts: the most exact. Rules are compared by User
// first, then by Client, Tenant, Route, Priority, Address and Descriptor. In each of these,
// a named value goes before [Every], and Every before a part that the rule does not
// use. For users and clients that is Kafka's order of precedence:
//
//	user alice, client web      (alice, web) has a bucket of its own
//	user alice, every client    so has each client of alice
//	user alice                  all clients of alice share one
//	every user, client web      ...
//	every user, every client
//	every user
//	client web                  all users of web share one
//	every client
//
// The rule that counts also says whose bucket is charged. The values of the parts that
// the rule uses name the bucket. So a rule that comes or goes may change the bucket. A
// rule that replaces another with the same parts keeps it.
//
// A Route is compared with Work.Op, a Priority with its name: background to critical.
// Addresses come from Config.Identify. A Descriptor names pairs, and each pair one value, each
// value that begins in one way, or all of these together: see [AppendPair].
type Rule struct {
	// Name of the rule in refusals. Left out, it is what the rule matches.
	Name string `json:"name,omitempty" example:"trial"`
	// The user that the rule is about, or "*": each has a bucket of its own.
	User Match `json:"user,omitempty" empty:"no" example:"alice"`
	// The client that the rule is about, or "*": each has a bucket of its own.
	Client Match `json:"client,omitempty" empty:"no" example:"importer"`
	// The tenant that the rule is about, or "*": each has a bucket of its own.
	Tenant Match `json:"tenant,omitempty" empty:"no" example:"acme"`
	// The route that the rule is about, by its name, or "*": each has a bucket of its own.
	Route Match `json:"route,omitempty" empty:"no" example:"batches"`
	// The priority that the rule is about, or "*": each has a bucket of its own.
	Priority Match `json:"priority,omitempty" empty:"no" example:"background"`
	// The network that requests come from, or "*": each address has a bucket of its own. The addresses of a network
	// share a bucket; one alone is 10.0.0.1/32.
	Address Match `json:"address,omitempty" empty:"no" example:"10.0.0.0/8"`
	// The descriptor that the rule is about, for Envoy's rate limit service: pairs in their order. key=value names
	// a value. key=* is each value, key=begin* each that begins so, and ** in place of * lets them share a bucket.
	// A last ** stands for any further pairs. "*" alone is each descriptor.
	Descriptor Match `json:"descriptor,omitempty" empty:"no" example:"database=users,plan=*"`

	// Windows hold together: work is charged to all of them or to none. A window is known
	// by its index, so keep their order when you change one. Without Windows, Exempt or
	// Blocked must be set. Documents have no field for them: package policy reads limits.
	Windows []Window `json:",omitempty"`

	// Do not count this work at all, instead of a limit.
	Exempt bool `json:"exempt,omitempty" default:"false"`
	// Refuse all of this work, instead of a limit.
	Blocked bool `json:"blocked,omitempty" default:"false"`
}

// Part returns the field for a part, one of [Parts]; nil for any other name.
func (r *Rule) Part(name string) *Match {
	if i := slices.Index(partNames[:], name); i >= 0 {
		return r.fields()[i]
	}
	return nil
}

func (r *Rule) fields() [parts]*Match {
	return [parts]*Match{&r.User, &r.Client, &r.Tenant, &r.Route, &r.Priority, &r.Address, &r.Descriptor}
}

// title returns the name, or what the rule matches.
func (r *Rule) title() string {
	if r.Name != "" {
		return r.Name
	}
	return r.matches().String()
}

// matches returns what the rule matches as it is written.
func (r *Rule) matches() (p Pattern) {
	for i, m := range r.fields() {
		p[i] = *m
	}
	return p
}

// Pattern returns what the rule matches, with a network and a descriptor in their usual form.
func (r *Rule) Pattern() Pattern {
	p := r.matches()
	if name, ok := r.Address.Value(); ok {
		if n, err := networkOf(name); err == nil {
			p[address] = Named(n.String())
		}
	}
	if name, ok := r.Descriptor.Value(); ok {
		if pairs, rest, err := parsePattern(name); err == nil {
			p[descriptor] = Named(patternText(pairs, rest))
		}
	}
	return p
}

// Pattern is what a rule matches, as a value that can be compared: a quota has one rule
// for each pattern.
type Pattern [parts]Match

// String returns the parts that the rule looks at, as in "user=alice,client=*"; "all" if
// there are none. A name that could be read in another way is quoted. No two patterns have the same text.
func (p Pattern) String() string {
	var words []string
	for i, m := range p {
		if m == "" {
			continue
		}
		text := m.value()
		if name, ok := m.Value(); ok && i != descriptor && (name == "" || name == string(Every) || strings.ContainsAny(name, ",'")) {
			text = "'" + inQuotes.Replace(name) + "'"
		}
		words = append(words, partNames[i]+"="+text)
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, ",")
}

// WithoutValues returns the parts that the rule looks at, with "..." for each value, as in
// "user=...,client=*". A value may be a secret, such as an API key by which a user is known.
func (p Pattern) WithoutValues() string {
	for i, m := range p {
		if m.kind() == named {
			p[i] = "..."
		}
	}
	return p.String()
}

// inQuotes writes what ends a quoted name in another way.
var inQuotes = strings.NewReplacer(`\`, `\\`, "'", `\'`)

// check adds what is wrong with a rule to f. debt says that a burst may be below 1.
func (r *Rule) check(f *fault.List, at fault.Path, debt bool) {
	if r.Exempt || r.Blocked {
		f.Require(!r.Exempt || !r.Blocked, at, "is Exempt and Blocked; leave one out")
		f.Require(len(r.Windows) == 0, at, "has Windows, but is Exempt or Blocked; leave one out")
	} else {
		checkWindows(f, at, r.Windows)
	}
	for i, w := range r.Windows {
		f.Check(debt || !(w.Burst > 0 && w.Burst < 1), at.At("Windows").Index(i).At("Burst"), w.Burst, "must be at least 1, or nothing is ever let through; or set Debt")
	}
	if name, ok := r.Priority.Value(); ok {
		_, known := weir.ParsePriority(name)
		f.Check(known, at.At("Priority"), name, "must be background, normal, high or critical")
	}
	if name, ok := r.Address.Value(); ok {
		_, err := networkOf(name)
		f.Check(err == nil, at.At("Address"), name, "must be an IP address or a network such as 10.0.0.0/8")
	}
	if err := CheckDescriptor(string(r.Descriptor)); err != nil {
		f.Add(at.At("Descriptor"), err.Error(), "")
	}
}

// Match says which values of one part of an identity a rule matches. It is one value, or
// [Every], or, if it is empty, all of them together. Use [Named] for values that come from
// elsewhere: they may be empty, or look like Every.
//
// The Match of an address may be a network in CIDR notation. All addresses in it share a
// bucket, and the smallest network that matches counts.
type Match string

// Every matches each value, also the empty one, and gives each a bucket of its own. Kafka
// calls this the default of an entity.
const Every Match = "*"

// quoted begins a Match that is not what it looks like: an empty value, or one like Every.
const quoted = "\x00"

// Named matches exactly one value, whatever that is.
func Named(value string) Match {
	if value == "" || value == string(Every) || strings.HasPrefix(value, quoted) {
		return Match(quoted + value)
	}
	return Match(value)
}

// The kinds of a Match. A higher one is more exact.
const (
	unseen uint8 = iota
	every
	named
)

func (m Match) kind() uint8 {
	switch m {
	case "":
		return unseen
	case Every:
		return every
	}
	return named
}

// value returns the value that is named.
func (m Match) value() string { return strings.TrimPrefix(string(m), quoted) }

// Value returns the value that m names. ok is false if it names none.
func (m Match) Value() (value string, ok bool) {
	if m.kind() != named {
		return "", false
	}
	return m.value(), true
}

// Identity is what the rules of a quota compare: who asks, and for what.
type Identity struct {
	User, Client, Tenant string
	// Route is the operation: Work.Op.
	Route    string
	Priority weir.Priority
	// Address is the network address that work comes from. A [weir.Work] has none: set it
	// by Config.Identify.
	Address string
	// Descriptor is Work.Descriptor.
	Descriptor string
}

// Absent, as a part of an Identity, is no value at all, where a protocol tells that from an empty one. No rule matches
// that looks at the part, [Every] included. Only Config.Identify can say so: what a [weir.Work] names is never Absent, whatever
// the name is.
const Absent = "\x00"

// present returns a name as a part of an Identity. Clients choose their names, and must not pass rules by the
// name that is Absent. So each name made of it alone is one longer, and no two are the same.
func present(name string) string {
	if name != "" && strings.Trim(name, Absent) == "" {
		return name + Absent
	}
	return name
}

// absent returns which parts are Absent, as bits.
func (id *Identity) absent() (parts uint8) {
	parts |= bitIf(id.User == Absent, user)
	parts |= bitIf(id.Client == Absent, client)
	parts |= bitIf(id.Tenant == Absent, tenant)
	parts |= bitIf(id.Route == Absent, route)
	parts |= bitIf(id.Address == Absent, address)
	return parts | bitIf(id.Descriptor == Absent, descriptor)
}

func bitIf(is bool, bit int) uint8 {
	if is {
		return 1 << bit
	}
	return 0
}

// IdentityOf returns the identity that a piece of work itself has, without an address. It
// is the default of Config.Identify; a function that adds an address begins with it.
func IdentityOf(w weir.Work) (id Identity) {
	id.fill(&w)
	return id
}

func (id *Identity) fill(w *weir.Work) {
	id.User, id.Client, id.Tenant, id.Priority = present(w.User), present(w.Client), present(w.Tenant), w.Priority
	id.Route, id.Descriptor = present(w.Op), present(w.Descriptor)
}

// The parts of an identity, in the order in which rules are compared.
const (
	user = iota
	client
	tenant
	route
	priority
	address
	descriptor
	parts
)

var partNames = [parts]string{"user", "client", "tenant", "route", "priority", "address", "descriptor"}

// Parts returns the names of the parts of an identity, in the order in which rules are
// compared; see [Rule.Part].
func Parts() []string { return slices.Clone(partNames[:]) }

// part returns one part of an identity as text.
func (id *Identity) part(i int) string {
	switch i {
	case user:
		return id.User
	case client:
		return id.Client
	case tenant:
		return id.Tenant
	case route:
		return id.Route
	case priority:
		return id.Priority.String()
	case address:
		return id.Address
	}
	return id.Descriptor
}

// networkOf returns the network that the Address of a rule names.
func networkOf(name string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(name)
	if a := p.Addr(); a.Is4In6() { // addresses are looked up as IPv4
		if p.Bits() < ipv4InIPv6 {
			return p, errors.New("more than all of IPv4")
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-ipv4InIPv6)
	}
	return p.Masked(), err
}

// ipv4InIPv6 is the number of bits before an IPv4 address that is written as IPv6.
const ipv4InIPv6 = 96
