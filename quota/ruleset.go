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
	"github.com/weir-go/weir/internal/fault"
)

// Rules returns the rules in force, in the order in which they were given. Their Windows
// are shared: do not write to them.
func (q *Quota) Rules() []Rule {
	table := q.settings.Load().rules
	list := make([]Rule, len(table.rules))
	for i, r := range table.rules {
		list[i] = r.Rule
	}
	return list
}

// Windows returns the windows of the rule that a Rejection or an Answer names. It returns
// nil if the rule is not in force any more or has none. They are shared: do not write to
// them.
func (q *Quota) Windows(rule string) []Window {
	if r := q.settings.Load().rules.titles[rule]; r != nil {
		return r.Windows
	}
	return nil
}

// WithoutValues returns what may be told of the rule that a Rejection or an Answer names, where no user may
// be named. That is its Name, or else [Pattern.WithoutValues]. It returns "" if the rule is not in force any more.
func (q *Quota) WithoutValues(rule string) string {
	switch r := q.settings.Load().rules.titles[rule]; {
	case r == nil:
		return ""
	case r.Name != "":
		return r.Name
	default:
		return r.pattern.WithoutValues()
	}
}

// Matched is a rule that matches a piece of work. Its Name is set, also where it is the
// default, and its Windows are shared: do not write to them.
type Matched struct {
	Rule
	// Why says why the rule counts. It is empty for a rule that does not.
	Why string
}

// Explain returns the rules that match w. The first one counts. Each of the others
// would count without those before it. It asks no store.
func (q *Quota) Explain(w weir.Work) []Matched {
	set := q.settings.Load()
	var id Identity
	set.identity(&w, &id)
	var all []Matched
	var matching []*rule
	absent := id.absent()
	for _, s := range set.rules.shapes {
		if s.looks&absent != 0 {
			continue
		}
		if r := s.find(&id, &matching); r != nil {
			matching = append(matching, r)
		}
	}
	for _, r := range matching {
		m := Matched{Rule: r.Rule}
		m.Name = r.title
		all = append(all, m)
	}
	if len(all) == 1 {
		all[0].Why = "no other matches"
	} else if len(all) > 1 {
		all[0].Why = moreExact(&all[0].Rule, &all[1].Rule)
	}
	return all
}

// moreExact says why first counts and next does not, although both match. The reason is
// the first part that they do not treat alike.
func moreExact(first, next *Rule) string {
	a, b := first.Pattern(), next.Pattern()
	for i, part := range partNames {
		switch is, not := a[i].kind(), b[i].kind(); {
		case is == named && not == every:
			return fmt.Sprintf("it names the %s, and %s is for each", part, next.Name)
		case is == named && not == unseen:
			return fmt.Sprintf("it names the %s, which %s does not look at", part, next.Name)
		case is == every && not == unseen:
			return fmt.Sprintf("it is for each %s, which %s does not look at", part, next.Name)
		case i == descriptor && is == named && a[i] != b[i]:
			return "its descriptor is more exact than that of " + next.Name
		}
	}
	return "its network is smaller than that of " + next.Name
}

// Override puts rules over base. A rule with the same pattern as one of base replaces it
// and takes its name. Any other rule is added at the end.
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

// ruleTable finds the rule for an identity. It is not written to after it has been made.
type ruleTable struct {
	rules  []*rule // as they were given
	shapes []shape // the most exact first
	titles map[string]*rule
	// All work that is counted shares a bucket.
	oneBucket bool
}

// rule is a Rule as a decision needs it.
type rule struct {
	Rule
	title   string
	pattern Pattern
	// Its buckets are named by parts of the identity, each after a text, and a last text.
	parts []keyPart
	last  string
	// The descriptor that it names; see parsePattern.
	pairs []pair
	rest  bool
	// successor has replaced this rule, which some permits still know.
	successor atomic.Pointer[rule]
}

// windowNumber returns the window of a decision as a [weir.Rejection] has it.
func (r *rule) windowNumber(d Decision) int {
	if len(r.Windows) < 2 {
		return 0
	}
	return d.Window + 1
}

// chargedWindows returns the windows by which a charge is corrected. They are those in
// force now, but no more than there were when it was made.
func (r *rule) chargedWindows() []Window {
	now := r.inForce()
	return now.Windows[:min(len(r.Windows), len(now.Windows))]
}

// inForce returns the rule that has replaced r, or r itself.
func (r *rule) inForce() *rule {
	for next := r.successor.Load(); next != nil; next = next.successor.Load() {
		r = next
	}
	return r
}

