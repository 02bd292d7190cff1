package quota

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A descriptor says what work is about in pairs of a key and a value, as Envoy's rate limit
// service does: database=users,plan=free. Keys and values are free. Their order counts.

// AppendPair appends a pair to a descriptor, in the form of [weir.Work].Descriptor. It is
// for callers whose keys and values come from elsewhere. A comma, an equals sign, an
// asterisk, a per cent sign and what cannot be printed are escaped, as in %2C. A key or a
// value of more than 256 bytes keeps its beginning, and ends in a hash.
func AppendPair(b []byte, key, value string) []byte {
	if len(b) > 0 {
		b = append(b, ',')
	}
	b = append(appendWord(b, key), '=')
	return appendWord(b, value)
}

// Bounds of the words of a descriptor in bytes. Of a longer word, the beginning is kept.
const (
	longestWord = 256
	keptOfWord  = 208
	// longestPrefix is below what is kept, so a long value still has its beginning.
	longestPrefix = 200
)

// hashed stands before the hash of a long word, and in no other.
const (
	hashed     = "%~"
	hashDigits = 32
)

// deepest is how many pairs a rule may name.
const deepest = 16

func appendWord(b []byte, s string) []byte {
	if len(s) <= longestWord {
		return appendPercent(b, s)
	}
	sum := sha256.Sum256([]byte(s))
	b = append(appendPercent(b, s[:keptOfWord]), hashed...)
	return hex.AppendEncode(b, sum[:hashDigits/2])
}

func appendPercent(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(s); {
		c, size := s[i], 1
		switch {
		case c < ' ', c == 0x7f, c == ',', c == '=', c == '%', c == '*':
			b = append(b, '%', digits[c>>4], digits[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			var r rune
			if r, size = utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
				b = append(b, '%', digits[c>>4], digits[c&15])
			} else {
				b = append(b, s[i:i+size]...)
			}
		}
		i += size
	}
	return b
}

// ParseDescriptor reads a descriptor that a person has written, as in
// "database=users,plan=free", and returns it in the form of [weir.Work].Descriptor. A comma
// inside a value is written as %2C.
func ParseDescriptor(text string) (string, error) {
	pairs, rest, err := parsePattern(text)
	if err != nil {
		return "", err
	}
	if rest || slices.ContainsFunc(pairs, func(p pair) bool { return p.wild != exactly }) {
		return "", errors.New("has an asterisk, which is not a value; name one, or write %2A for the character")
	}
	return patternText(pairs, false), nil
}

// CheckDescriptor returns what is wrong with a text as the Descriptor of a [Rule].
func CheckDescriptor(text string) error {
	m := Match(text)
	if name, ok := m.Value(); ok {
		_, _, err := parsePattern(name)
		return err
	}
	return nil
}

// The ways in which a pair of a rule names values.
const (
	exactly  uint8 = iota // one value
	each                  // key=begin*: those that begin so, each with a bucket of its own
	together              // key=begin**: those that begin so share a bucket
)

// pair is a pair that a rule names.
type pair struct {
	text string // as in a descriptor, up to the asterisk
	wild uint8
}

// String returns the pair as a rule names it.
func (p *pair) String() string { return p.text + "**"[:p.wild] }

// key returns the key, with the equals sign.
func (p *pair) key() string { return p.text[:strings.IndexByte(p.text, '=')+1] }

// parsePattern reads the descriptor that a rule names. With rest there may be further pairs,
// and one at least: the text ends with ",**".
func parsePattern(text string) (pairs []pair, rest bool, err error) {
	words := strings.Split(text, ",")
	if words[len(words)-1] == "**" {
		words, rest = words[:len(words)-1], true
	}
	if len(words) > deepest {
		return nil, false, fmt.Errorf("has %d pairs; write at most %d", len(words), deepest)
	}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "" {
			return nil, false, fmt.Errorf("%.60q is not a pair; write key=value, key=* for each value, or key=** for all of them together", word)
		}
		p := pair{}
		for p.wild < together && strings.HasSuffix(value, "*") {
			value = value[:len(value)-1]
			p.wild++
		}
		if strings.Contains(key, "*") || strings.Contains(value, "*") {
			return nil, false, fmt.Errorf("%.60q has an asterisk that is not at its end; write %%2A for the character", word)
		}
		if key, err = usualWord(key); err == nil {
			value, err = usualWord(value)
		}
		if err != nil {
			return nil, false, fmt.Errorf("%.60q: %w", word, err)
		}
		if n := len(value); p.wild != exactly && (n > longestPrefix || strings.Contains(value, hashed)) {
			return nil, false, fmt.Errorf("%.60q has %d bytes before its asterisk; write at most %d", word, n, longestPrefix)
		}
		p.text = key + "=" + value
		pairs = append(pairs, p)
	}
	return pairs, rest, nil
}

