package proxy

import (
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
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
