package quota

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir"
)

// Rule gives those whom it matches a quota, exempts them, or blocks them.
//
// Of all rules that match, one counts: the most exact. Rules are compared by User
// first, then by Client, Tenant, Route, Priority and Address; in each, a value that
// is named goes before [Every], and Every before one that is not looked at. For
// users and clients that is Kafka's order of precedence:
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
// The rule that matches also says whose bucket is charged: it is the values of the
// parts that the rule looks at. So a rule that comes or goes can change the bucket;
// a rule that takes another's place with the same parts leaves it.
type Rule struct {
	// Name is what rejections call the rule. Default: what it matches, as in
	// "user=alice,client=*".
	Name string

	User, Client, Tenant Match
	// Route matches Work.Op.
	Route Match
	// Priority matches one by its name: "background" to "critical".
	Priority Match
	// Address matches the network address; see [Named].
	Address Match

	// Windows are the windows of each bucket: tokens are taken from all or none. A
	// window is known by its place, so leave them in order when changing one.
	Windows []Window
	// Exempt lets those whom the rule matches through without counting, Blocked
	// refuses them all. Without Windows, one of the two must be set.
	Exempt, Blocked bool
}

// Part returns what the rule says of a part, one of [Parts], to be read or set; nil for
// any other name.
func (r *Rule) Part(name string) *Match {
	if i := slices.Index(partNames[:], name); i >= 0 {
		return r.fields()[i]
	}
	return nil
}

func (r *Rule) fields() [parts]*Match {
	return [parts]*Match{&r.User, &r.Client, &r.Tenant, &r.Route, &r.Priority, &r.Address}
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

// Pattern returns what the rule matches, with a network in its usual form.
func (r *Rule) Pattern() Pattern {
	p := r.matches()
	if name, ok := r.Address.Value(); ok {
		if n, err := networkOf(name); err == nil {
			p[address] = Named(n.String())
		}
	}
	return p
}

// Pattern is what a rule matches, as a value that can be compared: a quota has one rule
// for each pattern.
type Pattern [parts]Match

// String returns the parts that the rule looks at, as in "user=alice,client=*"; "all" if
// there are none.
func (p Pattern) String() string {
	var words []string
	for i, m := range p {
		switch m.kind {
		case every:
			words = append(words, partNames[i]+"=*")
		case named:
			words = append(words, partNames[i]+"="+m.name)
		}
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, ",")
}

// check reports what is wrong with a rule; debt tells whether any burst will do.
func (r *Rule) check(f *faults, at int, debt bool) {
	where := fmt.Sprintf("Rules[%d] (%.60s): ", at, r.title())
	if r.Exempt || r.Blocked {
		f.check(!r.Exempt || !r.Blocked, "%sis Exempt and Blocked: leave one out", where)
		f.check(len(r.Windows) == 0, "%shas Windows, but is Exempt or Blocked: leave one out", where)
	} else {
		checkWindows(f, where, r.Windows)
	}
	for i, l := range r.Windows {
		f.check(debt || !(l.Burst > 0 && l.Burst < 1), "%sWindows[%d].Burst %v: must be at least 1, or nothing is ever let through; or set Debt", where, i, l.Burst)
	}
	if name, ok := r.Priority.Value(); ok {
		_, known := weir.ParsePriority(name)
		f.check(known, "%sPriority %.40q: must be background, normal, high or critical", where, name)
	}
	if name, ok := r.Address.Value(); ok {
		_, err := networkOf(name)
		f.check(err == nil, "%sAddress %.60q: must be an IP address or a network such as 10.0.0.0/8", where, name)
	}
}

// Match says which values of one part of a work's identity a rule is about. The
// zero value does not look at that part: all values share what the rule gives.
type Match struct {
	kind uint8
	name string
}

const (
	unseen uint8 = iota
	every
	named
)

// Every matches each value there is, the empty one too, and gives each a bucket of
// its own. It is what Kafka calls the default of an entity.
var Every = Match{kind: every}

// Named matches one value: exactly, but for addresses, where it may be a network in
// CIDR notation; all in it share a bucket, and the longest that matches wins.
func Named(value string) Match { return Match{named, value} }

// Value returns the value that m is about, and false if it is not about one.
func (m Match) Value() (string, bool) { return m.name, m.kind == named }

// Identity is what the rules of a quota look at: whom work is from, and what it is.
type Identity struct {
	User, Client, Tenant string
	// Route is the operation: Work.Op.
	Route    string
	Priority weir.Priority
	// Address is the network address that the work comes from. A [weir.Work] has
	// none: set it with Config.Identify.
	Address string
}

// IdentityOf returns what a piece of work itself says, without an address: what
// Config.Identify is by default, and begins with where it adds one.
func IdentityOf(w weir.Work) Identity {
	return Identity{User: w.User, Client: w.Client, Tenant: w.Tenant, Route: w.Op, Priority: w.Priority}
}

// The parts of an identity, in the order in which rules are compared.
const (
	user = iota
	client
	tenant
	route
	priority
	address
	parts
)

var partNames = [parts]string{"user", "client", "tenant", "route", "priority", "address"}

// Parts are the names of what rules look at, in the order in which they are compared;
// see [Rule.Part].
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
	}
	return id.Address
}

// networkOf returns the network that an address named in a rule stands for.
func networkOf(name string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(name)
	if a := p.Addr(); a.Is4In6() { // as which no address is looked up
		if p.Bits() < ipv4InIPv6 {
			return p, errors.New("more than all of IPv4")
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-ipv4InIPv6)
	}
	return p.Masked(), err
}

// ipv4InIPv6 is where an IPv4 address begins in an IPv6 one that stands for it.
const ipv4InIPv6 = 96

// networkBits is how much of an IPv6 address is one client: a host has a whole /64.
const networkBits = 64

// client6 returns the network that counts as one client, for an IPv6 address.
func client6(a netip.Addr) (netip.Prefix, bool) {
	if a = a.Unmap().WithZone(""); a.Is4() {
		return netip.Prefix{}, false
	}
	p, err := a.Prefix(networkBits)
	return p, err == nil
}