// usualWord returns a word that a person has written as appendWord does, or one that
// appendWord has written.
func usualWord(s string) (string, error) {
	begin, hash := s, ""
	if i := strings.LastIndex(s, hashed); i >= 0 && len(s)-i == len(hashed)+hashDigits {
		begin, hash = s[:i], s[i:]
	}
	plain, err := unescape(begin)
	if err != nil {
		return "", err
	}
	return string(appendWord(nil, plain)) + hash, nil
}

// unescape is the inverse of appendPercent.
func unescape(s string) (string, error) {
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+3 > len(s) {
			return "", errors.New("a per cent sign is written as %25")
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", errors.New("a per cent sign is written as %25")
		}
		b = append(b, byte(c))
		i += 2
	}
	return string(b), nil
}

// patternText is the inverse of parsePattern.
func patternText(pairs []pair, rest bool) string {
	words := make([]string, 0, len(pairs)+1)
	for i := range pairs {
		words = append(words, pairs[i].String())
	}
	if rest {
		words = append(words, "**")
	}
	return strings.Join(words, ",")
}

// branch finds the rule for a descriptor, among rules that name one. It is the root, or what
// follows after some pairs.
type branch struct {
	ends  *rule // for descriptors that end here
	goOn  *rule // for those that do not
	exact map[string]*branch
	some  map[string][]twig // by key; the longest first
}

// twig leads on from values that begin in one way.
type twig struct {
	pair
	next *branch
}

// put adds a rule, and returns the one that matches the same, if there is one.
func (b *branch) put(r *rule) (same *rule) {
	for _, p := range r.pairs {
		b = b.grow(p)
	}
	if r.rest {
		same, b.goOn = b.goOn, r
	} else {
		same, b.ends = b.ends, r
	}
	return same
}

// grow returns the branch after a pair.
func (b *branch) grow(p pair) *branch {
	if p.wild == exactly {
		next := b.exact[p.text]
		if next == nil {
			if b.exact == nil {
				b.exact = map[string]*branch{}
			}
			next = &branch{}
			b.exact[p.text] = next
		}
		return next
	}
	twigs := b.some[p.key()]
	i, ok := slices.BinarySearchFunc(twigs, p, func(t twig, p pair) int {
		return cmp.Or(cmp.Compare(len(p.text), len(t.text)), cmp.Compare(t.text, p.text), cmp.Compare(t.wild, p.wild))
	})
	if !ok {
		if b.some == nil {
			b.some = map[string][]twig{}
		}
		twigs = slices.Insert(twigs, i, twig{p, &branch{}})
		b.some[p.key()] = twigs
	}
	return twigs[i].next
}

// match is find for the descriptor of work. Work without one matches no rule that names one.
func (b *branch) match(descriptor string, all *[]*rule) *rule {
	if b == nil || descriptor == "" {
		return nil
	}
	return b.find(descriptor, all)
}

// find returns the most exact rule for a descriptor, nil if none matches. Pairs are compared
// from the first on. A value that is named goes before a beginning, and a longer beginning
// before a shorter one. With all, find appends every rule that matches, the most exact
// first, and returns nil.
func (b *branch) find(descriptor string, all *[]*rule) *rule {
	if descriptor == "" {
		return found(b.ends, all)
	}
	p, more, _ := strings.Cut(descriptor, ",")
	if next := b.exact[p]; next != nil {
		if r := next.find(more, all); r != nil {
			return r
		}
	}
	twigs := b.some[p[:strings.IndexByte(p, '=')+1]]
	for i := range twigs {
		if t := &twigs[i]; strings.HasPrefix(p, t.text) {
			if r := t.next.find(more, all); r != nil {
				return r
			}
		}
	}
	return found(b.goOn, all)
}

func found(r *rule, all *[]*rule) *rule {
	if r == nil || all == nil {
		return r
	}
	*all = append(*all, r)
	return nil
}

// appendDescriptor appends what the rule looks at in a descriptor that it matches.
func (r *rule) appendDescriptor(b []byte, descriptor string) []byte {
	for i := range r.pairs {
		if i > 0 {
			b = append(b, ',')
		}
		p, more, _ := strings.Cut(descriptor, ",")
		if r.pairs[i].wild == each {
			b = appendEscaped(b, p)
		} else {
			b = appendEscaped(b, r.pairs[i].text)
			b = append(b, "**"[:r.pairs[i].wild]...)
		}
		descriptor = more
	}
	if r.rest {
		b = append(b, ",**"...)
	}
	return b
}
