//go:build unix

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// subject is a proxy under measurement: its process and connections to it.
type subject struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	conns  []*conn
	values []value
}

// value is one turn's figures.
type value struct {
	rate float64 // requests a second
	cpu  float64 // µs of the proxy's CPU time a request
}

// start starts the proxy called name and connects to it.
func start(name, upstream string, conns int) (*subject, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &subject{name: name, cmd: exec.Command(self, "-serve", name, "-upstream", upstream)}
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	addr, err := s.out.ReadString('\n')
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("its process said nothing: %w", err)
	}
	for range conns {
		c, err := net.Dial("tcp", strings.TrimSpace(addr))
		if err != nil {
			s.stop()
			return nil, err
		}
		s.conns = append(s.conns, &conn{Conn: c})
	}
	return s, nil
}

func (s *subject) stop() {
	for _, c := range s.conns {
		_ = c.Close() // only read from and written to by us, and done with
	}
	_ = s.in.Close() // tells the process to end
	_ = s.cmd.Wait() // whatever it says, the measurement is over
}

// cpu asks the proxy for its CPU time.
func (s *subject) cpu() (time.Duration, error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return 0, err
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Duration(ns), err
}

// work keeps every connection busy for d.
func (s *subject) work(d time.Duration) (value, error) {
	before, err := s.cpu()
	if err != nil {
		return value{}, err
	}
	var wg sync.WaitGroup
	errs, counts := make([]error, len(s.conns)), make([]int, len(s.conns))
	begin := time.Now()
	for i, c := range s.conns {
		wg.Go(func() { counts[i], errs[i] = c.work(begin.Add(d)) })
	}
	wg.Wait()
	took := time.Since(begin)
	after, err := s.cpu()
	if err := errors.Join(append(errs, err)...); err != nil {
		return value{}, err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return value{
		rate: float64(total) / took.Seconds(),
		cpu:  float64((after - before).Microseconds()) / float64(total),
	}, nil
}

// conn is a client that does as little as it can.
type conn struct {
	net.Conn
	buf [4096]byte
}

var (
	request   = []byte("GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
	headerEnd = []byte("\r\n\r\n")
	statusOK  = []byte("HTTP/1.1 200 ")
)

const bodyLen = 5

// work sends one request after the other until the time given, and returns how
// many were answered.
func (c *conn) work(until time.Time) (n int, err error) {
	for ; time.Now().Before(until); n++ {
		if _, err := c.Write(request); err != nil {
			return n, err
		}
		if err := c.readAnswer(); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (c *conn) readAnswer() error {
	have := 0
	for {
		got, err := c.Read(c.buf[have:])
		if err != nil {
			return err
		}
		have += got
		if i := bytes.Index(c.buf[:have], headerEnd); i >= 0 && have >= i+len(headerEnd)+bodyLen {
			break
		}
		if have == len(c.buf) {
			return fmt.Errorf("an answer of more than %d bytes", have)
		}
	}
	if !bytes.HasPrefix(c.buf[:have], statusOK) {
		line, _, _ := bytes.Cut(c.buf[:have], []byte("\r\n"))
		return fmt.Errorf("answered %q", line)
	}
	return nil
}
