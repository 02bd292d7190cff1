//go:build integration

package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-go/weir/gateway/internal/await"
)

// Streams that are opened and reset by the thousand take what the gate gives and
// no more, whether the upstream is stuck or fast. Others are served meanwhile.
func TestRapidReset(t *testing.T) {
	const limit, streams, work = 4, 10000, 5 * time.Millisecond
	var c crowd
	unstick := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/attacked" {
			defer c.enter()()
			<-unstick // whoever has left
			await.Work(work)
		}
	}))
	defer up.Close()
	g := startGateway(t, attackedConfig(up.URL, limit))
	get(t, g.url+"/calm")
	before := g.memory(t, "VmRSS")
	calm := steadily(g.url+"/calm", 100, 16)

	// Nothing is known yet of how long the upstream takes: what is abandoned
	// keeps its slot.
	conns := resetStreams(t, g.addr, "/attacked", streams)
	eventually(t, "as many as the limit allows are in the upstream that is stuck", func() bool { return c.most.Load() >= limit })
	if n := c.most.Load(); n != limit {
		t.Errorf("%d requests at a time in the upstream that is stuck, want %d", n, limit)
	}
	if s := g.gate(t, "app"); s.InFlight > limit {
		t.Errorf("%d in flight, the limit is %d", s.InFlight, limit)
	}

	close(unstick)
	g.idle(t)
	c.longest.Store(0) // those that were stuck
	get(t, g.url+"/attacked")
	beside := steadily(g.url+"/attacked", 100, 16)
	conns += resetStreams(t, g.addr, "/attacked", streams)
	beside.stop()
	if served, rest := split(beside.wait()); len(served) == 0 || len(rest) > len(served) {
		t.Errorf("at the attacked gate %d were served; the rest:\n%s", len(served), tally(rest))
	}
	calm.stop()
	allOK(t, calm.wait())
	g.idle(t)

	if n, most := c.most.Load(), c.bound(limit, 32*work); n > most { // so long is an answer awaited
		t.Errorf("%d requests at a time in the upstream, at most %d are right with a limit of %d", n, most, limit)
	}
	peak := g.memory(t, "VmHWM")
	if peak-before > 64<<10 {
		t.Errorf("memory went from %d KiB to %d KiB; 64 MiB more should do", before, peak)
	}
	t.Logf("%d connections; %d in the upstream at a time; %d KiB before, %d KiB at most", conns, c.most.Load(), before, peak)
}

// attackedConfig has a second route to the attacked upstream, with a gate of its
// own. How long one route takes is no measure for the other.
func attackedConfig(upstream string, limit int) string {
	return strings.NewReplacer(
		"gates:\n", "gates:\n  calm: {limit: {limit: 64}}\n",
		"routes:", "routes:\n  - {match: [/calm], gates: [calm], upstream: app}",
	).Replace(gatewayConfig(strings.TrimPrefix(upstream, "http://"), limit))
}

// resetStreams opens streams and resets each at once until the gateway has taken
// that many. It uses one connection for as long as the gateway lets it, and
// returns how many there were.
func resetStreams(t *testing.T, addr, path string, streams uint32) (conns int) {
	t.Helper()
	const batch, mostConns = 50, 500
	for taken := uint32(0); taken < streams; conns++ {
		if conns == mostConns {
			t.Fatalf("the gateway took %d of %d streams on %d connections", taken, streams, conns)
		}
		c, err := dialH2(t, addr)
		for sent := uint32(0); sent < streams-taken && err == nil; sent += batch {
			err = c.write(func() {
				for range batch {
					c.framer.WriteRSTStream(c.begin(path), http2.ErrCodeCancel)
				}
			})
		}
		if c == nil {
			t.Fatal(err)
		}
		last := c.sync()
		c.conn.Close()
		<-c.done
		for _, f := range c.goAways {
			if f.code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("GOAWAY with %v", f.code)
			}
		}
		taken += (last + 1) / 2
	}
	return conns
}

