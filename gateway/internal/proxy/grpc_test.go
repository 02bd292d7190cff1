package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/slot"
	"github.com/weir-go/weir/weirhttp"
)

func TestIsGRPC(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;x=y": true, "APPLICATION/gRPC": true,
		"": false, "application/grp": false, "application/grpc-web": false, "application/grpcs": false, "text/plain": false,
	} {
		r := &http.Request{ProtoMajor: 2, Header: http.Header{"Content-Type": {contentType}}}
		if got := IsGRPC(r); got != want {
			t.Errorf("%q: %v", contentType, got)
		}
		if r.ProtoMajor = 1; IsGRPC(r) {
			t.Errorf("%q over HTTP/1", contentType)
		}
	}
}

// Messages are counted wherever reads cut them.
func TestMessageCount(t *testing.T) {
	empty, three := []byte{0, 0, 0, 0, 0}, []byte{1, 0, 0, 0, 3, 'a', 'b', 'c'}
	for _, tt := range []struct {
		name string
		body []byte
		want int
	}{
		{"nothing", nil, 0},
		{"half a prefix", empty[:3], 1},
		{"one", three, 1},
		{"one without bytes", empty, 1},
		{"one that is not whole", three[:6], 1},
		{"two", append(append([]byte(nil), three...), empty...), 2},
		{"many", append(append(append([]byte(nil), empty...), empty...), three...), 2},
		{"a huge one", append([]byte{0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 100)...), 1},
	} {
		for size := 1; size <= len(tt.body)+1; size++ {
			var m messageCount
			for rest := tt.body; len(rest) > 0; {
				part := rest[:min(size, len(rest))]
				rest = rest[len(part):]
				m.add(part)
			}
			if m.n != tt.want {
				t.Errorf("%s, %d bytes at a time: %d, want %d", tt.name, size, m.n, tt.want)
			}
		}
	}
}

func TestCodeOf(t *testing.T) {
	for httpStatus, want := range map[int]codes.Code{
		400: codes.Internal, 404: codes.Unimplemented, 405: codes.Unimplemented, 408: codes.DeadlineExceeded,
		421: codes.Unauthenticated, 431: codes.Internal, 502: codes.Unavailable, 503: codes.Unavailable, 504: codes.DeadlineExceeded,
	} {
		if got := codeOf(httpStatus); got != want {
			t.Errorf("%d: %v, want %v", httpStatus, got, want)
		}
		if reasonOf(httpStatus) == "" {
			t.Errorf("%d has no reason", httpStatus)
		}
	}
}

// A call goes only to targets that choose HTTP/2. Others are not to blame for a call: whoever names
// its request so could have them ejected.
func TestCallNeedsHTTP2(t *testing.T) {
	for _, tt := range []struct {
		name   string
		offers []string // what the target offers by TLS
		also   string   // one more target
		code   codes.Code
	}{
		{"HTTP/2", []string{"h2", "http/1.1"}, "", codes.OK},
		{"HTTP/1 only", []string{"http/1.1"}, "", codes.Unimplemented},
		{"nothing", nil, "", codes.Unimplemented},
		{"one target of two without TLS", []string{"h2"}, "http://127.0.0.1:1", codes.Unimplemented},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Status", "0")
			}))
			server.EnableHTTP2 = slices.Contains(tt.offers, "h2")
			server.StartTLS()
			defer server.Close()
			server.TLS.NextProtos = tt.offers
			cfg := config.Upstream{Targets: []string{server.URL}}
			if tt.also != "" {
				cfg.Targets = append(cfg.Targets, tt.also)
			}
			u := makeUpstream(t, cfg, io.Discard, nil)
			roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			if conf := u.shared.calls.TLSClientConfig; conf != nil {
				conf.RootCAs = roots
			} else {
				u.shared.calls.TLSClientConfig = &tls.Config{RootCAs: roots}
			}
			r := httptest.NewRequest(http.MethodPost, "/pkg.Service/Method", strings.NewReader("\x00\x00\x00\x00\x00"))
			r.ProtoMajor, r.ProtoMinor = 2, 0
			r.Header.Set("Content-Type", "application/grpc")
			w := httptest.NewRecorder()
			u.Serve(w, r, &Call{GRPC: true})
			if got := w.Header().Get("Grpc-Status"); got != strconv.Itoa(int(tt.code)) {
				t.Errorf("status %s %s, want %d", got, w.Header().Get("Grpc-Message"), tt.code)
			}
			for _, s := range u.Stats() {
				for kind, n := range s.Failures {
					if n != 0 {
						t.Errorf("%s is blamed: %d of %s", s.Target, n, kind)
					}
				}
			}
		})
	}
}

