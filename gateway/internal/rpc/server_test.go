package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// bench is a running server, with health checks and a test service.
type bench struct {
	*Server
	conns   *accept.Listener
	conn    *grpc.ClientConn
	checks  healthgrpc.HealthClient
	health  *health.Server
	crowded atomic.Int64
	log     bytes.Buffer
	talk    func(grpc.ServerStream) error // serves test.Talk/Talk
	asked   func()                        // serves test.Talk/Ask, once its message is read
}

// newBench serves a listener with the default settings, except for the changes.
func newBench(t *testing.T, change ...func(*config.Listener)) *bench {
	t.Helper()
	b := &bench{health: health.NewServer()}
	cfg := config.DefaultListener("127.0.0.1:0")
	cfg.MaxConcurrentStreams = 10_000
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if b.conns, err = accept.Open(accept.Options{Config: cfg, Trusted: func(netip.Addr) bool { return false }}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	b.Server = New(Options{Conns: b.conns, Config: cfg, Crowded: func(string) { b.crowded.Add(1) }, Logger: slog.New(slog.NewTextHandler(lock{&mu, &b.log}, nil))})
	healthgrpc.RegisterHealthServer(b.Server, b.health)
	b.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Talk", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Talk", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error { return b.talk(s) },
	}}, Methods: []grpc.MethodDesc{{
		MethodName: "Ask",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(new(healthgrpc.HealthCheckRequest)); err != nil {
				return nil, err
			}
			b.asked()
			return new(healthgrpc.HealthCheckResponse), nil
		},
	}}}, b)
	served := make(chan error, 1)
	go func() { served <- b.Serve(b.conns) }()
	t.Cleanup(func() {
		_ = b.Close()
		<-served
	})
	if b.conn, err = grpc.NewClient(b.conns.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close() })
	b.checks = healthgrpc.NewHealthClient(b.conn)
	return b
}

type lock struct {
	mu *sync.Mutex
	io.Writer
}

func (l lock) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Writer.Write(p)
}

// check asks for the health.
func (b *bench) check(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	_, err := b.checks.Check(ctx, new(healthgrpc.HealthCheckRequest))
	return err
}

// open opens a call of a method and sends nothing.
func (b *bench) open(t *testing.T, method string) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	s, err := b.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Where rate limits are served, the message of a call with one message may have a megabyte. The large messages
// in memory have a common bound. A small message gives its place back once it is read.
func TestLargeMessages(t *testing.T) {
	large := &healthgrpc.HealthCheckRequest{Service: strings.Repeat("x", maxRateLimitMessage-100)}
	tooLarge := &healthgrpc.HealthCheckRequest{Service: strings.Repeat("x", maxRateLimitMessage)}
	b := newBench(t, func(c *config.Listener) { c.Serve = []string{config.ServeRateLimit} })
	ask := func(m *healthgrpc.HealthCheckRequest) codes.Code {
		return status.Code(b.conn.Invoke(t.Context(), "/test.Talk/Ask", m, new(healthgrpc.HealthCheckResponse)))
	}
	places := make(chan int, 8)
	b.asked = func() { places <- len(b.reading) }
	b.talk = func(s grpc.ServerStream) error { return s.RecvMsg(new(healthgrpc.HealthCheckRequest)) }
	got := []codes.Code{ask(large), ask(tooLarge)}
	eventually(t, "no place is kept", func() bool { return len(b.reading) == 0 }) // grpc-go refuses a message that is too large before the handler returns
	if got = append(got, ask(new(healthgrpc.HealthCheckRequest))); !slices.Equal(got, []codes.Code{codes.OK, codes.ResourceExhausted, codes.OK}) {
		t.Fatal(got)
	}
	if large, small := <-places, <-places; large != 1 || small != 0 || len(b.reading) != 0 {
		t.Errorf("the calls have %d and %d places, and %d are kept", large, small, len(b.reading))
	}
	s := b.open(t, "/test.Talk/Talk")
	if err := s.SendMsg(large); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(healthgrpc.HealthCheckResponse)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large message of a stream: %v", err)
	}

	for range mostReading { // as if so many were being read
		b.reading <- struct{}{}
	}
	asked := make(chan codes.Code)
	go func() { asked <- ask(large) }()
	eventually(t, "the call", func() bool { return b.calls.Load() == 1 })
	if err := b.check(t); err != nil || len(places) != 0 {
		t.Errorf("health while others are read: %v; %d calls are answered", err, len(places))
	}
	<-b.reading
	if code := <-asked; code != codes.OK {
		t.Errorf("a call that waited for a place: %v", code)
	}

	b = newBench(t)
	if got := ask(large); got != codes.ResourceExhausted {
		t.Errorf("where no rate limits are served: %v", got)
	}
}

