package weirredis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// solo is a connection for decisions that are alone under way: they are sent and read
// by who asks, where in a pipeline three goroutines have to wake each other, which costs
// a lone caller as much again as the server does. It speaks RESP 2.
type solo struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	used time.Time
}

// longestLine bounds a line of an answer, longestText a text: the script's is shorter,
// what the server says of a fault is cut.
const (
	longestLine = 1 << 10
	longestText = 1 << 10
)

// newSolo connects to a server that stands alone.
func (c *Config) newSolo(ctx context.Context) (*solo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.DialTimeout)
	defer cancel()
	conn, err := c.reach(ctx, c.Addrs[0], &net.Dialer{Timeout: c.DialTimeout}, c.TLS)
	if err != nil {
		return nil, err
	}
	s := &solo{conn: conn, in: bufio.NewReaderSize(conn, longestLine)}
	_ = conn.SetDeadline(time.Now().Add(c.DialTimeout))
	if err := s.greet(c); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

func (s *solo) greet(c *Config) error {
	var greeting [][]string
	switch password := c.toServers.password(time.Now()); {
	case c.Username != "":
		greeting = append(greeting, []string{"AUTH", c.Username, password})
	case password != "":
		greeting = append(greeting, []string{"AUTH", password})
	}
	if c.DB != 0 {
		greeting = append(greeting, []string{"SELECT", strconv.Itoa(c.DB)})
	}
	for _, words := range greeting {
		_, fault, err := s.ask(words...)
		if err != nil {
			return err
		}
		if fault != "" {
			return errors.New(fault)
		}
	}
	_, _, err := s.ask("CLIENT", "SETNAME", "weir") // a name is no right that is needed
	return err
}

// ask sends a command and reads the answer: a text, or what the server finds wrong. After
// an error the connection is of no use any more.
func (s *solo) ask(words ...string) (text, fault string, err error) {
	if s.in.Buffered() > 0 {
		return "", "", fmt.Errorf("%w: it answers what nobody has asked", errLies)
	}
	s.out = appendCount(s.out[:0], '*', len(words))
	for _, w := range words {
		s.out = appendCount(s.out, '$', len(w))
		s.out = append(append(s.out, w...), '\r', '\n')
	}
	if _, err := s.conn.Write(s.out); err != nil {
		return "", "", err
	}
	return s.answer()
}

func appendCount(b []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(b, kind), int64(n), 10), '\r', '\n')
}

func (s *solo) answer() (text, fault string, err error) {
	line, err := s.in.ReadSlice('\n')
	if err != nil {
		return "", "", err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return "", "", fmt.Errorf("%w: %q", errLies, line)
	}
	switch rest := string(line[1 : len(line)-2]); line[0] {
	case '-':
		return "", rest, nil
	case '+':
		return rest, "", nil
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 || n > longestText {
			return "", "", fmt.Errorf("%w: a text of %q bytes", errLies, rest)
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(s.in, b); err != nil {
			return "", "", err
		}
		return string(b[:n]), "", nil
	}
	return "", "", fmt.Errorf("%w: %q", errLies, line)
}
