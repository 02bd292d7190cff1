package weirredis

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// heard is a connection on which the server says this, whatever it is asked.
type heard struct {
	net.Conn
	io.Reader
	closed bool
}

func (h *heard) Read(p []byte) (int, error)  { return h.Reader.Read(p) }
func (h *heard) Write(p []byte) (int, error) { return len(p), nil }
func (h *heard) Close() error                { h.closed = true; return nil }

func soloOf(said string) (*solo, *heard) {
	h := &heard{Reader: strings.NewReader(said)}
	return &solo{conn: h, in: bufio.NewReaderSize(h, longestLine)}, h
}

// What is no text and no fault is not gone by, nor what was not asked for.
func TestSoloAnswers(t *testing.T) {
	for said, want := range map[string]struct {
		text, fault string
		lies        bool
	}{
		"$3\r\na\r\n\r\n":                      {text: "a\r\n"},
		"+OK\r\n":                              {text: "OK"},
		"-NOSCRIPT no\r\n":                     {fault: "NOSCRIPT no"},
		"$0\r\n\r\n":                           {},
		":1\r\n":                               {lies: true},
		"$-1\r\n":                              {lies: true},
		"$99999999999999999999\r\n":            {lies: true},
		"$2000\r\n":                            {lies: true},
		"*1\r\n$1\r\na\r\n":                    {lies: true},
		"\r\n":                                 {lies: true},
		"+OK\n":                                {lies: true},
		">1\r\n$1\r\na\r\n":                    {lies: true},
		"-" + strings.Repeat("x", 2000) + "\n": {lies: true},
	} {
		s, _ := soloOf(said)
		text, fault, err := s.ask("PING")
		if text != want.text || fault != want.fault || (err != nil) != want.lies {
			t.Errorf("%.20q: %q %q %v", said, text, fault, err)
		}
	}
	s, _ := soloOf("+OK\r\n+twice\r\n")
	if _, _, err := s.ask("PING"); err != nil {
		t.Fatal(err)
	}
	if text, _, err := s.ask("PING"); !errors.Is(err, errLies) {
		t.Errorf("%q, %v: what nobody asked for is an answer", text, err)
	}
}

// A connection is made for who asks often, is one's at a time, is left when it has
// rested, and is not tried again soon after it broke.
func TestSolos(t *testing.T) {
	var a solos
	now := time.Unix(1000, 0)
	borrow := func(after time.Duration, wantConn, wantMake bool) *solo {
		t.Helper()
		now = now.Add(after)
		s, wanted := a.borrow(now)
		if (s != nil) != wantConn || wanted != wantMake {
			t.Fatalf("at %v: connection %v, wanted %v", now.Sub(time.Unix(1000, 0)), s != nil, wanted)
		}
		return s
	}
	borrow(0, false, false)
	borrow(often, false, false)
	borrow(often-1, false, true)
	borrow(1, false, false) // it is being made
	first, conn := soloOf("")
	a.give(first, now)
	s := borrow(1, true, false)
	borrow(1, false, false) // it is in use
	a.give(s, now)
	borrow(stale, false, false)
	if !conn.closed {
		t.Error("it has rested and is not closed")
	}
	borrow(1, false, true)
	second, conn := soloOf("")
	a.give(second, now)
	borrow(1, true, false)
	a.give(nil, now)
	if !conn.closed {
		t.Error("it broke and is not closed")
	}
	for range 15 {
		borrow(often/2, false, false)
	}
	now = now.Add(stale)
	borrow(0, false, false)
	borrow(1, false, true)
	a.close()
	third, conn := soloOf("")
	a.give(third, now)
	if !conn.closed {
		t.Error("it came after the store was closed, and is not")
	}
	borrow(1, false, false)
}

// Whatever the server says, an answer is bounded, and is none where it is none.
func FuzzSoloAnswer(f *testing.F) {
	for _, said := range []string{"$3\r\nabc\r\n", "-ERR no\r\n", "+OK\r\n", "$-1\r\n", "*1\r\n:1\r\n", "$9999999999\r\n"} {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said string) {
		s, _ := soloOf(said)
		text, fault, err := s.ask("PING")
		if len(text) > longestText || len(fault) > longestLine || err != nil && text+fault != "" {
			t.Errorf("%q: %q %q %v", said, text, fault, err)
		}
	})
}
