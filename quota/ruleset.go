package quota

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/weir-go/weir"
)

// rules are the rules of a quota, ready to be looked up. They are not written to
// after they have been made.
type rules struct {
	list   []Rule
	ready  []*rule // the same, in the same order
	shapes []shape // the most exact first
	titles map[string]*rule
}

// rule is a rule as a decision needs it.
type rule struct {
	title           string
	at              int // in the list of rules
	matches         Pattern
	limits          []Window
	exempt, blocked bool
	// successor is the rule that took this one's place, of those who still hold
	// permits by it.
	successor atomic.Pointer[rule]
}

// window returns the window that a result is about as a [weir.Rejection] says it.
func (r *rule) window(of Decision) int {
	if len(r.limits) < 2 {
		return 0
	}
	return of.Window + 1
}

// settling returns the limits by which work is settled that was charged by r: those
// in force now, as far as it was charged by them.
func (r *rule) settling() []Window {
	now := r
	for next := r; next != nil; next = next.successor.Load() {
		now = next
	}
	return now.limits[:min(len(r.limits), len(now.limits))]
}

// shape is the rules that look at the same parts in the same way. It finds the one
// that matches by one look into a map, however many there are.
type shape struct {
	rank  int          // higher is more exact
	kinds [parts]uint8 // how each part is looked at
	bits  int          // of the networks, if addresses are named
	one   int          // the only part that is named, -1 if there are more or none
	only  *rule        // if no part is named
	by    map[string]*rule
	names map[names]*rule
}

// names are the values of the named parts.
type names struct {
	text    [parts]string
	network netip.Prefix
}

// compile makes rules ready, or reports every fault.
func compile(list []Rule, debt bool, f *faults) *rules {
	rs := &rules{list: slices.Clone(list)}
	found := map[[parts]uint8]map[int]*shape{}
	rs.titles = map[string]*rule{}
	for i := range rs.list {
		r := &rs.list[i]
		r.check(f, i, debt)
		r.Windows = slices.Clone(r.Windows)
		compiled := &rule{title: r.title(), at: i, matches: r.Pattern(), limits: r.Windows, exempt: r.Exempt, blocked: r.Blocked}
		rs.ready = append(rs.ready, compiled)
		kinds, key := signature(compiled)
		byBits := found[kinds]
		if byBits == nil {
			byBits = map[int]*shape{}
			found[kinds] = byBits
		}
		s := byBits[key.network.Bits()]
		if s == nil {
			s = newShape(kinds, key.network.Bits())
			byBits[s.bits] = s
		}
		if other := s.put(key, compiled); other != nil {
			f.check(false, "Rules[%d] (%.60s): matches the same as rule %.60q: leave one out", i, compiled.title, other.title)
		}
		if first, ok := rs.titles[compiled.title]; ok && first.matches != compiled.matches {
			f.check(false, "Rules[%d]: is called %.60q, as is Rules[%d]", i, compiled.title, slices.Index(rs.ready, first))
		}
		rs.titles[compiled.title] = compiled
	}
	for _, byBits := range found {
		for _, s := range byBits {
			rs.shapes = append(rs.shapes, *s)
		}
	}
	slices.SortFunc(rs.shapes, func(a, b shape) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(b.bits, a.bits))
	})
	return rs
}

// signature returns how a rule looks at each part, and the values that it names.
func signature(r *rule) (kinds [parts]uint8, key names) {
	key.network = netip.PrefixFrom(netip.Addr{}, -1)
	for i, m := range r.matches {
		kinds[i] = m.kind
		if m.kind != named {
			continue
		}
		key.text[i] = m.name
		if i == address {
			key.text[i] = ""
			if n, err := netip.ParsePrefix(m.name); err == nil {
				key.network = n
			}
		}
	}
	return kinds, key
}

func newShape(kinds [parts]uint8, bits int) *shape {
	s := &shape{kinds: kinds, bits: bits, one: -1, by: map[string]*rule{}, names: map[names]*rule{}}
	count := 0
	for i, k := range kinds {
		s.rank = s.rank*3 + int(k)
		if k == named {
			count++
			s.one = i
		}
	}
	if count != 1 || s.one == address {
		s.one = -1
	}
	return s
}

// put adds a rule, or returns the one that matches the same.
func (s *shape) put(key names, r *rule) (same *rule) {
	switch {
	case !slices.Contains(s.kinds[:], named):
		same, s.only = s.only, r
	case s.one >= 0:
		same, s.by[key.text[s.one]] = s.by[key.text[s.one]], r
	default:
		same, s.names[key] = s.names[key], r
	}
	return same
}

// succeeded tells what became of the rules that were in force before next. each is
// called for every limit that has another in its place.
func (rs *rules) succeeded(next *rules, each func(old, now *Window)) {
	after := map[Pattern]*rule{}
	for _, r := range next.ready {
		after[r.matches] = r
	}
	for _, old := range rs.ready {
		now := after[old.matches]
		if now == nil || len(old.limits) == 0 || len(now.limits) == 0 {
			continue
		}
		old.successor.Store(now)
		for w := range min(len(old.limits), len(now.limits)) {
			each(&old.limits[w], &now.limits[w])
		}
	}
}