// nginx behind TLS is spoken to in HTTP/2. It ends each connection with a GOAWAY
// after 100 requests, in the middle of others: none of them is lost.
func TestUpstreamTLS(t *testing.T) {
	const clients, each = 20, 20
	cert := newCertificate(t, t.TempDir(), 1)
	t.Setenv("SSL_CERT_FILE", cert.cert) // what the gateway believes
	addr := freeAddr(t)
	startNginxOn(t, addr, fmt.Sprintf("listen %s ssl http2; ssl_certificate %s; ssl_certificate_key %s; keepalive_requests 100;",
		addr, cert.cert, cert.key))
	conf := strings.Replace(gatewayConfig(addr, clients), "http://", "https://", 1)
	g := startGateway(t, conf)

	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				if body, err := fetch(g.url + "/echo"); err != nil || string(body) != "GET  HTTP/2.0\n" {
					t.Errorf("nginx says %q, %v; want HTTP/2.0", body, err)
				}
			}
		})
	}
	all.Wait()
	g.idle(t)
	if n := g.gate(t, "app").Admitted; n != clients*each {
		t.Errorf("%d admitted, want %d", n, clients*each)
	}
}

// An upstream with a certificate that nobody vouches for is no upstream.
func TestUpstreamTLSUnknown(t *testing.T) {
	up := httptest.NewUnstartedServer(http.NotFoundHandler())
	up.Config.ErrorLog = log.New(io.Discard, "", 0) // it hears of handshakes that end early
	up.StartTLS()
	defer up.Close()
	conf := strings.Replace(gatewayConfig(strings.TrimPrefix(up.URL, "https://"), 1), "http://", "https://", 1)
	g := startGateway(t, conf)
	res, err := http.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusBadGateway {
		t.Errorf("%s, want 502", res.Status)
	}
	g.idle(t)
}

// An upstream over h2c is worked to its limit, also when it takes fewer streams
// than that on one connection, and never above.
func TestUpstreamH2C(t *testing.T) {
	const limit, clients, each = 16, 24, 10
	var c crowd
	var http1 atomic.Int64
	var once sync.Once
	full := make(chan struct{}) // closed when limit have been inside at a time
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		defer c.enter()()
		if r.ProtoMajor != 2 {
			http1.Add(1)
		}
		if c.most.Load() >= limit {
			once.Do(func() { close(full) })
		}
		select {
		case <-full:
		case <-time.After(await.Patience): // the test has failed
		}
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: limit / 4}
	up.Start()
	defer up.Close()
	conf := gatewayConfig(strings.TrimPrefix(up.URL, "http://"), limit)
	conf = strings.ReplaceAll(conf, "http://", "h2c://")
	g := startGateway(t, conf)

	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				if _, err := fetch(g.url); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	g.idle(t)
	if n := c.most.Load(); n != limit {
		t.Errorf("at most %d requests at a time in the upstream, want %d", n, limit)
	}
	if n := http1.Load(); n > 0 {
		t.Errorf("%d requests came over HTTP/1", n)
	}
}

// A call of gRPC talks both ways: its client sends each message when the last one was
// answered. The gateway keeps none of them back, however small they are.
func TestBidirectionalStream(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("Trailer", "Grpc-Status")
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(w, "heard", lines.Text())
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	defer up.Close()
	g := startGateway(t, strings.ReplaceAll(gatewayConfig(up.Listener.Addr().String(), 1), "http://", "h2c://"))

	said, say := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", g.url, said)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc+proto")
	go fmt.Fprintln(say, 0) // the answer begins with the first message
	res, err := clientFor("HTTP/2.0").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	heard := bufio.NewScanner(res.Body)
	n := 0
	for ; n < 5 && heard.Scan(); n++ {
		if want := fmt.Sprint("heard ", n); heard.Text() != want {
			t.Fatalf("%q, want %q", heard.Text(), want)
		}
		fmt.Fprintln(say, n+1)
	}
	say.Close()
	for heard.Scan() {
		n++
	}
	if n != 6 || res.StatusCode != 200 || res.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%s, %d messages, trailer %v, %v; want 200, 6 and status 0", res.Status, n, res.Trailer, heard.Err())
	}
	g.idle(t)
}

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
	conn.SetDeadline(time.Now().Add(await.Patience))
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

// sync waits until the gateway has read everything that was written, or has
// ended the connection, and returns the last stream it has taken.
func (c *h2conn) sync() uint32 {
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

// read records what arrives until the connection ends.
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
