package weirredis

import (
	"crypto/sha256"
	"encoding/base64"
)

// longestKey is the longest key that is a part of the server's key as it is.
const longestKey = 200

// keyOf returns the server's key for key: the prefix, and in braces = and the key
// itself or # and its SHA-256. So no two keys are one, and none can be made to be
// by whoever chooses them.
//
// What stands in the braces is what Redis Cluster places the key by. A brace in
// the key, a control character, a byte that is not ASCII, or great length would
// make the server's key ambiguous, unreadable or large: such a key is hashed.
func keyOf(prefix, key string) string {
	if plain(key) {
		return prefix + "{=" + key + "}"
	}
	sum := sha256.Sum256([]byte(key))
	return prefix + "{#" + base64.RawURLEncoding.EncodeToString(sum[:]) + "}"
}

// plain reports whether key can be a part of the server's key.
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

// probeKey is a key of the same slot, and so of the same node.
func probeKey(key string) string { return key + ":probe" }

// slotOf returns the hash slot that Redis Cluster puts a key of keyOf into: CRC-16
// (XMODEM) of what stands between the braces, modulo 16,384.
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
