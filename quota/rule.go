package quota

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir"
)

// Rule gives a quota to the callers that it matches, exempts them, or blocks them.
//
// If several rules match, one counts: the most exact. Rules are compared by User
// first, then by Client, Tenant, Route, Priority and Address. In each of these, a
// named value goes before [Every], and Every before a part that the rule does not
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
type Rule struct {
	// Name is what rejections call the rule. The default is what it matches, as in
	// "user=alice,client=*".
	Name string

	User, Client, Tenant Match
	// Route matches Work.Op.
	Route Match
	// Priority matches one by its name: "background" to "critical".
	Priority Match
	// Address matches the network address; see [Named].
	Address Match

	// Windows hold together: work is charged to all of them or to none. A window is known
	// by its index, so keep their order when you change one.
	Windows []Window
	// Exempt admits all work that the rule matches, without counting it. Blocked refuses
	// all of it. Without Windows, one of the two must be set.
	Exempt, Blocked bool
}

// Part returns the field for a part, one of [Parts]; nil for any other name.
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

// check adds what is wrong with a rule to f. debt says that a burst may be below 1.
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

// Match says which values of one part of an identity a rule matches. The zero Match does
// not use the part: all its values share what the rule gives.
type Match struct {
	kind uint8
	name string
}

const (
	unseen uint8 = iota
	every
	named
)

// Every matches each value, also the empty one, and gives each a bucket of its own. Kafka
// calls this the default of an entity.
var Every = Match{kind: every}

// Named matches exactly one value. For addresses it may be a network in CIDR notation.
// All addresses in it share a bucket, and the smallest network that matches counts.
func Named(value string) Match { return Match{named, value} }

// Value returns the value of [Named], and false for any other Match.
func (m Match) Value() (string, bool) { return m.name, m.kind == named }

// Identity is what the rules of a quota compare: who asks, and for what.
type Identity struct {
	User, Client, Tenant string
	// Route is the operation: Work.Op.
	Route    string
	Priority weir.Priority
	// Address is the network address that work comes from. A [weir.Work] has none: set it
	// by Config.Identify.
	Address string
}

// IdentityOf returns the identity that a piece of work itself has, without an address. It
// is the default of Config.Identify; a function that adds an address begins with it.
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
	}
	return id.Address
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
