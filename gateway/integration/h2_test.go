//go:build integration

package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2conn is one HTTP/2 connection, frame by frame: it does what the clients of
// net/http hide or never do. What was seen on it may be read once done is
// closed.
type h2conn struct {
	done chan struct{} // closed at the end of the connection
	err  error         // why it ended; io.EOF when the gateway closed it

	pongs chan struct{} // one for each answer to a ping

	opened  uint32            // the last stream that was begun
	answers map[uint32]string // how streams ended: the status, or the code of the reset
	goAways []goAway

	conn   net.Conn
	framer *http2.Framer
	mu     sync.Mutex // guards what follows, and opened
	out    *bufio.Writer
	header bytes.Buffer
	hpack  *hpack.Encoder
	refill string // the path that is asked for again after each answer
}

type goAway struct {
	last uint32
	code http2.ErrCode
}

// dialH2 connects without TLS. The end of the test ends the connection.
func dialH2(t *testing.T, addr string) (*h2conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := &h2conn{
		done: make(chan struct{}), pongs: make(chan struct{}, 1), answers: make(map[uint32]string),
		conn: conn, out: bufio.NewWriterSize(conn, 16<<10),
	}
	c.hpack = hpack.NewEncoder(&c.header)
	c.framer = http2.NewFramer(c.out, bufio.NewReader(conn))
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.mu.Lock()
	c.out.WriteString(http2.ClientPreface)
	c.framer.WriteSettings()
	c.framer.WriteWindowUpdate(0, 1<<30) // answers are small, and many
	err = c.out.Flush()
	c.mu.Unlock()
	go func() {
		defer close(c.done)
		c.err = c.read()
	}()
	return c, err
}

// write buffers frames with fn and sends them.
func (c *h2conn) write(fn func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
	return c.out.Flush()
}

// begin opens a stream with a GET. The caller holds mu.
func (c *h2conn) begin(path string) uint32 {
	if c.opened == 0 {
		c.opened = 1
	} else {
		c.opened += 2
	}
	c.header.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", path}} {
		c.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: c.opened, BlockFragment: c.header.Bytes(), EndStream: true, EndHeaders: true,
	})
	return c.opened
}

// keep keeps n streams open until the gateway says that it goes away.
func (c *h2conn) keep(n int, path string) error {
	return c.write(func() {
		c.refill = path
		for range n {
			c.begin(path)
		}
	})
}

// settle waits until the gateway has read everything that was written, or has
// ended the connection, and returns the last stream it has taken.
func (c *h2conn) settle() uint32 {
	if c.write(func() { c.framer.WritePing(false, [8]byte{}) }) == nil {
		select {
		case <-c.pongs:
			return c.opened
		case <-c.done:
		}
	}
	<-c.done
	var last uint32
	for _, f := range c.goAways {
		last = f.last
	}
	return last
}

// read notes what arrives until the connection ends.
func (c *h2conn) read() error {
	status := make(map[uint32]string)
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return err
		}
		id, ended := frame.Header().StreamID, false
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = c.write(func() { c.framer.WriteSettingsAck() })
			}
		case *http2.PingFrame:
			if f.IsAck() {
				c.pongs <- struct{}{}
			} else {
				err = c.write(func() { c.framer.WritePing(true, f.Data) })
			}
		case *http2.GoAwayFrame:
			c.goAways = append(c.goAways, goAway{f.LastStreamID, f.ErrCode})
		case *http2.MetaHeadersFrame:
			status[id], ended = f.PseudoValue("status"), f.StreamEnded()
		case *http2.DataFrame:
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			status[id], ended = f.ErrCode.String(), true
		}
		if ended {
			c.answers[id] = status[id]
			err = c.next()
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
}

// next begins another stream for one that has ended, if that was asked for.
func (c *h2conn) next() error {
	if len(c.goAways) > 0 {
		return nil
	}
	return c.write(func() {
		if c.refill != "" {
			c.begin(c.refill)
		}
	})
}
