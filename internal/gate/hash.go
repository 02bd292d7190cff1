package gate

import "hash/maphash"

// Hash spreads names over a table. Nobody can foresee it, and so nobody can choose names that collide.
// On virtual time it is the same in every run instead, because its collisions change figures.
type Hash struct {
	seed    maphash.Seed
	virtual bool
}

// NewHash returns a hash of its own, or the one for virtual time.
func NewHash(virtual bool) Hash { return Hash{maphash.MakeSeed(), virtual} }

// String returns the hash of a name.
func (h *Hash) String(name string) uint64 {
	if h.virtual {
		return fnv(name)
	}
	return maphash.String(h.seed, name)
}

// Bytes returns the hash of a name that is no string yet. It is that of the string.
func (h *Hash) Bytes(name []byte) uint64 {
	if h.virtual {
		return fnv(name)
	}
	return maphash.Bytes(h.seed, name)
}

// fnv is FNV-1a of 64 bits, with its bits mixed at the end: tables use the upper ones too.
func fnv[T string | []byte](name T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h = (h ^ h>>32) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}
