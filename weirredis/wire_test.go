package weirredis

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

func FuzzUnpack(f *testing.F) {
	f.Add("", 1)
	f.Add(string(make([]byte, 25)), 1)
	f.Add(string(make([]byte, 81)), 8)
	f.Add(strings.Repeat("\xff", 25), 1)
	f.Fuzz(func(t *testing.T, s string, n int) {
		_, err := unpack(s, n)
		fits := n >= 0 && n <= quota.MaxWindows && len(s) == 17+8*n
		for at := 1; fits && at < len(s); at += 8 {
			fits = !math.IsNaN(doubleAt(s, at)) && !math.IsInf(doubleAt(s, at), 0)
		}
		if (err == nil) != fits {
			t.Errorf("%d bytes for %d windows: %v", len(s), n, err)
		}
	})
}

// The periods told reach three before and after now, and as far as a reservation
// may wait; their numbers count them one by one.
func TestPackCalendar(t *testing.T) {
	sydney, err := time.LoadLocation("Australia/Sydney")
	if err != nil {
		t.Skip("no time zones here")
	}
	now := time.Date(2026, 4, 4, 23, 30, 0, 0, sydney) // an hour comes twice in the night
	for _, c := range []struct {
		period quota.Period
		ahead  time.Duration
		most   int
	}{
		{quota.Hour, 0, 7}, {quota.Day, 0, 7}, {quota.Week, 0, 7}, {quota.Month, 0, 7},
		{quota.Hour, 24 * time.Hour, 31}, {quota.Hour, 10000 * time.Hour, mostPeriods},
	} {
		calendar := quota.Calendar{Period: c.period, In: sydney}
		b := string(packCalendar(nil, calendar, now, c.ahead))
		n := int(b[8]) | int(b[9])<<8
		if n != c.most || len(b) != 10+16*n {
			t.Errorf("%v, %v ahead: %d periods in %d bytes, want %d", c.period, c.ahead, n, len(b), c.most)
			continue
		}
		first, last := doubleAt(b, 10), doubleAt(b, 10+16*(n-1))
		if start, _ := calendar.Current(now); first >= float64(start.UnixMicro()) || last <= float64(now.UnixMicro()) {
			t.Errorf("%v: from %v to %v, which is not around %v", c.period, first, last, now)
		}
		for i := 1; i < n; i++ {
			at, before := 10+16*i, 10+16*(i-1)
			length := doubleAt(b, at) - doubleAt(b, before)
			if doubleAt(b, at+8) != doubleAt(b, before+8)+1 || length <= 0 || length > doubleAt(b, 0) || math.Mod(length, 1e6) != 0 {
				t.Errorf("%v: period %d is number %v and %v µs long, after %v", c.period, i, doubleAt(b, at+8), length, doubleAt(b, before+8))
			}
		}
	}
}

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
