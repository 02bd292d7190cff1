package quota

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/weir-go/weir"
)

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
