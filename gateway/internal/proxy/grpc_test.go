package proxy

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/weir-go/weir/gateway/internal/config"
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
		421: codes.Unauthenticated, 502: codes.Unavailable, 503: codes.Unavailable, 504: codes.DeadlineExceeded,
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