// Health can be checked and watched, and a watch ends with the server.
func TestHealth(t *testing.T) {
	b := newBench(t)
	watch, err := b.checks.Watch(t.Context(), new(healthgrpc.HealthCheckRequest))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.Status != healthgrpc.HealthCheckResponse_SERVING {
		t.Fatalf("%v, %v", m, err)
	}
	b.health.Shutdown()
	if m, err := watch.Recv(); err != nil || m.Status != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", m, err)
	}
	if err := b.check(t); err != nil {
		t.Error(err)
	}
	if err := b.Shutdown(t.Context()); err != nil {
		t.Errorf("a watch holds the server: %v", err)
	}
	if _, err := watch.Recv(); err == nil {
		t.Error("a watch goes on")
	}
}

// A call that sends no message ends, and calls are bounded before their messages are read.
func TestSilentCalls(t *testing.T) {
	b := newBench(t, func(c *config.Listener) { c.ReadTimeout = policy.Duration(time.Millisecond) })
	if err := b.open(t, healthService+"Check").RecvMsg(new(healthgrpc.HealthCheckResponse)); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a silent call ends with %v", err)
	}

	b = newBench(t)
	for range mostChecks {
		b.open(t, healthService+"Check")
	}
	eventually(t, "all calls are open", func() bool { return b.Server.checks.Load() == mostChecks })
	if err := b.check(t); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many ends with %v", err)
	}
	if n := b.crowded.Load(); n != 1 {
		t.Errorf("%d crowded", n)
	}
}

// Watches are bounded, and do not lock health checks out.
func TestManyWatches(t *testing.T) {
	b := newBench(t)
	watch := func() error {
		s, err := b.checks.Watch(t.Context(), new(healthgrpc.HealthCheckRequest))
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	}
	for range mostChecks {
		if err := watch(); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many ends with %v", err)
	}
	if err := b.check(t); err != nil {
		t.Errorf("health: %v", err)
	}
}

// Calls are bounded by the listener, and do not lock health checks out.
func TestCrowded(t *testing.T) {
	b := newBench(t)
	b.talk = func(s grpc.ServerStream) error {
		<-s.Context().Done()
		return nil
	}
	most := 2 * b.conns.MaxRequests()
	b.calls.Store(most - 1) // as if others had opened them
	b.open(t, "/test.Talk/Talk")
	eventually(t, "as many calls as may be", func() bool { return b.calls.Load() == most })
	if err := b.open(t, "/test.Talk/Talk").RecvMsg(new(healthgrpc.HealthCheckResponse)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many ends with %v", err)
	}
	if err := b.check(t); err != nil || b.crowded.Load() != 1 {
		t.Errorf("health: %v; %d crowded", err, b.crowded.Load())
	}
}

// Of a hundred thousand silent calls, no more are open than the bound allows. The others are refused and
// counted, and the memory of the process is bounded.
func TestManyCalls(t *testing.T) {
	const all = 100_000
	b := newBench(t, func(c *config.Listener) { c.MaxConnections = 1000 })
	b.talk = func(s grpc.ServerStream) error {
		<-s.Context().Done()
		return nil
	}
	before := heap()
	p := b.rude(t)
	var sentBack atomic.Int64 // by grpc-go: more than max_concurrent_streams at that moment
	go func() {
		for {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			if reset, ok := f.(*http2.RSTStreamFrame); ok && reset.ErrCode == http2.ErrCodeRefusedStream {
				sentBack.Add(1)
			}
		}
	}()
	for i := range uint32(all) {
		p.call(t, 2*i+1, "/test.Talk/Talk")
	}
	most := 2 * b.conns.MaxRequests()
	await.Count(t, "calls that are open or refused", all, func() int64 { return b.calls.Load() + b.crowded.Load() + sentBack.Load() })
	if n := b.calls.Load(); n != most {
		t.Errorf("%d calls are open, and %d may be", n, most)
	}
	if grown := int64(heap()) - int64(before); grown > 64<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
	if err := b.check(t); err != nil {
		t.Errorf("health: %v", err)
	}
}

// A panic ends its call, and nothing else.
func TestPanic(t *testing.T) {
	b := newBench(t)
	b.talk = func(grpc.ServerStream) error { panic("a test") }
	if err := b.open(t, "/test.Talk/Talk").RecvMsg(new(healthgrpc.HealthCheckResponse)); status.Code(err) != codes.Internal {
		t.Errorf("the call ends with %v", err)
	}
	if err := b.check(t); err != nil {
		t.Error(err)
	}
	if !strings.Contains(b.log.String(), "/test.Talk/Talk") {
		t.Errorf("log:\n%s", &b.log)
	}
}