// A target that has chosen HTTP/1 is not asked again for each call.
func TestCallsSpareHandshakes(t *testing.T) {
	var handshakes atomic.Int64
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		handshakes.Add(1)
		return nil, nil
	}}
	server.StartTLS()
	defer server.Close()
	u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
	u.shared.calls.TLSClientConfig.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	call := func() {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/pkg.Service/Method", strings.NewReader("\x00\x00\x00\x00\x00"))
		r.ProtoMajor, r.ProtoMinor = 2, 0
		w := httptest.NewRecorder()
		u.Serve(w, r, &Call{GRPC: true})
		if got := w.Header().Get("Grpc-Status"); got != "12" {
			t.Errorf("status %s", got)
		}
	}
	for range 20 {
		call()
		if u.seats[0].noCallsUntil.Load() == 0 {
			t.Fatal("nothing is remembered")
		}
		u.seats[0].noCallsUntil.Add(int64(time.Hour)) // or a slow machine would ask again
	}
	if n := handshakes.Load(); n != 1 {
		t.Errorf("%d handshakes for 20 calls", n)
	}
	u.seats[0].noCallsUntil.Store(int64(u.now()))
	if call(); handshakes.Load() != 2 {
		t.Errorf("after a while it is not asked again: %d handshakes", handshakes.Load())
	}
	if s := u.Stats()[0]; s.Requests != 2 {
		t.Errorf("%d requests were sent", s.Requests)
	}
}

// A call that neither side goes on with ends, and is nobody's failure.
func TestIdleCall(t *testing.T) {
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("answered: %v", answered), func(t *testing.T) {
			for idle := 50 * time.Millisecond; !endsIdle(t, answered, idle); idle *= 2 {
				if idle > time.Minute {
					t.Fatal("it always ends before its target has answered")
				}
			}
		})
	}
}

// endsIdle shows that a call ends when it has been idle for so long. It returns false, and shows nothing, if the call had not come as far
// as it should by then, because the machine is busy.
func endsIdle(t *testing.T, answered bool, idle time.Duration) bool {
	t.Helper()
	reached, ended := make(chan struct{}), make(chan struct{})
	server := startHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		close(reached)
		defer close(ended)
		if answered {
			w.Header().Set("Content-Type", "application/grpc")
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-t.Context().Done(): // the test has failed
		}
	})
	u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}, GRPCIdleTimeout: policy.Duration(idle)}, io.Discard, nil)
	u.shared.calls.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	gate, counted := newSampled(), make(chan int, 1)
	front := startHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		weirhttp.NewGuard().Serve(w, r, gate, weir.Work{}, func(w http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
			call := &Call{GRPC: true, Request: q}
			defer func() { counted <- call.Counted() }()
			u.Serve(w, r, call)
		})
	})
	silent, client := io.Pipe()
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), idle+await.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/pkg.Service/Talk", silent)
	if err != nil {
		t.Fatal(err)
	}
	res, err := front.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, err = io.ReadAll(res.Body)
	if ctx.Err() != nil {
		t.Fatal("it does not end")
	}
	status := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
	if got := <-counted; got != http.StatusGatewayTimeout {
		t.Errorf("it counts as %d", got)
	}
	select {
	case <-reached:
		if answered && res.Header.Get("Grpc-Status") == "4" {
			return false
		}
	default:
		return false
	}
	if err != nil {
		t.Errorf("the answer ended with %v", err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the target does not hear of it")
	}
	if status != "4" {
		t.Errorf("status %s %s, want 4", status, res.Header.Get("Grpc-Message"))
	}
	front.Close() // when its handler has returned
	if o := gate.outcome; o == weir.Failed || o == weir.Overload || o == weir.OK {
		t.Errorf("the outcome is %v", o)
	}
	for kind, n := range u.Stats()[0].Failures {
		if n != 0 {
			t.Errorf("%d failures of %s", n, kind)
		}
	}
	return true
}

