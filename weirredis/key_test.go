package weirredis

import (
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	long := strings.Repeat("k", longestKey)
	for _, c := range []struct{ name, key, want string }{ // want "": hashed
		{"plain", "api/user=alice", "weir:{=api/user=alice}"},
		{"empty", "", "weir:{=}"},
		{"longest", long, "weir:{=" + long + "}"},
		{"looks hashed", "#wIZGNC", "weir:{=#wIZGNC}"},
		{"too long", long + "k", ""},
		{"10 KB", strings.Repeat("k", 10_000), ""},
		{"NUL", "a\x00b", ""},
		{"newline", "a\nb", ""},
		{"space", "a b", ""},
		{"braces", "{a}{b}", ""},
		{"closing brace", "}", ""},
		{"not ASCII", "ä", ""},
		{"not UTF-8", "\xff\xfe", ""},
	} {
		got := keyOf("weir:", c.key)
		if c.want != "" && got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if c.want == "" && (!strings.HasPrefix(got, "weir:{#") || len(got) != len("weir:{#}")+43) {
			t.Errorf("%s: %q is not hashed", c.name, got)
		}
		if strings.Count(got, "{") != 1 || strings.IndexByte(got, '}') != len(got)-1 {
			t.Errorf("%s: %q has no single hash tag", c.name, got)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("a", "b")
	f.Add("", "{}")
	f.Add("#x", "x\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		if (keyOf("p:", a) == keyOf("p:", b)) != (a == b) {
			t.Errorf("%q and %q: %q and %q", a, b, keyOf("p:", a), keyOf("p:", b))
		}
	})
}

// 0x31C3 is what the specification of Redis Cluster gives for its CRC of these.
func TestSlots(t *testing.T) {
	if got := slotOf("p", "p{123456789}"); got != 0x31c3 {
		t.Errorf("slot %#x, want 0x31c3", got)
	}
}
