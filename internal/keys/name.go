package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"strings"
)

// inline is the longest key that a table keeps as it is. It is the length of a
// UUID with its dashes, and what fits into an entry of 56 bytes.
const inline = 36

// A longer key is kept as the first bytes of it, which are for the reader, and 20
// bytes of its SHA-256.
const (
	digested     = 20
	shown        = inline - digested
	digestLength = inline + 1 // as Name.n: no key that is kept as it is has this length
)

// Name is a key as a table keeps it: of fixed size, without a pointer.
//
// Two keys are one to a table exactly if their names are equal. Up to 36 bytes the
// name is the key, so nothing can be mistaken. Above, it is 160 bits of a
// cryptographic hash: to find two keys with the same takes 2^80 attempts at
// either, and who has found them has merged two keys of his own making. A shorter
// hash, of 64 or 128 bits, that is not cryptographic would do against chance, but
// not against somebody who chooses the keys; and to keep long keys whole would let
// that somebody choose how much memory a key takes.
type Name struct {
	b [inline]byte
	n uint8
}

// NameOf returns the name of key. That of a long key costs a SHA-256 of it.
func NameOf(key string) (n Name) {
	if len(key) <= inline {
		n.n = uint8(copy(n.b[:], key))
		return n
	}
	sum := sha256.Sum256([]byte(key))
	copy(n.b[:shown], key)
	copy(n.b[shown:], sum[:digested])
	n.n = digestLength
	return n
}

// String returns the key, or of a long one its first 16 bytes and 8 digits of the
// hash: enough to tell which it is.
func (n *Name) String() string {
	if n.n != digestLength {
		return string(n.b[:n.n])
	}
	return strings.ToValidUTF8(string(n.b[:shown]), "") + "…" + hex.EncodeToString(n.b[shown:shown+4])
}

// hash is the same for the same name and seed.
func (n *Name) hash(seed maphash.Seed) uint64 {
	return maphash.Bytes(seed, n.b[:min(n.n, inline)])
}