// find returns the rule for an identity, nil if none matches.
func (rs *rules) find(id *Identity) *rule {
	for i := range rs.shapes {
		if r := rs.shapes[i].find(id); r != nil {
			return r
		}
	}
	return nil
}

func (s *shape) find(id *Identity) *rule {
	if s.only != nil {
		return s.only
	}
	if s.one >= 0 {
		return s.by[id.part(s.one)]
	}
	key := names{network: netip.PrefixFrom(netip.Addr{}, -1)}
	for i, k := range s.kinds {
		if k != named {
			continue
		}
		if i != address {
			key.text[i] = id.part(i)
			continue
		}
		a, err := netip.ParseAddr(id.Address)
		if err != nil {
			return nil
		}
		if key.network, err = a.Unmap().WithZone("").Prefix(s.bits); err != nil {
			return nil
		}
	}
	return s.names[key]
}

// Matched is a rule that matches a piece of work. Its Name is set, also where it is the
// default, and its Windows are shared: do not write to them.
type Matched struct {
	Rule
	// Why says why the rule counts. It is empty for a rule that does not.
	Why string
}

// Explain returns the rules that match w: first the one that counts, and then each that
// would count without those before it. It asks no store.
func (q *Quota) Explain(w weir.Work) []Matched {
	set := q.settings.Load()
	id := set.identify(w)
	var all []Matched
	for i := range set.rules.shapes {
		if r := set.rules.shapes[i].find(&id); r != nil {
			rule := set.rules.list[r.at]
			rule.Name = r.title
			all = append(all, Matched{Rule: rule})
		}
	}
	if len(all) == 1 {
		all[0].Why = "no other matches"
	} else if len(all) > 1 {
		all[0].Why = moreExact(&all[0].Rule, &all[1].Rule)
	}
	return all
}

// moreExact says why first counts and next does not, which matches too: by the first part
// that they do not look at alike.
func moreExact(first, next *Rule) string {
	a, b := first.Pattern(), next.Pattern()
	for i, part := range partNames {
		switch is, not := a[i].kind, b[i].kind; {
		case is == named && not == every:
			return fmt.Sprintf("it names the %s, and %s is for each", part, next.Name)
		case is == named && not == unseen:
			return fmt.Sprintf("it names the %s, which %s does not look at", part, next.Name)
		case is == every && not == unseen:
			return fmt.Sprintf("it is for each %s, which %s does not look at", part, next.Name)
		}
	}
	return "its network is smaller than that of " + next.Name
}

// Override puts rules over base: each takes the place, and the name, of the rule of base
// with the same pattern, or is added at the end.
func Override(base, rules []Rule) []Rule {
	all := slices.Clone(base)
	places := make(map[Pattern]int, len(all))
	for i := range all {
		places[all[i].Pattern()] = i
	}
	for _, r := range rules {
		i, ok := places[r.Pattern()]
		if !ok {
			all = append(all, r)
			continue
		}
		r.Name = all[i].Name
		all[i] = r
	}
	return all
}

// longestKey bounds the key that a store is given. What is longer is cut, and told
// apart by a hash.
const longestKey = 200

// appendKey appends the key of the bucket that a rule gives to an identity: the
// gate's name, and the parts that the rule looks at, as in
// "api/user=alice/client=web". Two identities have the same key exactly if they
// share the bucket.
func appendKey(b []byte, gate string, r *rule, id *Identity) []byte {
	begin := len(b)
	b = appendEscaped(b, gate)
	for i, m := range r.matches {
		if m.kind == unseen {
			continue
		}
		b = append(b, '/')
		b = append(b, partNames[i]...)
		b = append(b, '=')
		switch {
		case m.kind == named:
			b = appendEscaped(b, m.name)
		case i == address:
			b = appendAddress(b, id.Address)
		default:
			b = appendEscaped(b, id.part(i))
		}
	}
	if len(b)-begin <= longestKey {
		return b
	}
	const digits = 32
	sum := sha256.Sum256(b[begin:])
	b = append(b[:begin+longestKey-digits-1], '~')
	return hex.AppendEncode(b, sum[:digits/2])
}

// appendAddress appends whom an address counts as: itself, of IPv6 its /64.
func appendAddress(b []byte, text string) []byte {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return appendEscaped(b, text)
	}
	if n, ok := client6(a); ok {
		return n.Addr().AppendTo(b)
	}
	return a.Unmap().AppendTo(b)
}

// appendEscaped appends a value so that what stands between two values is nowhere
// in one.
func appendEscaped(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		switch {
		case c <= ' ', c == 0x7f, c == '/', c == '%', c == '~', c == '{', c == '}':
			b = append(b, '%', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}
