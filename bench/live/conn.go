package live

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"time"
)

// conn is a client's connection. It does as little as a client can, because one
// core has to offer twenty thousand requests a second, and leaves as a killed
// browser does: by a reset.
type conn struct {
	net.Conn
	buf [4096]byte
	req []byte
}

// roundTrip sends a request with that head, of so much work, and waits for its answer until the
// time given. The connection stays open if it can be used again.
func (c *conn) roundTrip(addr, head string, work time.Duration, until time.Time) Answer {
	if c.Conn == nil {
		dialer := net.Dialer{Deadline: until}
		dialed, err := dialer.Dial("tcp", addr)
		if err != nil {
			return why(err)
		}
		_ = dialed.(*net.TCPConn).SetLinger(0) // else thousands of ports stay in TIME_WAIT
		c.Conn = dialed
	}
	status, again, err := c.exchange(head, work, until)
	if err != nil || !again {
		c.close()
	}
	switch {
	case err != nil:
		return why(err)
	case status == 429, status == 503:
		return Refused
	case status < 400:
		return OK
	}
	return Failed
}

func why(err error) Answer {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return GaveUp
	}
	return Failed
}

func (c *conn) close() {
	if c.Conn != nil {
		_ = c.Conn.Close() // a reset: there is nothing to lose
		c.Conn = nil
	}
}

// exchange writes the request and reads the answer. again reports whether the
// connection can be used for another.
func (c *conn) exchange(head string, work time.Duration, until time.Time) (status int, again bool, err error) {
	if err := c.SetDeadline(until); err != nil {
		return 0, false, err
	}
	c.req = append(append(c.req[:0], head...), workHeader+": "...)
	c.req = strconv.AppendInt(c.req, work.Microseconds(), 10)
	c.req = append(c.req, "\r\n\r\n"...)
	if _, err := c.Write(c.req); err != nil {
		return 0, false, err
	}
	have, end := 0, -1
	for end < 0 {
		got, err := c.Read(c.buf[have:])
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
		got, err := c.Read(c.buf[:min(left, len(c.buf))])
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
