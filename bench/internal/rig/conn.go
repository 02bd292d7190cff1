package rig

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// Conn is an HTTP client's connection, which is opened when it is needed. It does
// as little as a client can, because one core has to offer twenty thousand
// requests a second. It leaves as a killed browser does: by a reset.
type Conn struct {
	conn net.Conn
	buf  [4096]byte
}

// RoundTrip sends a request and waits for its answer until the time given. The
// connection stays open if it can be used again.
func (c *Conn) RoundTrip(addr string, request []byte, until time.Time) loadgen.Answer {
	if c.conn == nil {
		dialer := net.Dialer{Deadline: until}
		dialed, err := dialer.Dial("tcp", addr)
		if err != nil {
			return why(err)
		}
		_ = dialed.(*net.TCPConn).SetLinger(0) // else thousands of ports stay in TIME_WAIT
		c.conn = dialed
	}
	status, again, err := c.exchange(request, until)
	if err != nil || !again {
		c.Close()
	}
	switch {
	case err != nil:
		return why(err)
	case status == 429, status == 503:
		return loadgen.Refused
	case status < 400:
		return loadgen.OK
	}
	return loadgen.Failed
}

func why(err error) loadgen.Answer {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return loadgen.GaveUp
	}
	return loadgen.Failed
}

// Open reports whether the connection is open.
func (c *Conn) Open() bool { return c.conn != nil }

// Close closes the connection, if it is open.
func (c *Conn) Close() {
	if c.conn != nil {
		_ = c.conn.Close() // a reset: there is nothing to lose
		c.conn = nil
	}
}

// exchange writes the request and reads the answer. again reports whether the
// connection can be used for another.
func (c *Conn) exchange(request []byte, until time.Time) (status int, again bool, err error) {
	if err := c.conn.SetDeadline(until); err != nil {
		return 0, false, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return 0, false, err
	}
	have, end := 0, -1
	for end < 0 {
		got, err := c.conn.Read(c.buf[have:])
		if err != nil {
			return 0, false, err
		}
		have += got
		if end = bytes.Index(c.buf[:have], headerEnd); end < 0 && have == len(c.buf) {
			return 0, false, errTooLong
		}
	}
	status, length, again, err := parseHead(c.buf[:end+2])
	if err != nil {
		return 0, false, err
	}
	for left := end + len(headerEnd) + length - have; left > 0; {
		got, err := c.conn.Read(c.buf[:min(left, len(c.buf))])
		if err != nil {
			return 0, false, err
		}
		left -= got
	}
	return status, again, nil
}

var (
	headerEnd  = []byte("\r\n\r\n")
	errTooLong = errors.New("an answer with more than 4096 bytes of header")
	errHead    = errors.New("not the head of an HTTP answer that this client understands")
)

// parseHead reads the status, the length of the body and whether the connection
// stays open from an answer's head.
func parseHead(head []byte) (status, length int, again bool, err error) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, 0, false, errHead
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, false, errHead
	}
	length, again = -1, true
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, 0, false, errHead
			}
		case bytes.EqualFold(name, []byte("Connection")):
			again = !bytes.EqualFold(value, []byte("close"))
		}
	}
	if length < 0 { // its end is that of the connection, or it is in chunks
		return status, 0, false, nil
	}
	return status, length, again, nil
}