// charged has a bucket that was charged by r fill by the windows in force. A change of the rule has told the store only of
// the buckets that there were, and the charge may have come a moment later.
func (r *rule) charged(m *Memory, hash uint64) {
	if r.successor.Load() != nil {
		_ = r.correct(m, hash, 0) // of windows that were just charged
	}
}

// correct gives tokens back to a bucket that was charged by r. It looks again if the rule has changed meanwhile.
func (r *rule) correct(m *Memory, hash uint64, tokens float64) error {
	for {
		now := r.inForce()
		if err := m.refund(hash, r.chargedWindows(), tokens); err != nil || r.inForce() == now {
			return err
		}
		tokens = 0
	}
}

// compileRules makes the table of a gate, or adds every fault to f.
func compileRules(gate string, list []Rule, debt bool, f *fault.List) *ruleTable {
	t := &ruleTable{titles: map[string]*rule{}}
	type kind struct {
		kinds [parts]uint8
		bits  int
	}
	shapes := map[kind]*shape{}
	for i := range list {
		at := fault.Path{"Rules"}.Index(i)
		list[i].check(f, at, debt)
		r := newRule(gate, list[i])
		t.rules = append(t.rules, r)
		kinds, key := r.signature()
		k := kind{kinds, key.network.Bits()}
		s := shapes[k]
		if s == nil {
			s = newShape(kinds, k.bits)
			shapes[k] = s
		}
		if other := s.put(key, r); other != nil {
			f.Add(at, fmt.Sprintf("matches the same as rule %.60q", other.title), "leave one out")
		}
		if first, ok := t.titles[r.title]; ok && first.pattern != r.pattern {
			f.Add(at, fmt.Sprintf("is called %.60q, as is Rules[%d]", r.title, slices.Index(t.rules, first)), "give each a Name of its own")
		}
		t.titles[r.title] = r
	}
	counting := slices.DeleteFunc(slices.Clone(t.rules), func(r *rule) bool { return r.Exempt || r.Blocked })
	t.oneBucket = len(counting) == 1 && len(counting[0].parts) == 0
	for _, s := range shapes {
		t.shapes = append(t.shapes, *s)
	}
	slices.SortFunc(t.shapes, func(a, b shape) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(b.bits, a.bits))
	})
	return t
}

// find returns the rule for an identity, nil if none matches.
func (t *ruleTable) find(id *Identity) *rule {
	absent := id.absent()
	for i := range t.shapes {
		if t.shapes[i].looks&absent != 0 {
			continue
		}
		if r := t.shapes[i].find(id, nil); r != nil {
			return r
		}
	}
	return nil
}

// replacedBy links each rule to the one of next that matches the same, or that takes its buckets over. It calls changed
// for each window and the one in its place.
func (t *ruleTable) replacedBy(next *ruleTable, changed func(old, now *Window)) {
	after := map[Pattern]*rule{}
	for _, r := range next.rules {
		after[r.pattern] = r
	}
	for _, old := range t.rules {
		now := after[old.pattern]
		if now == nil {
			now = heir(old.pattern, after)
		}
		if now == nil || len(old.Windows) == 0 || len(now.Windows) == 0 {
			continue
		}
		old.successor.Store(now)
		for w := range min(len(old.Windows), len(now.Windows)) {
			changed(&old.Windows[w], &now.Windows[w])
		}
	}
}

// heir returns the most exact rule that takes over the buckets of one that goes, nil if there is none. It is for each value of
// a part of which that names one: both name the bucket by the value. Named networks and descriptors name it in another way.
func heir(gone Pattern, rules map[Pattern]*rule) *rule {
	for widened := 1; widened < 1<<address; widened++ { // the first part is the highest bit, because it is compared first
		p, names := gone, true
		for i := range address {
			if widened&(1<<(address-1-i)) != 0 {
				names = names && p[i].kind() == named
				p[i] = Every
			}
		}
		if names && rules[p] != nil {
			return rules[p]
		}
	}
	return nil
}

// shape is the rules that use the same parts in the same way. One lookup in a map
// finds the one that matches, however many there are.
type shape struct {
	rank  int          // higher is more exact
	kinds [parts]uint8 // how each part is looked at
	looks uint8        // which parts are, as bits
	bits  int          // of the networks, if addresses are named
	one   int          // the only part that is named, -1 if there are more or none
	only  *rule        // if no part is named
	by    map[string]*rule
	names map[names]*rule
	// If descriptors are named, by the values of the other parts. tree is for no such value.
	tree  *branch
	trees map[names]*branch
}

// names are the values of the named parts, but for the descriptor.
type names struct {
	text    [parts]string
	network netip.Prefix
}

