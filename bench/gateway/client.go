//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// subject is a proxy under measurement: its process and connections to it.
type subject struct {
	name   string
	cmd    *exec.Cmd
	conns  []*conn
	values []value
}

// value is one turn's figures.
type value struct {
	rate float64 // requests a second
	cpu  float64 // µs of the proxy's CPU time a request
}

// connect waits until the proxy listens, and connects to it.
func (s *subject) connect(addr string, conns int) error {
	for deadline := time.Now().Add(10 * time.Second); len(s.conns) < conns; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			s.conns = append(s.conns, &conn{Conn: c})
			continue
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it does not listen: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

func (s *subject) stop() {
	for _, c := range s.conns {
		_ = c.Close() // only read from and written to by us, and done with
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // whatever it says, the measurement is over
}

// cpu reads the kernel's account of the proxy's CPU time.
func (s *subject) cpu() (time.Duration, error) {
	// The number of a clock is made of a process as clock_getcpuclockid(3) makes it.
	const schedulerClock = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^s.cmd.Process.Pid<<3|schedulerClock), &t); err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", s.name, err)
	}
	return time.Duration(t.Nano()), nil
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
