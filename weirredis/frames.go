package weirredis

import (
	"bytes"
	"errors"
	"fmt"
)

// Bounds of what a server may say at a time. The largest that is asked for is a
// [Document], or what a cluster says of its slots.
const (
	mostFrame  = 16 << 20 // bytes that a message stands for, places of lists included
	perItem    = 64       // bytes for a place in a list, before anything is in it
	mostNested = 16
	mostNumber = 20 // digits of a length, and a sign
)

// frames follows a stream of messages of the Redis protocol (RESP 2 and 3): where each
// ends, and whether it is one that can be read without harm. It looks at lengths only.
type frames struct {
	whole  uint64 // messages complete so far, pushes apart
	pushes uint64

	kind   byte // of the line that has begun; 0 between lines
	length int64
	minus  bool
	digits int
	last   byte // of the line
	skip   int64
	budget int64   // what the rest of the message may take
	open   []int64 // elements missing in each list around
	push   bool    // the message is one that nobody asked for
}

// scan takes what comes next.
func (f *frames) scan(b []byte) error {
	for len(b) > 0 {
		if f.skip > 0 { // within a text
			n := min(f.skip, int64(len(b)))
			b, f.skip = b[n:], f.skip-n
			if f.skip == 0 {
				f.ended()
			}
			continue
		}
		if f.kind == 0 {
			if err := f.begin(b[0]); err != nil {
				return err
			}
			b = b[1:]
			continue
		}
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		if err := f.line(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// begin takes the first byte of a line, which says what follows.
func (f *frames) begin(kind byte) error {
	if !sized(kind) && !plainLine(kind) {
		return fmt.Errorf("what begins with %q is no answer", kind)
	}
	if len(f.open) == 0 {
		f.budget, f.push = mostFrame, kind == '>'
	} else if kind == '>' {
		return errors.New("a push is a part of another message")
	}
	f.kind, f.length, f.minus, f.digits, f.last = kind, 0, false, 0, 0
	return nil
}

// sized reports whether a line is the length of what follows it.
func sized(kind byte) bool {
	switch kind {
	case '$', '!', '=', '*', '%', '~', '>':
		return true
	}
	return false
}

// plainLine reports whether a line is all there is.
func plainLine(kind byte) bool {
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return true
	}
	return false
}

// line takes a part of a line, up to its end if that is there.
func (f *frames) line(b []byte) error {
	if f.budget -= int64(len(b)); f.budget < 0 {
		return errTooLarge
	}
	number := sized(f.kind)
	for i := 0; number && i < len(b) && b[i] != '\n'; i++ {
		if b[i] != '\r' {
			if err := f.digit(b[i]); err != nil {
				return err
			}
		}
		f.last = b[i]
	}
	ends := b[len(b)-1] == '\n'
	if len(b) > 1 && ends {
		f.last = b[len(b)-2]
	}
	switch {
	case !ends:
		f.last = b[len(b)-1]
		return nil
	case f.last != '\r':
		return errors.New("a line ends in the middle")
	case !number:
		f.ended()
		return nil
	}
	return f.follow()
}

func (f *frames) digit(c byte) error {
	f.digits++
	switch {
	case f.last == '\r' || f.digits > mostNumber:
		return errors.New("a length is no number")
	case c == '-' && f.digits == 1:
		f.minus = true
	case c >= '0' && c <= '9':
		if f.length = f.length*10 + int64(c-'0'); f.length > mostFrame {
			return errTooLarge
		}
	default:
		return errors.New("a length is no number")
	}
	return nil
}

// follow begins what the line was the length of.
func (f *frames) follow() error {
	kind, n := f.kind, f.length
	switch {
	case f.digits == 0 || f.minus && (n != 1 || kind != '$' && kind != '*'):
		return errors.New("a length is no number")
	case f.minus: // the null of RESP 2
		f.ended()
		return nil
	case kind == '$' || kind == '!' || kind == '=':
		f.budget -= n
		f.skip, f.kind = n+2, 0
	default:
		if kind == '%' {
			n *= 2
		}
		if f.budget -= n * perItem; len(f.open) == mostNested {
			return errTooLarge
		}
		if f.open, f.kind = append(f.open, n), 0; n == 0 {
			f.open = f.open[:len(f.open)-1]
			f.ended()
		}
	}
	if f.budget < 0 {
		return errTooLarge
	}
	return nil
}

var errTooLarge = fmt.Errorf("a message of more than %d bytes, or nested more than %d deep", mostFrame, mostNested)

// ended is the end of a message, or of a part of one.
func (f *frames) ended() {
	f.kind = 0
	for len(f.open) > 0 {
		top := len(f.open) - 1
		if f.open[top]--; f.open[top] > 0 {
			return
		}
		f.open = f.open[:top]
	}
	if f.push {
		f.pushes++
	} else {
		f.whole++
	}
}
