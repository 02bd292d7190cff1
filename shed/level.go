package shed

import (
	"math/bits"
	"strconv"
	"time"

	"github.com/weir-go/weir"
)

// How levels are made: of [classes] classes, each with users levels.
const (
	// classes are the priorities, from weir.Background to weir.Critical.
	classes = weir.Classes
	// users are the levels of a class, which its users are hashed to.
	users = 128
	// Levels are all levels.
	Levels = classes * users
)

// Level says how important work is: its priority first, then the present level of its user.
// The level of a gate is the lowest that is let through: 0 lets everything through, [Levels]
// nothing.
type Level uint16

// Class returns the class of the level by priority, 0 for weir.Background to 3
// for weir.Critical.
func (l Level) Class() int { return min(int(l)/users, classes-1) }

// String returns priority and user level, "normal/37", or "none" for the level that lets
// nothing through.
func (l Level) String() string {
	if l >= Levels {
		return "none"
	}
	return weir.PriorityOf(l.Class()).String() + "/" + strconv.Itoa(int(l)%users)
}

// level returns the level of a class and a hash.
func level(class int, hash uint64) Level { return Level(class*users) | Level(hash>>(64-7)) }

// named returns the hash of the user of w, or of its tenant if it has no user. It returns
// false if w has neither.
func named(salt uint64, w *weir.Work) (uint64, bool) {
	switch {
	case w.User != "":
		return hash(salt, w.User), true
	case w.Tenant != "":
		return hash(^salt, w.Tenant), true
	}
	return 0, false
}

const (
	golden = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio, as in splitmix64
	odd    = 0xd6e8feb86659fd93
)

// mix folds a 128-bit product: every bit of a and b changes the result.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hash spreads names evenly over 64 bits. It reads eight bytes at a time, the last ones
// twice if need be. Nobody can predict it without the salt.
func hash(salt uint64, s string) uint64 {
	n := len(s)
	h := salt ^ golden*uint64(n)
	for i := 0; i < n-8; i += 8 {
		h = mix(h^word(s[i:]), odd) + golden
	}
	switch {
	case n >= 8:
		h ^= word(s[n-8:])
	case n >= 4:
		h ^= half(s) | half(s[n-4:])<<32
	case n > 0:
		h ^= uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16
	}
	return mix(mix(h, odd)^golden, odd)
}

// word reads eight bytes, half four.
func word(s string) uint64 { return half(s) | half(s[4:])<<32 }

func half(s string) uint64 {
	_ = s[3]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}

// salter returns a new salt each period.
type salter struct {
	secret uint64
	period time.Duration // negative: for ever
}

// at returns the salt at a time since 1970.
func (s salter) at(day time.Duration) uint64 {
	if s.period < 0 {
		return mix(s.secret^golden, odd)
	}
	return mix(s.secret^golden*(1+uint64(day/s.period)), odd)
}