// rude is a client that can break the rules of HTTP/2.
type rude struct {
	net.Conn
	*http2.Framer
}

func (b *bench) rude(t *testing.T, settings ...http2.Setting) *rude {
	t.Helper()
	c, err := net.Dial("tcp", b.conns.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	p := &rude{c, http2.NewFramer(c, c)}
	if err := p.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return p
}

// call begins a call.
func (p *rude) call(t *testing.T, stream uint32, method string) {
	t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "test"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
}

// message is the frame of a message that protobuf decodes as an empty message with an unknown field.
func message(size int) []byte {
	m := make([]byte, 5, 5+size)
	m = append(m, 0x7a) // field 15, bytes
	m = binary.AppendUvarint(m, uint64(size))
	m = append(m, make([]byte, size)...)
	binary.BigEndian.PutUint32(m[1:], uint32(len(m)-5))
	return m
}

// A peer floods a call that is not read, and ignores the window. The process keeps no more than the window.
func TestFlood(t *testing.T) {
	b := newBench(t)
	reading := make(chan struct{})
	b.talk = func(s grpc.ServerStream) error {
		<-reading
		return nil
	}
	defer close(reading)
	p := b.rude(t)
	p.call(t, 1, "/test.Talk/Talk")
	eventually(t, "the call", func() bool { return b.calls.Load() == 1 })
	before := heap()
	frame := message(16<<10 - 32)
	for sent := 0; sent < 64<<20; sent += len(frame) {
		if err := p.WriteData(1, false, frame); err != nil {
			break // it is as good if the connection ends
		}
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A peer that reads nothing loses its connection after write_timeout, with all calls on it.
func TestPeerThatReadsNothing(t *testing.T) {
	b := newBench(t, func(c *config.Listener) { c.WriteTimeout = policy.Duration(10 * time.Millisecond) })
	over := make(chan error, 1)
	b.talk = func(s grpc.ServerStream) (err error) {
		m := &healthgrpc.HealthCheckRequest{Service: strings.Repeat("x", 64<<10)}
		for err == nil {
			err = s.SendMsg(m)
		}
		over <- err
		return err
	}
	p := b.rude(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	if err := p.WriteWindowUpdate(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	p.call(t, 1, "/test.Talk/Talk")
	select {
	case <-over:
	case <-time.After(await.Patience):
		t.Fatal("the call goes on")
	}
	eventually(t, "no call", func() bool { return b.calls.Load() == 0 })
}

// Envoy's keepalive pings are not taken for an attack.
func TestPings(t *testing.T) {
	b := newBench(t)
	b.talk = func(s grpc.ServerStream) error {
		<-s.Context().Done()
		return nil
	}
	p := b.rude(t)
	p.call(t, 1, "/test.Talk/Talk")
	answers := 0
	for i := range 6 {
		if err := p.WritePing(false, [8]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		for {
			_ = p.SetReadDeadline(time.Now().Add(await.Patience))
			f, err := p.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if g, ok := f.(*http2.GoAwayFrame); ok {
				t.Fatalf("sent away: %v, %s", g.ErrCode, g.DebugData())
			}
			if g, ok := f.(*http2.PingFrame); ok && g.IsAck() {
				answers++
				break
			}
		}
		<-time.After(leastPingInterval)
	}
	if answers != 6 {
		t.Errorf("%d answers", answers)
	}
}

// A connection that has sent nothing does not delay a shutdown.
func TestShutdownDoesNotWaitForSilence(t *testing.T) {
	b := newBench(t, func(c *config.Listener) { c.ReadHeaderTimeout = policy.Duration(time.Hour) })
	silent, err := net.Dial("tcp", b.conns.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := silent.Read(make([]byte, 1)); err != nil { // its settings: the connection has been accepted
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	if err := b.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// Shutdown waits for calls in progress, until its context ends.
func TestShutdown(t *testing.T) {
	b := newBench(t)
	b.talk = func(s grpc.ServerStream) error {
		<-s.Context().Done()
		return nil
	}
	b.open(t, "/test.Talk/Talk")
	eventually(t, "the call", func() bool { return b.calls.Load() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it waited: %v", err)
	}
	_ = b.Close()
	eventually(t, "no call", func() bool { return b.calls.Load() == 0 })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}