// signature returns how a rule looks at each part, and the values that it names.
func (r *rule) signature() (kinds [parts]uint8, key names) {
	key.network = netip.PrefixFrom(netip.Addr{}, -1)
	for i, m := range r.pattern {
		switch kinds[i] = m.kind(); {
		case kinds[i] != named || i == descriptor:
		case i != address:
			key.text[i] = present(m.value())
		default:
			if n, err := netip.ParsePrefix(m.value()); err == nil {
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
		if k != unseen {
			s.looks |= 1 << i
		}
		if k == named && i != descriptor {
			count++
			s.one = i
		}
	}
	if kinds[descriptor] == named {
		s.one = -1
		if count == 0 {
			s.tree = &branch{}
		} else {
			s.trees = map[names]*branch{}
		}
	}
	if count != 1 || s.one == address {
		s.one = -1
	}
	return s
}

// put adds a rule, and returns the one that matches the same, if there is one.
func (s *shape) put(key names, r *rule) (same *rule) {
	switch {
	case s.tree != nil:
		return s.tree.put(r)
	case s.trees != nil:
		if s.trees[key] == nil {
			s.trees[key] = &branch{}
		}
		return s.trees[key].put(r)
	case !slices.Contains(s.kinds[:], named):
		same, s.only = s.only, r
	case s.one >= 0:
		same, s.by[key.text[s.one]] = s.by[key.text[s.one]], r
	default:
		same, s.names[key] = s.names[key], r
	}
	return same
}

// find returns the rule for an identity, nil if none matches. With all, the rules that name
// descriptors are appended there, as [branch.find] does.
func (s *shape) find(id *Identity, all *[]*rule) *rule {
	if s.only != nil {
		return s.only
	}
	if s.tree != nil {
		return s.tree.match(id.Descriptor, all)
	}
	if s.one >= 0 {
		return s.by[id.part(s.one)]
	}
	key := names{network: netip.PrefixFrom(netip.Addr{}, -1)}
	for i, k := range s.kinds {
		if k != named || i == descriptor {
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
	if s.trees != nil {
		return s.trees[key].match(id.Descriptor, all)
	}
	return s.names[key]
}

// longestKey bounds the keys of buckets. A longer one is cut, and ends in a hash.
const longestKey = 200

// keyPart is a part of an identity in the key of a bucket, and the text before it.
type keyPart struct {
	text string
	part int
}

// newRule returns a rule of a gate.
func newRule(gate string, given Rule) *rule {
	r := &rule{Rule: given, title: given.title(), pattern: given.Pattern()}
	r.Windows = slices.Clone(r.Windows)
	if name, ok := r.pattern[descriptor].Value(); ok {
		r.pairs, r.rest, _ = parsePattern(name) // Rule.check has the error
	}
	text := appendEscaped(nil, gate)
	for i, m := range r.pattern {
		if m == "" {
			continue
		}
		text = append(append(append(text, '/'), partNames[i]...), '=')
		if name, ok := m.Value(); ok && i != descriptor {
			text = appendEscaped(text, name)
			continue
		}
		r.parts = append(r.parts, keyPart{string(text), i})
		text = text[:0]
	}
	r.last = string(text)
	return r
}

// appendKey appends the key of the bucket that a rule gives to an identity. The key is
// the gate's name and the parts that the rule uses, as in "api/user=alice/client=web".
// Two identities have the same key if and only if they share the bucket.
func (r *rule) appendKey(b []byte, id *Identity) []byte {
	begin := len(b)
	for i := range r.parts {
		p := &r.parts[i]
		b = append(b, p.text...)
		switch {
		case p.part == address:
			b = appendAddress(b, id.Address)
		case p.part == descriptor && (len(r.pairs) > 0 || r.rest):
			b = r.appendDescriptor(b, id.Descriptor)
		default:
			b = appendEscaped(b, id.part(p.part))
		}
	}
	b = append(b, r.last...)
	if len(b)-begin <= longestKey {
		return b
	}
	const digits = 32
	sum := sha256.Sum256(b[begin:])
	b = append(b[:begin+longestKey-digits-1], '~')
	return hex.AppendEncode(b, sum[:digits/2])
}

// appendAddress appends an address; of IPv6 its /64, because a host has a whole one.
func appendAddress(b []byte, text string) []byte {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return appendEscaped(b, text)
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		network, _ := a.Prefix(64) // an address of IPv6 has as many bits
		a = network.Addr()
	}
	return a.AppendTo(b)
}

// appendEscaped appends a value without the bytes that separate values.
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
