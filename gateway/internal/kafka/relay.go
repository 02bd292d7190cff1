package kafka

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/rawconn"
	"github.com/weir-go/weir/policy"
)

// relay is a client's connection and its own connection to a broker. One goroutine moves requests, another moves answers.
type relay struct {
	server *Server
	node   *node
	raw    net.Conn // the client's, below TLS

	ctx context.Context // ended by close
	end context.CancelFunc

	staying context.Context // ended by drain, and with ctx
	letGo   context.CancelFunc

	mu     sync.Mutex
	moved  sync.Cond   // signals that an answer has been written, or that the connection has ended
	client net.Conn    // raw, or TLS over raw; it changes only while broker is nil
	broker net.Conn    // nil until connected
	late   *time.Timer // ends the connection if its login takes too long; nil before a login
	closed bool
	state  connection
	// software is the name that the client gives for its software. It is used only in the log.
	software string

	size  [2][4]byte // the size of the present frame: of a request, of an answer
	holds holding

	sides struct {
		client, broker absence     // only look uses them
		next           *time.Timer // of look; guarded by mu, nil until connected
	}
}

const (
	// connectWithin bounds the time to connect to a broker, and the time of a client's TLS handshake.
	connectWithin = 10 * time.Second
	// loginWithin bounds a whole login. If the cluster requires a login, the time starts with the connection, otherwise with the handshake.
	loginWithin = 10 * time.Second
	// mostDecoded bounds a decoded answer, in bytes, and mostRequest a decoded request. For login requests mostLogin holds.
	mostDecoded = 64 << 20
	mostRequest = 1 << 20
	// saidWithin bounds how long a broker may take to answer a question of the gateway.
	saidWithin = time.Minute
	// mostAnswerHeader is how much of an answer is read first; a shorter answer is read as a whole. These bytes contain the header, and the
	// throttle time of an answer to Fetch.
	mostAnswerHeader = 64
)

// leastMoved is the smallest size that is moved as a large request or answer. For smaller ones the setup costs more than it saves.
const leastMoved = 64 << 10

// requestCopies bounds how many large requests are copied through large buffers at a time. answerSplices bounds how many answers the kernel
// moves at a time. Such an answer needs a pipe: two descriptors, and up to 1 MiB of the kernel's memory. By default a user has 64 MiB of
// pipe memory (pipe-user-pages-soft).
var requestCopies, answerSplices = make(chan struct{}, 32), make(chan struct{}, 32)

