package weirredis

import (
	"crypto/sha1"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"time"

	"github.com/weir-go/weir/quota"
)

// script makes a decision in one step.
//
//go:embed bucket.lua
var script string

// scriptSHA is the name by which the server knows the script.
var scriptSHA = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()

// scriptFault begins the script's errors about a key; all others are about the server.
const scriptFault = "weir: "

// foreignFault is the script's error about a value that is no bucket.
const foreignFault = scriptFault + "this value is not a bucket"

// modeRefund is the mode of a refund. It follows those of quota.Mode.
const modeRefund = uint8(quota.Reserve) + 1

// request is the input of the script.
type request struct {
	mode    uint8
	debt    bool
	cost    float64
	maxWait time.Duration
	lease   float64 // tokens to take in addition, if there are as many
	limits  []quota.Window
}

// pack appends the request as bucket.lua reads it. now is the process's own clock: the script
// learns the calendar from it, but never the time. clock, if not 0, replaces the server's
// clock, for tests.
func (r *request) pack(b []byte, now time.Time, clock int64) []byte {
	b = append(b, r.mode, 0)
	if r.debt {
		b[len(b)-1] = 1
	}
	b = double(b, r.cost)
	b = double(b, float64(r.maxWait))
	b = double(b, r.lease)
	b = double(b, float64(clock))
	b = append(b, uint8(len(r.limits)))
	for i := range r.limits {
		l := &r.limits[i]
		b = append(b, uint8(l.Calendar.Period))
		b = double(b, l.Burst)
		if l.Calendar.Period == 0 {
			b = double(b, l.Rate)
			continue
		}
		ahead := time.Duration(0)
		if r.mode == uint8(quota.Reserve) {
			ahead = r.maxWait
		}
		b = packCalendar(b, l.Calendar, now, ahead)
	}
	return b
}

func double(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}

// reply is the output of the script.
type reply struct {
	ok      bool
	charged float64
	now     time.Time // by the server's clock
	tokens  [quota.MaxWindows]float64
}

var errReply = errors.New("the script's answer is not understood")

// unpack reads the tokens that each of n windows had before the charge.
func unpack(s string, n int) (r reply, err error) {
	if n < 0 || n > len(r.tokens) || len(s) != 17+8*n {
		return r, errReply
	}
	r.ok = s[0] == 1
	r.charged = doubleAt(s, 1)
	r.now = time.UnixMicro(int64(doubleAt(s, 9)))
	for i := range n {
		r.tokens[i] = doubleAt(s, 17+8*i)
	}
	for at := 1; at < len(s); at += 8 {
		if f := doubleAt(s, at); math.IsNaN(f) || math.IsInf(f, 0) {
			return reply{}, errReply
		}
	}
	return r, nil
}

func doubleAt(s string, i int) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[i : i+8])))
}

// probeArg is a decision that is never refused: see Store.probe.
var probeArg = string((&request{mode: uint8(quota.Permissive), cost: 1, limits: []quota.Window{{Rate: 1e6, Burst: 1}}}).pack(nil, time.Time{}, 0))

// around is how many periods before and after the process's own the script learns. The
// server's clock may be behind or ahead by as many.
const around = 3

// mostPeriods bounds the periods of a reservation that may wait long.
const mostPeriods = 1000

// packCalendar appends the starts of the periods around now, and of those up to ahead later,
// each with its number. So the script knows which period the server's time is in, and how
// many have begun since another time.
func packCalendar(b []byte, c quota.Calendar, now time.Time, ahead time.Duration) []byte {
	b = double(b, float64(longest(c.Period).Microseconds()))
	at := len(b)
	b = append(b, 0, 0) // how many
	start, _ := c.Current(now)
	for range around {
		start, _ = c.Current(start.Add(-1))
	}
	n := 0
	for beyond := 0; beyond < around && n < mostPeriods; n++ {
		b = double(b, float64(start.UnixMicro()))
		b = double(b, c.Number(start))
		if start.Sub(now) > ahead {
			beyond++
		}
		_, start = c.Current(start)
	}
	binary.LittleEndian.PutUint16(b[at:], uint16(n))
	return b
}

// longest bounds the length of a period, also when clocks are put back.
func longest(p quota.Period) time.Duration {
	const day = 24 * time.Hour
	switch p {
	case quota.Day:
		return day + 2*time.Hour
	case quota.Week:
		return 7*day + 2*time.Hour
	case quota.Month:
		return 31*day + 2*time.Hour
	}
	return time.Hour
}

// longestKey bounds the keys that are part of the server's key as they are.
const longestKey = 200

// keyOf returns the server's key for a key: the prefix, and in braces = and the key itself, or
// # and its SHA-256. So no two keys become one, whoever chooses them.
//
// Redis Cluster places a key by what is in the braces. A key with a brace, a control
// character or a byte that is not ASCII would make the server's key ambiguous or
// unreadable. Such a key is hashed, and so is a long one.
func keyOf(prefix, key string) string {
	if plain(key) {
		return prefix + "{=" + key + "}"
	}
	sum := sha256.Sum256([]byte(key))
	return prefix + "{#" + base64.RawURLEncoding.EncodeToString(sum[:]) + "}"
}

// plain reports whether a key can be part of the server's key.
func plain(key string) bool {
	if len(key) > longestKey {
		return false
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c >= 0x7f || c == '{' || c == '}' {
			return false
		}
	}
	return true
}

// probeKey returns another key of the same slot, and so of the same node.
func probeKey(key string) string { return key + ":probe" }

// slotOf returns the hash slot of a key of keyOf in Redis Cluster. It is CRC-16 (XMODEM)
// of what is in the braces, modulo 16,384.
func slotOf(prefix, key string) uint16 {
	var crc uint16
	for _, c := range []byte(key[len(prefix)+1 : len(key)-1]) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}

// slots is the number of hash slots of a cluster.
const slots = 16384
