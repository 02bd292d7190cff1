package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
)

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
		case i == address:
			b = appendAddress(b, m, id.Address)
		case m.kind == named:
			b = appendEscaped(b, m.name)
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

// appendAddress appends whom an address counts as: the network that the rule names,
// or the address itself, of IPv6 its /64.
func appendAddress(b []byte, m Match, text string) []byte {
	if m.kind == named {
		if n, err := networkOf(m.name); err == nil {
			return appendEscaped(b, n.String())
		}
	}
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