// buffers are for copying bytes, largeBuffers for large requests. An idle connection has none.
var (
	buffers      = sync.Pool{New: func() any { return new([buffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// largeBuffer is how much of a large request is copied at a time, in bytes.
const largeBuffer = rawconn.Most

func newRelay(s *Server, n *node, client net.Conn) *relay {
	r := &relay{server: s, node: n, raw: client, client: rawconn.New(client)}
	r.moved.L = &r.mu
	r.state.login.required, r.state.login.claim = len(s.opts.SASL) > 0, s.opts.Config.OAuthClaim
	r.ctx, r.end = context.WithCancel(context.Background())
	r.staying, r.letGo = context.WithCancel(r.ctx)
	return r
}

// close ends both connections at once.
func (r *relay) close() {
	r.end()
	r.mu.Lock()
	closed, client, broker := r.closed, r.client, r.broker
	r.closed = true
	if r.late != nil {
		r.late.Stop()
	}
	if r.sides.next != nil {
		r.sides.next.Stop()
	}
	r.moved.Broadcast()
	r.mu.Unlock()
	if closed {
		return
	}
	_ = client.Close() // the connection ends in any case
	if broker != nil {
		_ = broker.Close()
	}
}

// reset resets the client's connection, as a kernel does if no broker listens. If the connection were closed in order before the first
// answer, clients would assume a broker that wants TLS or a login. franz-go gives up records then.
func (r *relay) reset() {
	if in := rawconn.TCP(r.raw); in != nil {
		_ = in.SetLinger(0) // if that fails, the connection is closed in order
	}
	_ = r.raw.Close() // before TLS sends its own end
}

// sendBack resets the client's connection if it is drained before the first answer, so that the client comes back. An answer to ApiVersions
// is none: franz-go does not count it.
func (r *relay) sendBack() {
	r.mu.Lock()
	early := r.state.leaving && !r.state.answeredAny
	r.mu.Unlock()
	if early {
		r.reset()
	}
}

// drain lets the connection end: it reads no further request, and waits for the answers in flight.
func (r *relay) drain() {
	r.mu.Lock()
	r.state.leave()
	r.mu.Unlock()
	r.letGo()
	_ = r.raw.SetReadDeadline(time.Unix(1, 0)) // it wakes a reader that waits for a request
}

// leaving reports whether the connection is drained.
func (r *relay) leaving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.leaving
}

// run serves the client until the client or the broker closes its connection.
func (r *relay) run() {
	defer r.close()
	defer r.recovered()
	if r.enter() != nil || r.connect() != nil {
		r.sendBack()
		return
	}
	r.lookLater()
	var answers sync.WaitGroup
	answers.Go(func() {
		defer r.close()
		defer r.recovered()
		err := r.answers()
		if errors.Is(err, syscall.ECONNRESET) {
			r.reset()
		}
		r.logEnd(err)
	})
	defer func() { // after a panic, too
		r.close()
		answers.Wait()
		for _, p := range r.state.pending {
			p.mutation.endUnanswered()
			p.share.free()
		}
		r.freeHeld()
	}()
	if err := r.requests(); err == nil {
		r.awaitAnswers()
		r.sendBack()
	} else {
		r.logEnd(err)
	}
}

// recovered ends only this connection after a panic.
func (r *relay) recovered() {
	if v := recover(); v != nil {
		r.server.log.Error("the gateway panicked, and closed one connection of Kafka; other connections go on. This is a bug, please report it",
			"peer", r.raw.RemoteAddr().String(), "node", r.node.id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}

// logEnd logs why a connection ends, unless one side has simply closed it.
func (r *relay) logEnd(err error) {
	var why endError
	if errors.As(err, &why) {
		r.mu.Lock()
		software := r.software
		r.mu.Unlock()
		r.server.complain(r.raw.RemoteAddr(), software, err)
	}
}

// connect shakes hands with the client, and connects to the broker.
func (r *relay) connect() error {
	s := r.server
	if conf := s.opts.Conns.TLSConfig(); conf != nil {
		c := tls.Server(r.client, conf)
		ctx, cancel := context.WithTimeout(r.ctx, connectWithin)
		err := c.HandshakeContext(ctx)
		cancel()
		if err != nil {
			if !r.leaving() { // otherwise it was ended here
				s.opts.Conns.HandshakeFailed(r.raw.RemoteAddr(), err)
			}
			return err
		}
		r.mu.Lock()
		r.client = c
		r.mu.Unlock()
	}
	broker, address, err := s.dial(r.ctx, r.node)
	if err != nil {
		if r.ctx.Err() == nil {
			r.node.failed.Add(1)
			s.opts.Failed(address, "connect", err)
		}
		r.reset()
		return err
	}
	r.mu.Lock()
	r.broker = broker
	closed := r.closed
	r.hurry()
	r.mu.Unlock()
	if closed { // meanwhile
		_ = broker.Close()
		return net.ErrClosed
	}
	return nil
}

// hurry starts the time-out of a login. If no login is in progress, it stops the time-out. The caller holds mu.
func (r *relay) hurry() {
	switch waits := r.state.login.pending(); {
	case r.closed:
	case waits && r.late == nil:
		r.late = time.AfterFunc(loginWithin, func() {
			r.logEnd(endErrorf("a login was not complete within %v", loginWithin))
			r.close()
		})
	case !waits && r.late != nil:
		r.late.Stop()
		r.late = nil
	}
}

// dial connects to the broker of a node, or to any of the bootstrap brokers. Each of these has its part of the time, so that a silent one
// does not use it all.
func (s *Server) dial(ctx context.Context, n *node) (c net.Conn, address string, err error) {
	all := s.opts.Config.Bootstrap
	first := 0
	if n != &s.bootstrap {
		all = []string{s.nodes.addressOf(n)}
	} else {
		first = int(s.next.Add(1) % uint32(len(all)))
	}
	for i := range all {
		address = all[(first+i)%len(all)]
		d := net.Dialer{Timeout: connectWithin / time.Duration(len(all))}
		if s.opts.TLS == nil {
			if c, err = d.DialContext(ctx, "tcp", address); err == nil {
				c = rawconn.New(c)
			}
		} else {
			c, err = (&tls.Dialer{NetDialer: &d, Config: s.opts.TLS}).DialContext(ctx, "tcp", address)
		}
		if err == nil {
			return c, address, nil
		}
	}
	return nil, address, err
}

// requests moves requests until the client closes its connection, or until no more may be read: then the error is nil.
func (r *relay) requests() error {
	size := r.size[0][:]
	for {
		if again, err := r.await(size); err != nil || !again {
			return err
		}
		n := int(int32(binary.BigEndian.Uint32(size)))
		if n < leastRequest {
			return endErrorf("the client announces a request of %d bytes", n)
		}
		if err := r.unmuted(); err != nil {
			return err
		}
		if err := r.request(n); err != nil {
			return err
		}
		r.freeHeld() // after an error, run frees it when the answers have ended
	}
}

// await reads the size of the next frame. It returns false if the connection is drained between two requests.
func (r *relay) await(size []byte) (bool, error) {
	got := 0
	for {
		if got == 0 && r.leaving() {
			return false, nil
		}
		n, err := r.client.Read(size[got:])
		if got += n; got == len(size) {
			return true, r.whole()
		}
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		case got > 0: // a request has begun
			if err := r.whole(); err != nil {
				return false, err
			}
		}
	}
}

// whole allows to read the rest of a request while the connection is drained.
func (r *relay) whole() error {
	if !r.leaving() {
		return nil
	}
	return r.raw.SetReadDeadline(time.Time{})
}

// Read reads from the client, in the middle of a request. A drain does not end a request that has begun.
func (r *relay) Read(b []byte) (int, error) {
	for {
		n, err := r.client.Read(b)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && r.leaving() {
			if err := r.whole(); err != nil {
				return 0, err
			}
			continue
		}
		if n > 0 {
			err = nil
		}
		return n, err
	}
}

// request moves one request of n bytes.
func (r *relay) request(n int) error {
	pooled := buffers.Get().(*[buffer]byte)
	defer buffers.Put(pooled)
	frame := append(pooled[:0], r.size[0][:]...)
	req, frame, err := r.header(frame, n)
	if err != nil {
		return fmt.Errorf("%w (client id %.80q)", err, req.client)
	}
	if err := r.may(&req, n); err != nil {
		return err
	}
	r.countRequest(&req, n)
	if own := req.ownAnswer(); own != nil {
		r.countAnswer(&req, len(own))
		r.holds.raw.free() // the rest may be slow
		if _, err := io.CopyN(io.Discard, r, int64(4+n-len(frame))); err != nil {
			return err
		}
		if err := r.expect(pending{request: req, own: own}); err != nil {
			return err
		}
		return r.ownAnswers()
	}
	return r.serve(&req, frame, n, pooled[:])
}

// may returns why a request of n bytes is not passed on, or nil if it is.
func (r *relay) may(req *request, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.software != "" {
		r.software, req.software = clipped(req.software), "" // it is not kept with the pending answer
	}
	return r.state.login.may(req.key, n)
}

// serve serves a request of n bytes, whose beginning is frame. The broker answers it, unless a quota decides otherwise.
func (r *relay) serve(req *request, frame []byte, n int, buf []byte) error {
	p := pending{request: *req}
	switch quotas := r.server.opts.Quotas(); req.key {
	case keySaslHandshake, keySaslAuthenticate:
		whole, err := r.hold(frame, n)
		if err == nil {
			p.step, err = r.login(req, whole[4:])
		}
		if err != nil {
			return err
		}
		return r.send(p, whole)
	case keyProduce:
		if quotas.Produce != nil {
			return r.produce(quotas.Produce, p, frame, n, buf)
		}
	case keyFetch, keyShareFetch:
		r.lower(quotas.Fetch, req, frame)
	case keyMetadata:
		if quotas.NoAutoCreate || r.mutates(quotas.Mutations, req) {
			return r.metadata(&quotas, req, frame, n)
		}
	case keyCreateTopics, keyDeleteTopics, keyCreatePartitions:
		if r.mutates(quotas.Mutations, req) {
			return r.mutate(quotas.Mutations, req, frame, n)
		}
	case keyDescribeQuotas:
		if len(quotas.gates()) > 0 {
			return r.describeQuotas(req, frame, n)
		}
	case keyAlterQuotas:
		if len(quotas.gates()) > 0 {
			return r.alterQuotas(req, frame, n)
		}
	}
	return r.passOn(p, frame, 4+n-len(frame), buf)
}

// produce sends a request to produce. The request is charged before its last bytes are sent, so that an announced size costs nothing until
// the bytes have arrived.
func (r *relay) produce(g *policy.Gate, p pending, frame []byte, n int, buf []byte) error {
	left := 4 + n - len(frame)
	if left > heldBack {
		if err := r.forward(frame, left-heldBack, buf); err != nil {
			return err
		}
		frame, left = nil, heldBack
	}
	charged := r.charge(g, &p, n, &r.server.counts.throttled.produce)
	defer charged.Cancel() // unless the broker has got the whole request
	if err := r.passOn(p, frame, left, buf); err != nil {
		return err
	}
	charged.Done(weir.OK)
	return nil
}

// passOn sends a request, of which left bytes are still to be read, and notes that an answer is pending.
func (r *relay) passOn(p pending, frame []byte, left int, buf []byte) error {
	if !p.silent {
		if err := r.expect(p); err != nil {
			return err
		}
	}
	return r.forward(frame, left, buf)
}

// heldBack is how many bytes of a request to produce are sent only after the charge.
const heldBack = 1 << 10

// forward sends a part of a request: the bytes in frame, and left bytes that are still to be read. buf may overlap frame.
func (r *relay) forward(frame []byte, left int, buf []byte) error {
	if len(frame) > 0 {
		if _, err := r.broker.Write(frame); err != nil {
			return err
		}
		r.holds.raw.free() // of a large header; the rest may be slow
	}
	if left >= leastMoved && rawconn.TCP(r.client) != nil { // TLS reads less at a time than a buffer holds
		select {
		case requestCopies <- struct{}{}:
			defer func() { <-requestCopies }()
			large := largeBuffers.Get().(*[largeBuffer]byte)
			defer largeBuffers.Put(large)
			buf = large[:]
		default:
		}
	}
	return copyN(r.broker, r, left, buf)
}

// send sends a whole request.
func (r *relay) send(p pending, frame []byte) error {
	if err := r.expect(p); err != nil {
		return err
	}
	_, err := r.broker.Write(frame)
	return err
}

// rest reads a request of n bytes to its end.
func (r *relay) rest(frame []byte, n int) ([]byte, error) {
	got := len(frame)
	if got == 4+n {
		return frame, nil
	}
	if 4+n <= cap(frame) {
		_, err := io.ReadFull(r, frame[got:4+n])
		return frame[:4+n], err
	}
	whole := append([]byte(nil), frame...)
	for got < 4+n { // the buffer is at most twice the bytes that have arrived, so an announced size costs no memory
		more := min(4+n-got, max(got, 4<<10))
		whole = slices.Grow(whole, more)[:got+more]
		if _, err := io.ReadFull(r, whole[got:]); err != nil {
			return nil, err
		}
		got = len(whole)
	}
	return whole, nil
}

// login handles a login request.
func (r *relay) login(req *request, b []byte) (step, error) {
	body, err := req.login(b)
	if err != nil {
		return step{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.hurry()
	switch body := body.(type) {
	case *kmsg.SASLHandshakeRequest:
		return r.state.login.handshake(body), nil
	case *kmsg.SASLAuthenticateRequest:
		return r.state.login.authenticate(body), nil
	}
	return step{}, nil
}

// header reads a request up to the end of its header, and what else arrives with it.
func (r *relay) header(frame []byte, n int) (req request, _ []byte, err error) {
	for {
		if len(frame) == buffer { // such large headers are rare
			if err = r.may(&req, n); err == nil {
				frame, err = r.hold(frame, min(n, mostHeader))
			}
		} else {
			var got int
			got, err = r.Read(frame[len(frame):min(buffer, 4+n)])
			frame = frame[:len(frame)+got]
		}
		if err != nil {
			return req, frame, err
		}
		var more bool
		if req, more, err = readRequest(frame[4:], n); err != nil || !more {
			return req, frame, err
		}
	}
}

// copyN moves n bytes through a buffer.
func copyN(to io.Writer, from io.Reader, n int, buf []byte) error {
	for n > 0 {
		got, err := from.Read(buf[:min(n, len(buf))])
		if got > 0 {
			if _, err := to.Write(buf[:got]); err != nil {
				return err
			}
			n -= got
		}
		if err != nil && n > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// expect appends a pending answer. It waits while there are too many.
func (r *relay) expect(p pending) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.state.full() && !r.closed {
		r.moved.Wait()
	}
	if err := r.openLocked(); err != nil {
		return err
	}
	r.state.expect(p)
	return nil
}

// openLocked returns an error if the connection has ended.
func (r *relay) openLocked() error {
	if r.closed {
		return net.ErrClosed
	}
	return nil
}