// startHTTP2 starts a server with TLS and HTTP/2.
func startHTTP2(t *testing.T, h http.HandlerFunc) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// A server of gRPC resets a call at its deadline. The answer says so, and the target is not to blame:
// a retry would be in vain, and a client with short deadlines could have all targets ejected.
func TestCallResetAtItsDeadline(t *testing.T) {
	for _, tt := range []struct {
		name    string
		took    time.Duration
		header  bool // the answer has begun
		code    codes.Code
		outcome weir.Outcome
		blamed  string
	}{
		{"before its deadline", time.Second, false, codes.Unavailable, weir.Failed, "reset"},
		{"at its deadline", 2 * time.Second, false, codes.DeadlineExceeded, weir.Overload, ""},
		{"before its deadline, in the answer", time.Second, true, codes.Unavailable, weir.Failed, "body"},
		{"at its deadline, in the answer", 2 * time.Second, true, codes.DeadlineExceeded, weir.Overload, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var clock atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.header {
					w.Header().Set("Content-Type", "application/grpc")
					_ = http.NewResponseController(w).Flush()
				}
				clock.Store(int64(tt.took))
				panic(http.ErrAbortHandler) // which resets the stream
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			defer server.Close()
			u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
			u.policy = compile(t, policy.Spec{}, policy.Options{Now: func() time.Duration { return time.Duration(clock.Load()) }})
			u.shared.calls.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()

			r := httptest.NewRequest(http.MethodPost, "/pkg.Service/Method", strings.NewReader("\x00\x00\x00\x00\x00"))
			r.ProtoMajor, r.ProtoMinor = 2, 0
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Grpc-Timeout", "2S")
			gate, w := newSampled(), httptest.NewRecorder()
			weirhttp.NewGuard().Serve(w, r, gate, weir.Work{}, func(w http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
				u.Serve(w, r, &Call{GRPC: true, Arrived: time.Unix(0, 0), Request: q})
			})
			if gate.outcome != tt.outcome {
				t.Errorf("the outcome is %v, want %v", gate.outcome, tt.outcome)
			}
			said := w.Result().Header
			if tt.header {
				said = w.Result().Trailer
			}
			if got := said.Get("Grpc-Status"); got != strconv.Itoa(int(tt.code)) {
				t.Errorf("status %s %s, want %v", got, said.Get("Grpc-Message"), tt.code)
			}
			for kind, n := range u.Stats()[0].Failures {
				if want := kind == tt.blamed; (n != 0) != want {
					t.Errorf("%d failures of %s, want some: %v", n, kind, want)
				}
			}
		})
	}
}

// sampled is a gate with one slot that remembers the outcome of its sample.
type sampled struct {
	slot.Holder
	group   slot.Group
	slot    slot.Slot
	outcome weir.Outcome
}

func newSampled() *sampled {
	g := &sampled{outcome: weir.NoSample}
	g.group.Holder = g
	g.slot.Init(&g.group, 0)
	return g
}

func (g *sampled) Admit(context.Context, weir.Work) (weir.Permit, error) {
	return weir.NewPermit(g.slot.Issue()), nil
}

func (g *sampled) Sample(_ slot.Ticket, outcome uint8) { g.outcome = weir.Outcome(outcome) }

// An upstream whose targets have moved to https has another transport for calls.
func TestCallsAfterAMoveToTLS(t *testing.T) {
	before := makeUpstream(t, config.Upstream{Targets: []string{"http://a"}}, io.Discard, nil)
	after := makeUpstream(t, config.Upstream{Targets: []string{"https://a"}}, io.Discard, before)
	if c := after.shared.calls.TLSClientConfig; c == nil || c.VerifyConnection == nil {
		t.Error("calls go to whatever speaks HTTP/1 by TLS")
	}
	if again := makeUpstream(t, config.Upstream{Targets: []string{"https://a", "https://b"}}, io.Discard, after); again.shared.calls != after.shared.calls {
		t.Error("a reload with another target of the same kind has lost the connections")
	}
}
