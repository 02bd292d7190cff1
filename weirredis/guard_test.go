package weirredis

import (
	"strings"
	"testing"
)

// Messages are counted as they end, whatever they are cut into.
func TestFrames(t *testing.T) {
	for name, tt := range map[string]struct {
		text          string
		whole, pushes uint64
	}{
		"a text":        {"$3\r\na\nb\r\n", 1, 0},
		"an empty text": {"$0\r\n\r\n", 1, 0},
		"lines":         {"+OK\r\n-ERR a\r\n:-5\r\n_\r\n,1.5\r\n#t\r\n(99\r\n", 7, 0},
		"nulls":         {"$-1\r\n*-1\r\n", 2, 0},
		"a list":        {"*2\r\n$1\r\na\r\n*0\r\n", 1, 0},
		"lists in one":  {"*2\r\n*1\r\n*1\r\n:1\r\n~1\r\n:2\r\n:3\r\n", 2, 0},
		"a map":         {"%1\r\n+a\r\n:1\r\n", 1, 0},
		"a push":        {">2\r\n+a\r\n+b\r\n:1\r\n", 1, 1},
		"half":          {"*2\r\n:1\r\n", 0, 0},
		"a command":     {"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n", 1, 0},
	} {
		for size := 1; size <= len(tt.text); size++ {
			f, err := scanned(tt.text, size)
			if err != nil || f.whole != tt.whole || f.pushes != tt.pushes {
				t.Errorf("%s, %d bytes at a time: %d and %d pushes, %v; want %d and %d", name, size, f.whole, f.pushes, err, tt.whole, tt.pushes)
			}
		}
	}
}

// What would take memory without end, or cannot be read, is an error before it is.
func TestBadFrames(t *testing.T) {
	for _, text := range []string{
		"x", "\x00", "\r\n", "|1\r\n", ";1\r\n", "$\r\n", "$-\r\n", "$-2\r\n", "$--1\r\n", "$1-\r\n", "$?\r\n", "$1\rx", "$1 \r\n", "$1\n", "+a\n",
		"$16777217\r\n", "$9223372036854775807\r\n", "$99999999999999999999999\r\n", "$" + strings.Repeat("0", 30), "*300000\r\n", "%150000\r\n",
		"*-2\r\n", "%-1\r\n", "~-1\r\n", ">-1\r\n", "*1\r\n>1\r\n", strings.Repeat("*1\r\n", mostNested+1),
		"+" + strings.Repeat("a", mostFrame+1), "*2\r\n$16000000\r\n" + strings.Repeat("a", 16000000) + "\r\n$16000000\r\n",
	} {
		if f, err := scanned(text, len(text)); err == nil {
			t.Errorf("%.40q: %d messages, no error", text, f.whole)
		}
	}
}

func scanned(text string, size int) (f frames, err error) {
	for len(text) > 0 && err == nil {
		n := min(size, len(text))
		err = f.scan([]byte(text[:n]))
		text = text[n:]
	}
	return f, err
}

func FuzzFrames(f *testing.F) {
	for _, text := range []string{"$3\r\nabc\r\n", "*2\r\n:1\r\n%1\r\n+a\r\n_\r\n", ">1\r\n+a\r\n", "$-1\r\n", "+OK\r\n-ERR\r\n"} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		all, err := scanned(text, max(len(text), 1))
		cut, cutErr := scanned(text, max(size, 1))
		if (err == nil) != (cutErr == nil) {
			t.Fatalf("%v in one piece, %v in several", err, cutErr)
		}
		if err == nil && (all.whole != cut.whole || all.pushes != cut.pushes) {
			t.Errorf("%d and %d in one piece, %d and %d in several", all.whole, all.pushes, cut.whole, cut.pushes)
		}
		if len(all.open) > mostNested || err == nil && all.budget < 0 {
			t.Errorf("%d nested, %d left", len(all.open), all.budget)
		}
	})
}

func BenchmarkFrames(b *testing.B) {
	command := []byte("*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + strings.Repeat("a", 40) + "\r\n$1\r\n1\r\n$16\r\n" + strings.Repeat("k", 16) + "\r\n$53\r\n" + strings.Repeat("x", 53) + "\r\n$25\r\n" + strings.Repeat("y", 25) + "\r\n")
	var f frames
	for b.Loop() {
		if err := f.scan(command); err != nil {
			b.Fatal(err)
		}
	}
}
